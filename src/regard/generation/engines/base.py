"""The interfaces of the runtime: engines accelerate a decoder, search strategies choose the tokens.

An engine is an implementation of a decoder's step (and of the encoder) for one kind of device: compiled C++ on a CPU,
static buffers and CUDA graphs on a GPU, plain PyTorch everywhere. Engines equal PyTorch up to rounding.

Under `capture_attention` a search keeps its engine, whose decoder publishes each step's queries, keys and values as
PyTorch's does, and no bit of the output changes. On a GPU the same decoding kernels are launched one by one instead of
as CUDA graphs, and encoder attention is that of a second pass without padding, equal up to rounding. Interception,
which replaces attention outputs, is supported by the PyTorch engine only.
"""

import ctypes
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import torch

from regard.core.shapes import Bool, Float, Int, Tensor
from regard.model.interfaces import DecoderState, Source
from regard.model.kv_cache import Slots
from regard.model.memory import Memory
from regard.model.seq2seq import Seq2Seq

LEAST_PROMPT = 16  # tokens of a prompt that is read by itself: a step of the batch reads a token of every shorter one
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


@dataclass(frozen=True)
class SearchLoop:
    """The tensors and settings of a search strategy, for a loop that an engine runs without Python between tokens.

    The loop overwrites tokens, log_p, length, done and those of greedy or beam search as the strategy's `advance` does.
    """

    tokens: Int[Tensor, "B K T"]
    log_p: Float[Tensor, "B K T"] | None  # None: not wanted
    length: Int[Tensor, " B"]
    limit: Int[Tensor, " B"]
    min_length: Int[Tensor, " B"]
    prompt: Int[Tensor, " B"]
    prefix: Int[Tensor, "B P"]
    first: Int[Tensor, " B"]  # the token before the first of `tokens`, which repetitions count
    done: Bool[Tensor, " B"]
    suppressed: tuple[int, ...]  # tokens that are never generated
    ends: tuple[int, ...]  # tokens that end an output
    forced: int  # tokens that every output begins with, at log-probability 0
    no_repeat_ngram_size: int
    allow_end: (
        bool  # whether an output may end before its minimum length where no other token is left
    )
    normalized: bool  # whether log-probabilities are compared, and not logits
    greedy: "GreedyTensors | None" = None  # either this
    beam: "BeamTensors | None" = None  # or this


class Interrupt:
    """Ends a compiled loop after its current step, from another thread; until `clear`, every loop after one step."""

    def __init__(self) -> None:
        self._flag = ctypes.c_int32(0)

    def set(self) -> None:
        self._flag.value = 1

    def clear(self) -> None:
        self._flag.value = 0

    @property
    def address(self) -> int:
        """Of the 32-bit integer that a loop reads after each step."""
        return ctypes.addressof(self._flag)


@dataclass(frozen=True)
class LoopBounds:
    """Where a loop without Python ends: after `steps` steps, or as soon as one of the other conditions holds.

    stop           so many more slots are done
    microseconds   have passed; 0: no limit
    interrupt      is set
    """

    steps: int
    stop: int
    microseconds: int = 0
    interrupt: Interrupt | None = None


class Candidates:
    """The output tokens that each sequence of a batch may have: those of a vocabulary shortlist.

    The others have logits of −∞. What a compiled loop needs is computed once: all of them hardly change.
    """

    def __init__(self, allowed: Bool[Tensor, "B V"]) -> None:
        self.allowed = allowed

    @cached_property
    def tokens(self) -> Int[Tensor, " U"]:
        """The candidates of any sequence, in ascending order."""
        return self.allowed.any(0).nonzero()[:, 0]

    @cached_property
    def column(self) -> Int[Tensor, " V"]:
        """The place of each token among `tokens`; -1: it is none of them."""
        column = torch.full((self.allowed.shape[1],), -1, dtype=torch.int32)
        column[self.tokens] = torch.arange(len(self.tokens), dtype=torch.int32)
        return column

    @cached_property
    def bias(self) -> Float[Tensor, "B U"]:
        """−∞ where one of `tokens` is no candidate of a sequence, else 0."""
        return torch.zeros(len(self.allowed), len(self.tokens)).masked_fill_(
            ~self.allowed[:, self.tokens], -torch.inf
        )


@dataclass(frozen=True)
class GreedyTensors:
    ended: Bool[Tensor, "B 1"]
    pad: int = 0  # the token of steps after the end, where `greedy_steps` takes them


@dataclass(frozen=True)
class BeamTensors:
    total: Float[Tensor, "B K"]
    ended_score: Float[Tensor, "B K"]
    ended_log_p: Float[Tensor, "B K T"]
    ended_tokens: Int[Tensor, "B K T"]
    ended_length: Int[Tensor, "B K"]
    penalty: Float[Tensor, " lengths"]  # what a score is divided by, of each length
    early_stopping: bool | Literal["never"]


class EngineDecoder(ABC):
    """A decoder as one engine executes it. Search steps this; the signatures are those of `Decoder`."""

    compiled: bool = (
        False  # steps run without Python's lock, so that several threads can search at once
    )
    static: bool = False  # every step is the same kernels on the same memory, so that a CUDA graph can record it
    admits: bool = True  # sequences can be admitted into a state that has stepped

    @abstractmethod
    def start(
        self, memory: Memory | None, *, batch: int, capacity: int, beams: int = 1
    ) -> DecoderState:
        """The state before the first token. With a capacity of 0 it can only be admitted into another state."""

    @abstractmethod
    def step(
        self, tokens: Int[Tensor, " BK"], state: DecoderState
    ) -> tuple[Float[Tensor, "BK V"], DecoderState]:
        """Logits after one more token of every hypothesis, and the new state. The next step may overwrite both."""

    def prefill(self, tokens: Int[Tensor, "B T"], state: DecoderState) -> DecoderState | None:
        """The state after these tokens, read at once by all hypotheses of a sequence. `state` has not stepped yet.

        It equals that after as many steps, up to rounding. None: not supported here, and nothing has changed.
        """
        return None

    def search(
        self,
        tokens: Int[Tensor, "B K"],
        state: DecoderState,
        loop: SearchLoop,
        bounds: LoopBounds,
        candidates: Candidates | None = None,
    ) -> tuple[int, DecoderState] | None:
        """Take steps within these bounds, at least one; the number of steps, and the new state.

        Overwrites `tokens`, the last ones, and the tensors of the loop. The result is that of `step` and the strategy's
        `advance`, token for token and bit for bit; with `candidates`, whose logits alone are computed, up to rounding.
        None: not supported here, and nothing has changed.
        """
        return None

    def greedy_steps(
        self, tokens: Int[Tensor, "B K"], state: DecoderState, loop: SearchLoop, count: int
    ) -> DecoderState | None:
        """Take `count` steps of greedy search without Python or other kernels between them; the new state.

        Overwrites what `search` does, and has its result. It does not end early: finished slots do not change.
        None: not supported here, and nothing has changed.
        """
        return None

    def refresh(self, model: Seq2Seq) -> bool:
        """Copy the decoder's weights again if they have changed since they were copied; whether they had."""
        return False


class Engine(ABC):
    """Accelerates models on one kind of device. Both methods return None for what the engine does not support."""

    @abstractmethod
    def decoder_for(self, model: Seq2Seq, options: EngineOptions) -> EngineDecoder | None:
        """The model's decoder as this engine executes it."""

    @abstractmethod
    def encode(
        self, model: Seq2Seq, source: Source, *, half: bool, int8: bool = False
    ) -> Memory | None:
        """The memory of a source; with `half`, linear layers in bfloat16; with `int8`, int8 weights if possible."""


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

    def reserve(self, steps: int = 1) -> int:
        """Have room for `steps` more tokens of every output at least; for how many there is room then."""
        return steps

    def prompts(self, count: int) -> Int[Tensor, "B T"] | None:
        """The first `count` tokens of every slot's prompt; None where a search must take a step for each."""
        return None

    def skip(self, slots: Slots, prompts: Int[Tensor, "n T"]) -> None:
        """Take these tokens, which `prompts` gave, as generated in these slots, in place of a step for each."""
        raise NotImplementedError

    def loop(self) -> SearchLoop | None:
        """What a loop without Python needs; None where the strategy or a logits processor is in Python only."""
        return None

    @abstractmethod
    def advance(
        self, logits: Float[Tensor, "B K V"]
    ) -> tuple[Int[Tensor, "B K"], Int[Tensor, "B K"] | None]:
        """The next tokens, and the hypothesis each continues (None: its own). May overwrite the logits."""
