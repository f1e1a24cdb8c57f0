"""The head of sequence labelling: scores of the tags of each word, or of each position."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from torch import nn

from regard.core.config import Probability, doc
from regard.core.errors import Problem
from regard.core.shapes import Float, Tensor
from regard.core.word_tokens import WordTokens
from regard.model.crf import LinearChainCRF
from regard.model.interfaces import Head
from regard.model.memory import Memory
from regard.model.part_config import EncoderConfig, HeadConfig, Part


@dataclass(frozen=True)
class TagsConfig(HeadConfig):
    """One tag for each word of the source."""

    pieces: Literal["first", "mean"] = doc(
        "first",
        "the state that gives a word's tag, where a word has several tokens: that of "
        "its first token, or their mean",
    )
    crf: bool = doc(
        False,
        "a conditional random field over the tags, which learns what follows what",
        arxiv="1603.01360",
    )
    constraints: bool = doc(
        True,
        "predict only sequences that are well-formed, where the tags have a scheme "
        "(IOB2, BIOES): no I-X after O",
    )
    dropout: Probability = doc(0.0, "dropout before the output layer")

    def encoder_conflicts(self, encoder: Part[EncoderConfig]) -> Iterator[Problem]:
        if not encoder.module.keeps_positions:
            yield Problem(
                "kind",
                "an encoder with a state for each token, to tag each word",
                "one whose states are those of learned queries",
                "Choose another encoder, or a pool, which reads any states.",
            )


class TagHead(Head):
    """A linear layer from the state of each word to the scores of its tags,
    and perhaps a CRF over them.
    """

    task = "tag"

    def __init__(self, config: TagsConfig, memory_dim: int, tags: int) -> None:
        super().__init__()
        self.pieces = config.pieces
        self.constrained = config.constraints
        self.dropout = nn.Dropout(config.dropout)
        self.proj = nn.Linear(memory_dim, tags)
        self.crf = LinearChainCRF(tags) if config.crf else None

    def of_words(self, memory: Memory, source: WordTokens) -> Memory:
        before = memory.cls_tokens
        if self.pieces == "mean":
            states = source.mean_of_pieces(memory.states, before=before)
        else:
            states = source.first_pieces(memory.states, before=before)
        return replace(memory, states=states, mask=source.word_mask, cls_tokens=0)

    def forward(self, memory: Memory) -> Float[Tensor, "B W tags"]:
        """The scores of the tags; with a CRF, its emissions."""
        states = memory.states[:, memory.cls_tokens :]
        scores: Tensor = self.proj(self.dropout(states))
        return scores
