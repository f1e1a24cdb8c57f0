"""The interfaces of the runtime: engines accelerate a decoder, search strategies choose the tokens.

An engine is an implementation of a decoder's step (and of the encoder) for one kind of device: compiled C++ on a CPU,
static buffers and CUDA graphs on a GPU, plain PyTorch everywhere. Engines equal PyTorch up to rounding.

Under `capture_attention` a search keeps its engine, whose decoder publishes each step's queries, keys and values as
PyTorch's does, and no bit of the output changes. On a GPU the same decoding kernels are launched one by one instead of
as CUDA graphs, and encoder attention is that of a second pass without padding, equal up to rounding. Interception,
which replaces attention outputs, is supported by the PyTorch engine only.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from regard.core.shapes import Bool, Float, Int, Tensor
from regard.model.interfaces import DecoderState, Source
from regard.model.kv_cache import Slots
from regard.model.memory import Memory
from regard.model.seq2seq import Seq2Seq

_constant = threading.local()


@contextmanager
def constant_weights() -> Iterator[None]:
    """In this thread, weights do not change: engines that have copied or packed them do not compare them again."""
    before, _constant.weights = weights_are_constant(), True
    try:
        yield
    finally:
        _constant.weights = before


def weights_are_constant() -> bool:
    return getattr(_constant, "weights", False)


@dataclass(frozen=True)
class EngineOptions:
    """The requirements of a search on an engine."""

    max_length: int  # tokens of an output, with its prefix
    window: int | None = None  # the most tokens that the decoder reads at once
    half: bool = False  # linear layers in bfloat16
    int8: bool = False  # weights in int8

    @property
    def slides(self) -> bool:
        """Whether an output may be longer than the window."""
        return self.window is not None and self.max_length > self.window


class EngineDecoder(ABC):
    """A decoder as one engine executes it. Search steps this; the signatures are those of `Decoder`."""

    static: bool = False  # every step is the same kernels on the same memory, so that a CUDA graph can record it

    @abstractmethod
    def start(self, memory: Memory | None, *, batch: int, capacity: int, beams: int = 1) -> DecoderState:
        """The state before the first token. With a capacity of 0 it can only be admitted into another state."""

    @abstractmethod
    def step(self, tokens: Int[Tensor, " BK"], state: DecoderState) -> tuple[Float[Tensor, "BK V"], DecoderState]:
        """Logits after one more token of every hypothesis, and the new state. The next step may overwrite both."""

    def refresh(self, model: Seq2Seq) -> bool:
        """Copy the decoder's weights again if they have changed since they were copied; whether they had."""
        return False


class Engine(ABC):
    """Accelerates models on one kind of device. Both methods return None for what the engine does not support."""

    @abstractmethod
    def decoder_for(self, model: Seq2Seq, options: EngineOptions) -> EngineDecoder | None:
        """The model's decoder as this engine executes it."""

    @abstractmethod
    def encode(self, model: Seq2Seq, source: Source, *, half: bool) -> Memory | None:
        """The memory of a source; with `half`, linear layers in bfloat16."""


class Generated(Protocol):
    """The tokens of every hypothesis. All tensors of its instance are kept in place while steps are recorded."""

    tokens: Int[Tensor, "B K T"]


class SearchStrategy(ABC):
    """Chooses the next tokens of K hypotheses in each of B slots: greedy search, sampling, beam search.

    Its tensors are attributes of the instance or of `generated`. On a GPU a step is recorded as a CUDA graph: `advance`
    then must not wait for the device, and the tensors it replaces are copied back to where they were.
    """

    generated: Generated
    limit: Int[Tensor, " B"]  # tokens of an output, at most
    done: Bool[Tensor, " B"]  # slots that are finished or empty: further steps change nothing there

    @abstractmethod
    def set_seed(self, seed: int) -> None:
        """The seed of random draws."""

    @abstractmethod
    def admit(self, slots: Slots, inputs: Int[Tensor, " n"]) -> None:
        """Begin the outputs of new inputs, given by number, in these slots. Draws depend on seed and number only."""

    @abstractmethod
    def keep(self, slots: Int[Tensor, " n"]) -> None:
        """Continue with these slots only."""

    @abstractmethod
    def advance(self, logits: Float[Tensor, "B K V"]) -> tuple[Int[Tensor, "B K"], Int[Tensor, "B K"] | None]:
        """The next tokens, and the hypothesis each continues (None: its own). May overwrite the logits."""
