"""The head of sequences of vectors: a vector for each position of the source."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from regard.core.config import Probability, doc
from regard.core.errors import Problem
from regard.core.shapes import Float, Tensor
from regard.model.interfaces import Head
from regard.model.memory import Memory
from regard.model.part_config import EncoderConfig, HeadConfig, Part


@dataclass(frozen=True)
class VectorsConfig(HeadConfig):
    """A vector for each position of the source: denoising, or the next value."""

    dropout: Probability = doc(0.0, "dropout before the output layer")

    def encoder_conflicts(self, encoder: Part[EncoderConfig]) -> Iterator[Problem]:
        if not encoder.module.keeps_positions:
            yield Problem(
                "kind",
                "an encoder with a state for each position, to give each a vector",
                "one whose states are those of learned queries",
                "Choose another encoder, or a decoder or pool, which reads any states.",
            )


class VectorsHead(Head):
    """A linear layer from the state of each position to a vector."""

    task = "predict_vectors"

    def __init__(self, config: VectorsConfig, memory_dim: int, size: int) -> None:
        super().__init__()
        self.dropout = nn.Dropout(config.dropout)
        self.proj = nn.Linear(memory_dim, size)

    def forward(self, memory: Memory) -> Float[Tensor, "B S D"]:
        """The normalized vectors."""
        states = memory.states[:, memory.cls_tokens :]
        vectors: Tensor = self.proj(self.dropout(states))
        return vectors
