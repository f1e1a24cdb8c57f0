"""Terms of a training loss beside the error of the outputs: each adds to the loss of a batch.

A term is computed from what the model predicted at the gold outputs, and knows nothing of how that was computed: by
teacher forcing or scheduled sampling, padded or packed, from the start or from a carried state. So any of them goes
with any other.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from regard.core.shapes import Bool, Float, Tensor
from regard.model.embedding import Projection


class Predictions(NamedTuple):
    """The hidden states of predictions and what projects them to logits; without it, the states are the logits."""

    states: Float[Tensor, "N W"]
    project: Projection | None = None

    def logits(self, chunk: slice) -> Float[Tensor, "rows V"]:
        """Those of some predictions, in float32."""
        states = self.states[chunk]
        return (states if self.project is None else self.project(states)).float()

    @property
    def classes(self) -> int:
        """The size of the vocabulary, or the number of labels."""
        return self.states.shape[-1] if self.project is None else len(self.project.weight)


@dataclass(frozen=True)
class CrossAttention:
    """The attention of a decoder to its source, with its gradient.

    weights       of each target to each source position
    target_mask   False at padding
    source_mask   False at padding
    """

    weights: Float[Tensor, "B T S"]
    target_mask: Bool[Tensor, "B T"]
    source_mask: Bool[Tensor, "B S"]


@dataclass(frozen=True)
class Computed:
    """What terms are computed from.

    predicted   a row for each gold output; with several passes, all rows of one pass and then all of the next
    gold        the gold outputs, once
    teachers    what each teacher predicted: as many rows as there are gold outputs, or as many as in `predicted`
    passes      forward passes of the batch
    attention   where a term asks for it, otherwise None
    """

    predicted: Predictions
    gold: Tensor
    teachers: Sequence[Predictions] = ()
    passes: int = 1
    attention: CrossAttention | None = None


class LossTerm(ABC):
    """A term of the loss. `reads_attention` says whether it needs the attention of the decoder."""

    reads_attention: ClassVar[bool] = False

    @abstractmethod
    def add_to(self, loss: Float[Tensor, ""], computed: Computed) -> Float[Tensor, ""]:
        """The loss of a batch, a sum over its gold outputs, with this term."""


@dataclass(frozen=True)
class DoublyStochastic(LossTerm):
    """The penalty of doubly stochastic attention (https://arxiv.org/abs/1502.03044), times a weight."""

    weight: float
    reads_attention = True

    def add_to(self, loss: Float[Tensor, ""], computed: Computed) -> Float[Tensor, ""]:
        attention = computed.attention
        assert attention is not None
        penalty = doubly_stochastic_penalty(
            attention.weights, attention.target_mask, attention.source_mask
        )
        return loss + self.weight * penalty / computed.passes


def doubly_stochastic_penalty(
    weights: Float[Tensor, "B T S"],
    target_mask: Bool[Tensor, "B T"],
    source_mask: Bool[Tensor, "B S"],
) -> Float[Tensor, ""]:
    """The sum over source positions of (1 - attention received over all target positions)²."""
    received = (weights * target_mask[..., None]).sum(1)  # (B, S)
    return ((1 - received).square() * source_mask).sum()
