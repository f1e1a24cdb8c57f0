"""The interfaces of the model grammar. Training, search and interpretation call what is declared here, nothing else.

    source(s) ──Encoder──▶ Memory ──Decoder──▶ logits     (or Memory ──Pool──▶ label, or Memory ──MLM head──▶ tokens)

Axis letters: B sequences, S source positions, T target positions, K hypotheses of a sequence, W model dimension,
V vocabulary, N tokens of packed sequences.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

from torch import nn

from regard.core.sequence import FeatureGrids, Packed, Packing, Tokens
from regard.core.shapes import Float, Int, Tensor
from regard.model.embedding import Embedding, Projection
from regard.model.kv_cache import Slots
from regard.model.memory import Memory, PackedMemory

# Token ids with lengths, label ids (B,), pixels (B, 3, Y, X), or precomputed features of a frozen backbone.
Source = Tokens | FeatureGrids | Tensor
StateType = TypeVar("StateType", bound="DecoderState")  # the shape checks of the tests do not support Self


class Encoder(nn.Module, ABC):
    """Encodes a source into a Memory that any decoder or pool reads."""

    dim: int  # of the memory's states
    causal: bool = False  # whether a position attends to earlier positions only

    @abstractmethod
    def forward(self, source: Source) -> Memory:
        """The memory of a batch of sources. States of padding may hold anything finite; the mask excludes them."""

    def forward_packed(self, source: Packed) -> Memory | PackedMemory:
        """As `forward`, for packed sequences. Implemented where the config declares `packable`."""
        raise NotImplementedError(f"{type(self).__name__} does not take packed sequences")


class DecoderState(ABC):
    """What a decoder keeps between steps for B sequences with K hypotheses each: caches, hidden states, memory.

    Methods return the new state and may reuse or overwrite the old one's tensors: the old state is used up.
    """

    @abstractmethod
    def reorder(self: StateType, index: Int[Tensor, " n"]) -> StateType:
        """The state whose sequence i is sequence index[i] of this one, with all its hypotheses."""

    @abstractmethod
    def follow(self: StateType, parents: Int[Tensor, "B K"]) -> StateType:
        """The state whose hypothesis k of sequence b continues hypothesis parents[b, k] of that sequence."""

    @abstractmethod
    def admit(self: StateType, slots: Slots, fresh: StateType) -> StateType:
        """The state with the sequences of `fresh`, which has not stepped yet, in these slots."""


class Decoder(nn.Module, ABC, Generic[StateType]):
    """Predicts the next token from the tokens so far and, unless it is a language model, a memory."""

    embed_tokens: Embedding
    project: Projection  # hidden states to logits; the loss applies it in chunks

    @property
    @abstractmethod
    def cross_attentions(self) -> Sequence[nn.Module]:
        """The modules that attend to the memory, first layer to last; empty for a language model."""

    @abstractmethod
    def hidden(
        self, targets: Int[Tensor, "B T"], memory: Memory | None = None, packing: Packing | None = None
    ) -> Float[Tensor, "*lead W"]:
        """Hidden states (B, T, W) that `project` turns into the logits of the token after each target.

        With a packing, only of the tokens it names, packed (N, W).
        """

    def forward(self, targets: Int[Tensor, "B T"], memory: Memory | None = None) -> Float[Tensor, "B T V"]:
        """Logits of the token after each target."""
        logits: Tensor = self.project(self.hidden(targets, memory))
        return logits

    def hidden_packed(self, targets: Packed, memory: Memory | PackedMemory | None) -> Float[Tensor, "N W"]:
        """As `hidden`, for packed sequences. Implemented where the config declares `packable`."""
        raise NotImplementedError(f"{type(self).__name__} does not take packed sequences")

    @abstractmethod
    def start(self, memory: Memory | None, *, batch: int, capacity: int, beams: int = 1) -> StateType:
        """The state before the first token, for `capacity` tokens and `beams` hypotheses of each sequence."""

    @abstractmethod
    def step(self, tokens: Int[Tensor, " BK"], state: StateType) -> tuple[Float[Tensor, "BK V"], StateType]:
        """Logits after one more token of every hypothesis (those of a sequence side by side), and the new state."""


class Pool(nn.Module, ABC):
    """Reduces a memory to one vector, for a classifier."""

    dim: int  # of the vector

    @abstractmethod
    def forward(self, memory: Memory) -> Float[Tensor, "B W"]:
        """One vector for each sequence."""
