"""The interfaces of the model grammar. Training, search and interpretation call what is declared here, nothing else.

    source(s) ──Encoder──▶ Memory ──Decoder──▶ logits     (or Memory ──Pool──▶ label, or Memory ──MLM head──▶ tokens)

Axis letters: B sequences, S source positions, T target positions, K hypotheses of a sequence, W model dimension,
V vocabulary, N tokens of packed sequences.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar

from torch import nn

from regard.core.errors import InvalidArgument
from regard.core.sequence import FeatureGrids, MultiSource, Packed, Packing, Tokens
from regard.core.shapes import Float, Int, Tensor
from regard.model.embedding import Embedding, Projection
from regard.model.kv_cache import Slots
from regard.model.memory import Memory, PackedMemory

# Token ids with lengths, label ids (B,), pixels (B, 3, Y, X), features of a frozen backbone, several of these, or a
# memory.
Source = Tokens | Tensor | FeatureGrids | MultiSource | Memory
StateType = TypeVar(
    "StateType", bound="DecoderState"
)  # the shape checks of the tests do not support Self
CarriedType = TypeVar("CarriedType", bound="CarriedState")


AttentionKind = Literal["self", "cross", "pool", "grid"]


class AttentionModule(nn.Module, ABC):
    """A module that attends and is the `source` of the attention calls it makes, as captured by `capture_attention`."""

    heads: int
    attention_kind: AttentionKind = (
        "self"  # "cross" where it is one of a decoder's `cross_attentions`
    )

    @property
    @abstractmethod
    def output_weight(self) -> Float[Tensor, "W HE"]:
        """The matrix that maps the heads' attended values, side by side, to what the module passes on."""


class Encoder(nn.Module, ABC):
    """Encodes a source into a Memory that any decoder or pool reads."""

    dim: int  # of the memory's states
    cls_tokens: int = 0  # learned states before those of the source, as in its memories
    causal: bool = False  # whether a position attends to earlier positions only

    @abstractmethod
    def forward(self, source: Source) -> Memory:
        """The memory of a batch of `Tokens`, of labels (B,) or of pixels (B, 3, height, width): states (B, S, dim).

        States of padding may hold anything finite; the mask excludes them.
        """

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
        """The state with the sequences of `fresh` in these slots.

        It has not stepped yet, or has one hypothesis for each sequence and has read a prompt by `Decoder.prefill`.
        """

    def release(self, slots: Sequence[int]) -> None:  # noqa: B027  optional
        """The sequences in these slots have ended. What they have read may be dropped."""


class CarriedState(DecoderState):
    """A state from which a decoder can read on: of a fixed size, whatever the number of tokens before it."""

    @abstractmethod
    def detached(self: CarriedType) -> CarriedType:
        """The same state without gradient to earlier tokens: truncated back-propagation through time."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """What changes from step to step, by name, for a checkpoint; sequences are the first axis of each tensor."""

    @abstractmethod
    def with_tensors(self: CarriedType, tensors: Mapping[str, Tensor]) -> CarriedType:
        """The state with what `tensors` returned, of as many sequences as these hold."""


def require_tokens(source: Any) -> Tokens:
    """The source as tokens; refused otherwise, as when vectors are given instead of token ids."""
    if isinstance(source, Tokens):
        return source
    shape = getattr(source, "shape", None)
    got = type(source).__name__ + ("" if shape is None else f" of shape {tuple(shape)}")
    raise InvalidArgument(
        "source",
        wanted="tokens: this encoder embeds them itself, and reads no vectors",
        got=got,
        remedy="Give regard.Tokens.of(rows of token ids).",
    )


class Decoder(nn.Module, ABC, Generic[StateType]):
    """Predicts the next token from the tokens so far and, unless it is a language model, a memory."""

    embed_tokens: Embedding
    project: Projection  # hidden states to logits; the loss applies it in chunks
    extrapolates: bool = False  # whether it is made for longer sequences than those of training
    has_hidden: bool = True  # whether logits are `project(hidden(…))`; an ensemble has logits only

    @property
    @abstractmethod
    def cross_attentions(self) -> Sequence[AttentionModule]:
        """The modules that attend to the memory, first layer to last; empty for a language model."""

    @abstractmethod
    def hidden(
        self,
        targets: Int[Tensor, "B T"],
        memory: Memory | None = None,
        packing: Packing | None = None,
    ) -> Float[Tensor, "*lead W"]:
        """Hidden states (B, T, W) that `project` turns into the logits of the token after each target.

        targets   token ids (B, T), beginning with the start token
        memory    what it attends to; None for a language model
        packing   compute only the tokens that it names, packed (N, W)
        """

    def forward(
        self, targets: Int[Tensor, "B T"], memory: Memory | None = None
    ) -> Float[Tensor, "B T V"]:
        """Logits (B, T, vocabulary) of the token after each of the `targets` (B, T)."""
        logits: Tensor = self.project(self.hidden(targets, memory))
        return logits

    def hidden_packed(
        self, targets: Packed, memory: Memory | PackedMemory | None
    ) -> Float[Tensor, "N W"]:
        """As `hidden`, for packed `targets`: (N, W). Implemented where the config declares `packable`."""
        raise NotImplementedError(f"{type(self).__name__} does not take packed sequences")

    @abstractmethod
    def start(
        self, memory: Memory | None, *, batch: int, capacity: int, beams: int = 1
    ) -> StateType:
        """The state before the first token.

        memory     that of `batch` sequences; None for a language model
        batch      sequences
        capacity   tokens of a hypothesis at most
        beams      hypotheses of each sequence
        """

    @abstractmethod
    def step(
        self, tokens: Int[Tensor, " BK"], state: StateType
    ) -> tuple[Float[Tensor, "BK V"], StateType]:
        """One more token of every hypothesis: logits (B · K, vocabulary) and the new state.

        tokens   (B · K,), the hypotheses of a sequence side by side
        state    the state before it, which is used up
        """

    def prefill(self, tokens: Int[Tensor, "B T"], state: StateType) -> StateType | None:
        """The state after these tokens, read at once instead of step by step, by all hypotheses of a sequence.

        `state` has not stepped yet. None where the decoder takes steps only; the state has not changed then.
        """
        return None


class StatefulDecoder(Decoder[CarriedType]):
    """A decoder that reads a text part by part, each from the state in which the last ended: a recurrent one.

    Its attention weights are part of the computation and can be returned with their gradient.
    """

    extrapolates = True

    @abstractmethod
    def carry(
        self,
        targets: Int[Tensor, "B T"],
        state: CarriedType,
        weights: list[Float[Tensor, "B _ S"]] | None = None,
    ) -> tuple[Float[Tensor, "B T W"], CarriedType]:
        """Hidden states (B, T, W) of the next T `targets` of each sequence, and the state after them.

        weights   a list to which the attention weights are appended, with their gradient, in parts along T
        """


# A decoder whose kind of state is not known. Search and training hold one and hand its own states back to it.
AnyDecoder = Decoder[Any]


class Pool(nn.Module, ABC):
    """Reduces a memory to one vector, for a classifier."""

    dim: int  # of the vector
    parts: int = (
        1  # equal parts of the vector, each with a classifier of its own; their logits are averaged
    )

    @abstractmethod
    def forward(self, memory: Memory) -> Float[Tensor, "B W"]:
        """One vector (B, dim) for each sequence of a memory."""
