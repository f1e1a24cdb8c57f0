"""The head of connectionist temporal classification: the tokens of each position, or a blank."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from regard.core.config import Probability, doc
from regard.core.errors import Problem
from regard.core.shapes import Float, Tensor
from regard.model.interfaces import Head
from regard.model.memory import Memory
from regard.model.part_config import EncoderConfig, HeadConfig, Part

EXCLUDED = -1e9  # logit of a token at padding: no infinity, which has no gradient


@dataclass(frozen=True)
class CtcConfig(HeadConfig):
    """Connectionist temporal classification (https://doi.org/10.1145/1143844.1143891): a token or a
    blank at each position of the encoder, from which repetitions and then blanks are removed.
    """

    dropout: Probability = doc(0.0, "dropout before the output layer")

    def encoder_conflicts(self, encoder: Part[EncoderConfig]) -> Iterator[Problem]:
        if not encoder.module.keeps_positions:
            yield Problem(
                "kind",
                "an encoder with a state for each position, of which each gives a token or a blank",
                "one whose states are those of learned queries",
                "Choose another encoder, or a decoder, which reads any states.",
            )


class CtcHead(Head):
    """A linear layer from the state of each position to the tokens of the vocabulary
    and a blank after them.
    """

    task = "transcribe"
    gives_tokens = True
    beside_decoder = True

    def __init__(self, config: CtcConfig, memory_dim: int, vocab_size: int) -> None:
        super().__init__()
        self.dropout = nn.Dropout(config.dropout)
        self.proj = nn.Linear(memory_dim, vocab_size + 1)

    @property
    def blank(self) -> int:
        """The output that stands for no token."""
        return self.proj.out_features - 1

    def forward(self, memory: Memory) -> Float[Tensor, "B S V1"]:
        """Logits in float32. At padding the blank is certain:
        the padding of a batch changes no probability.
        """
        states = memory.states[:, memory.cls_tokens :]
        mask = memory.mask[:, memory.cls_tokens :]
        logits: Tensor = self.proj(self.dropout(states)).float()
        only_blank = torch.full_like(logits[0, 0], EXCLUDED)
        only_blank[self.blank] = 0.0
        return torch.where(mask[..., None], logits, only_blank)
