"""What an engine is: it takes the steps of a decoder, and encodes, on one kind of device.

An engine is an implementation of a decoder's step (and of the encoder) for one kind of device: compiled C++ on a CPU,
static buffers and CUDA graphs on a GPU, plain PyTorch everywhere. Engines equal PyTorch up to rounding.

Under `capture_attention` a search keeps its engine, whose decoder publishes each step's queries, keys and values as
PyTorch's does, and no bit of the output changes. On a GPU the same decoding kernels are launched one by one instead of
as CUDA graphs, and encoder attention is that of a second pass without padding, equal up to rounding. Interception,
which replaces attention outputs, is supported by the PyTorch engine only.
"""

from abc import ABC, abstractmethod

from regard.core.shapes import Float, Int, Tensor
from regard.generation.engines.loop import Candidates, LoopBounds, SearchLoop
from regard.model.interfaces import DecoderState, Source
from regard.model.memory import Memory
from regard.model.seq2seq import Seq2Seq

LEAST_PROMPT = 16  # tokens of a prompt that is read by itself: a step of the batch reads a token of every shorter one


def slides(max_length: int, window: int | None) -> bool:
    """Whether an output of so many tokens is longer than the window in which a decoder reads."""
    return window is not None and max_length > window


class EngineDecoder(ABC):
    """A decoder as one engine executes it. Search steps this; the signatures are those of `Decoder`."""

    compiled: bool = (
        False  # steps run without Python's lock, so that several threads can search at once
    )
    static: bool = False  # every step is the same kernels on the same memory, so that a CUDA graph can record it
    admits: bool = True  # sequences can be admitted into a state that has stepped
    # The options of a search that `search` or `greedy_steps` carry out (`engines.fused_options`).
    fused: frozenset[str] = frozenset()
    max_beams: int = 0  # hypotheses of a sequence, at most, for which they do

    def fuses(self, options: frozenset[str], beams: int) -> bool:
        """Whether the engine carries out a search with all of these options by itself."""
        return beams <= self.max_beams and options <= self.fused

    def batch_size(self, count: int, *, up: bool = True) -> int:
        """The slots of a batch where `count` are wanted, or, unless `up`, where there are at most so many."""
        return count

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
    """Accelerates models on one kind of device.

    `decoder_for` and `encode` return None for what the engine does not support.
    """

    def with_constant_weights(self) -> "Engine":
        """The same engine for models whose weights never change: it does not compare them with its copies."""
        return self

    @abstractmethod
    def decoder_for(
        self,
        model: Seq2Seq,
        *,
        max_length: int,
        window: int | None = None,
        half: bool = False,
        int8: bool = False,
    ) -> EngineDecoder | None:
        """The model's decoder as this engine executes it.

        max_length   tokens of an output, with its prefix
        window       the most tokens that the decoder reads at once
        half         linear layers in bfloat16
        int8         weights in int8
        """

    @abstractmethod
    def encode(
        self, model: Seq2Seq, source: Source, *, half: bool, int8: bool = False
    ) -> Memory | None:
        """The memory of a source; with `half`, linear layers in bfloat16; with `int8`, int8 weights if possible."""
