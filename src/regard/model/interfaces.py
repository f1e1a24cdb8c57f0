"""The interfaces of the model grammar. Training, search and interpretation call what is declared
here, nothing else.

    source(s) ──Encoder──▶ Memory ──Decoder──▶ logits     (or Memory ──Pool──▶ label, or Memory ──MLM head──▶ tokens)

Axis letters: B sequences, S source positions, T target positions, K hypotheses of a sequence, W
model dimension, V vocabulary, N tokens of packed sequences.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Generic, Literal, TypeVar

from torch import nn

from regard.core.sequence import FieldBatch, PackedSequences, Packing
from regard.core.shapes import Float, Int, Shaped, Tensor
from regard.core.word_tokens import WordTokens
from regard.model.inputs import InputModule, InputVectors
from regard.model.kv_cache import Slots
from regard.model.memory import Memory, PackedMemory

# What a model reads: a batch, or the memory of one that is encoded already.
Source = FieldBatch | Memory
# The shape checks of the tests do not support Self.
StateType = TypeVar("StateType", bound="DecoderState")
CarriedType = TypeVar("CarriedType", bound="CarriedState")


AttentionKind = Literal["self", "cross", "pool", "grid"]


class AttentionModule(nn.Module, ABC):
    """A module that attends and is the `source` of the attention calls it makes,
    as captured by `capture_attention`.
    """

    heads: int
    # "cross" where it is one of a decoder's `cross_attentions`.
    attention_kind: AttentionKind = "self"

    @property
    @abstractmethod
    def output_weight(self) -> Float[Tensor, "W HE"]:
        """The matrix that maps the heads' attended values, side by side,
        to what the module passes on.
        """


class Support:
    """What a class of encoders or decoders supports, whatever the keys of its table:
    nothing unless it says so.

    packable        packed sequences: `forward_packed`, `hidden_packed`
    packed_memory   with packed sequences, the memory is a PackedMemory; otherwise a padded one
    shardable       it may be part of a model that FSDP shards
    has_blocks      it holds Transformer blocks, the units that FSDP shards
    """

    packable: ClassVar[bool] = False
    packed_memory: ClassVar[bool] = True
    shardable: ClassVar[bool] = False
    has_blocks: ClassVar[bool] = False


class Encoder(nn.Module, Support, ABC):
    """Encodes a source into a Memory that any decoder or pool reads.

    reads              the input module that stands before it, unless its table names another
    has_input_module   whether one of another kind may
    """

    reads: ClassVar[Literal["tokens", "label", "image"]] = "tokens"
    has_input_module: ClassVar[bool] = True
    dim: int  # of the memory's states
    cls_tokens: int = 0  # learned states before those of the source, as in its memories
    causal: bool = False  # whether a position attends to earlier positions only
    keeps_positions: bool = True  # whether its memory has a state for each position of the source

    @abstractmethod
    def forward(self, source: Source) -> Memory:
        """The memory of a batch of `Tokens`, of labels (B,) or of pixels (B, 3, height, width):
        states (B, S, dim).

        States of padding may hold anything finite; the mask excludes them.
        """

    def forward_packed(self, source: PackedSequences) -> Memory | PackedMemory:
        """As `forward`, for packed sequences. Implemented by a class that declares `packable`."""
        raise NotImplementedError(f"{type(self).__name__} does not take packed sequences")


class SequenceEncoder(Encoder):
    """An encoder of sequences of vectors, whatever field they come from:
    its input module makes them.

    input_module   of its source: a token embedding, a projection of vectors, ...
    """

    def __init__(self, input_module: InputModule) -> None:
        super().__init__()
        # Its weights have names that say what it is: encoder.embed_tokens.weight.
        self._input_attribute = input_module.attribute
        self.add_module(input_module.attribute, input_module)

    @property
    def input_module(self) -> InputModule:
        module = getattr(self, self._input_attribute)
        assert isinstance(module, InputModule)
        return module

    def forward(self, source: Source) -> Memory:
        return self.encode(self.input_module.read(source))

    @abstractmethod
    def encode(self, vectors: InputVectors) -> Memory:
        """The memory of a batch of sequences of vectors."""


class DecoderState(ABC):
    """What a decoder keeps between steps for B sequences with K hypotheses each: caches,
    hidden states, memory.

    Methods return the new state and may reuse or overwrite the old one's tensors: the old state is
    used up.
    """

    @abstractmethod
    def reorder(self: StateType, index: Int[Tensor, " n"]) -> StateType:
        """The state whose sequence i is sequence index[i] of this one, with all its hypotheses."""

    @abstractmethod
    def follow(self: StateType, parents: Int[Tensor, "B K"]) -> StateType:
        """The state whose hypothesis k of sequence b continues hypothesis parents[b,
        k] of that sequence.
        """

    @abstractmethod
    def admit(self: StateType, slots: Slots, fresh: StateType) -> StateType:
        """The state with the sequences of `fresh` in these slots.

        It has not stepped yet, or has one hypothesis for each sequence and has read a prompt by
        `Decoder.prefill`.
        """

    def release(self, slots: Sequence[int]) -> None:  # noqa: B027  optional
        """The sequences in these slots have ended. What they have read may be dropped."""


class CarriedState(DecoderState):
    """A state from which a decoder can read on: of a fixed size,
    whatever the number of tokens before it.
    """

    @abstractmethod
    def detached(self: CarriedType) -> CarriedType:
        """The same state without gradient to earlier tokens:
        truncated back-propagation through time.
        """

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """What changes from step to step, by name, for a checkpoint;
        sequences are the first axis of each tensor.
        """

    @abstractmethod
    def with_tensors(self: CarriedType, tensors: Mapping[str, Tensor]) -> CarriedType:
        """The state with what `tensors` returned, of as many sequences as these hold."""


class Decoder(nn.Module, Support, ABC, Generic[StateType]):
    """Predicts the next token from the tokens so far and, unless it is a language model, a memory.

    A decoder over vectors is the same module, made with other ends: it reads vectors (…, E) instead
    of token ids, and gives vectors (…, D) instead of logits (`regard.model.vector_embedding`).
    """

    carries_state: ClassVar[bool] = False  # whether it is a `StatefulDecoder`
    embed_tokens: Any  # an `Embedding` of tokens; of a decoder over vectors, what projects these
    # A `Projection` of hidden states to logits, which the loss applies in chunks; or to vectors.
    project: Any
    extrapolates: bool = False  # whether it is made for longer sequences than those of training
    has_hidden: bool = True  # whether logits are `project(hidden(…))`; an ensemble has logits only

    @property
    @abstractmethod
    def cross_attentions(self) -> Sequence[AttentionModule]:
        """The modules that attend to the memory, first layer to last;
        empty for a language model.
        """

    @property
    def longest(self) -> int | None:
        """The longest sequence for which it has positions; None: any."""
        return None

    @abstractmethod
    def hidden(
        self,
        targets: Shaped[Tensor, "B T *each"],
        memory: Memory | None = None,
        packing: Packing | None = None,
    ) -> Float[Tensor, "*lead W"]:
        """Hidden states (B, T, W) that `project` turns into the logits
        of the token after each target.

        targets   token ids (B, T), beginning with the start token
        memory    what it attends to; None for a language model
        packing   compute only the tokens that it names, packed (N, W)
        """

    def forward(
        self, targets: Shaped[Tensor, "B T *each"], memory: Memory | None = None
    ) -> Float[Tensor, "B T V"]:
        """Logits (B, T, vocabulary) of the token after each of the `targets` (B, T)."""
        logits: Tensor = self.project(self.hidden(targets, memory))
        return logits

    def hidden_packed(
        self, targets: PackedSequences, memory: Memory | PackedMemory | None
    ) -> Float[Tensor, "N W"]:
        """As `hidden`, for packed `targets`: (N, W).

        Implemented by a class that declares `packable`.
        """
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
        self, tokens: Shaped[Tensor, "BK *each"], state: StateType
    ) -> tuple[Float[Tensor, "BK V"], StateType]:
        """One more token of every hypothesis: logits (B · K, vocabulary) and the new state.

        tokens   (B · K,), the hypotheses of a sequence side by side
        state    the state before it, which is used up
        """

    def bottleneck(self, memory: Memory) -> Float[Tensor, "B W"] | None:
        """The one vector of each sequence that it reads of a memory;
        None where it attends to the states.
        """
        return None

    def prefill(self, tokens: Int[Tensor, "B T"], state: StateType) -> StateType | None:
        """The state after these tokens, read at once instead of step by step,
        by all hypotheses of a sequence.

        `state` has not stepped yet. None where the decoder takes steps only; the state has not
        changed then.
        """
        return None


class StatefulDecoder(Decoder[CarriedType]):
    """A decoder that reads a text part by part, each from the state in which the last ended:
    a recurrent one.

    Its attention weights are part of the computation and can be returned with their gradient.
    """

    carries_state = True

    extrapolates = True

    @abstractmethod
    def carry(
        self,
        targets: Shaped[Tensor, "B T *each"],
        state: CarriedType,
        weights: list[Float[Tensor, "B _ S"]] | None = None,
    ) -> tuple[Float[Tensor, "B T W"], CarriedType]:
        """Hidden states (B, T, W) of the next T `targets` of each sequence,
        and the state after them.

        weights   a list to which the attention weights are appended, with their gradient, in parts
                  along T
        """


# A decoder whose kind of state is not known.
# Search and training hold one and hand its own states back to it.
AnyDecoder = Decoder[Any]


class Head(nn.Module, ABC):
    """Turns a memory into the outputs of a task, where these are neither generated nor pooled.

    task           the name of the task that a model with this head has
    gives_tokens   whether its outputs are tokens of a vocabulary
    reads_tokens   whether it needs one encoder of tokens, for the reason `why_tokens`
    beside_decoder   whether it may also be trained beside a decoder, as a second loss of the
                     encoder
    """

    task: ClassVar[str]
    gives_tokens: ClassVar[bool] = False
    reads_tokens: ClassVar[bool] = False
    beside_decoder: ClassVar[bool] = False
    why_tokens: ClassVar[str] = "It has an output for each token."
    # Whether it is made for sources and targets of one length each:
    # `source_length` and `horizon` of the model.
    needs_lengths: ClassVar[bool] = False

    def of_words(self, memory: Memory, source: WordTokens) -> Memory:
        """The memory with one state for each word,
        of an encoder that has read the tokens of words.
        """
        states = source.first_pieces(memory.states, before=memory.cls_tokens)
        return replace(memory, states=states, mask=source.word_mask, cls_tokens=0)

    @abstractmethod
    def forward(self, memory: Memory) -> Float[Tensor, "*shape"]:
        """The scores from which the task makes a prediction:
        (B, S, outputs) for one at each position.
        """


class Pool(nn.Module, ABC):
    """Reduces a memory to one vector, for a classifier."""

    reads: ClassVar[Literal["all", "first", "last"]] = "all"  # which states it reads
    dim: int  # of the vector
    # Equal parts of the vector, each with a classifier of its own; their logits are averaged.
    parts: int = 1

    @abstractmethod
    def forward(self, memory: Memory) -> Float[Tensor, "B W"]:
        """One vector (B, dim) for each sequence of a memory."""
