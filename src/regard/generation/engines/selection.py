"""Chooses the engine of a search: compiled C++ on a CPU, CUDA graphs on a GPU, plain PyTorch for everything else."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from regard.core.errors import InvalidArgument
from regard.core.shapes import Int, Tensor
from regard.generation.engines.base import Engine, EngineDecoder, slides
from regard.generation.engines.buffers import DecodeBuffers, StrategyType
from regard.generation.engines.cpu.engine import CpuEngine
from regard.generation.engines.cuda.buffers import BufferPool, StaticBuffers, buffer_pool
from regard.generation.engines.cuda.engine import CudaEngine
from regard.generation.engines.query_positions import PositionedDecoder
from regard.generation.engines.sliding_window import SlidingWindowDecoder
from regard.generation.engines.torch import PyTorchEngine
from regard.model.capture import intercepting_here
from regard.model.interfaces import DecoderState, Source
from regard.model.memory import Memory
from regard.model.seq2seq import Seq2Seq

COMPILED = CpuEngine()
ENGINES: tuple[Engine, ...] = (
    COMPILED,
    CudaEngine(),
    PyTorchEngine(),
)  # the first that supports a model is used


def decoder_for(
    model: Seq2Seq,
    *,
    max_length: int,
    window: int | None = None,
    half: bool = False,
    int8: bool = False,
    constant_weights: bool = False,
) -> EngineDecoder:
    """The decoder of a model as the first engine that supports it executes it, with a sliding window if need be.

    constant_weights   whether the model's weights never change
    """
    found = (
        engine.decoder_for(model, max_length=max_length, window=window, half=half, int8=int8)
        for engine in _engines(constant_weights=constant_weights)
    )
    decoder = next(each for each in found if each is not None)
    longer = slides(max_length, window)
    if intercepting_here():
        if longer:  # positions in the window are not those in the output
            wanted = f"at most {window} tokens with the prompt, the model's window, while attention is edited"
            raise InvalidArgument(
                "max_length", wanted=wanted, got=str(max_length), remedy="Lower it."
            )
        return PositionedDecoder(decoder)
    if longer and window is not None:
        return SlidingWindowDecoder(decoder, window)
    return decoder


def _engines(*, constant_weights: bool) -> Iterator[Engine]:
    """The engines in the order in which they are asked."""
    for engine in ENGINES:
        yield engine.with_constant_weights() if constant_weights else engine


def new_buffers(
    decoder: EngineDecoder,
    strategy: StrategyType,
    table: Int[Tensor, "B columns"],
    state: DecoderState | None,
    *,
    fused: bool,
    recorded: bool,
) -> DecodeBuffers[StrategyType]:
    """The buffers that the steps of this decoder read and write."""
    if decoder.static:
        return StaticBuffers(decoder, strategy, table, state, fused=fused, recorded=recorded)
    return DecodeBuffers(decoder, strategy, table, state, fused=fused)


def kept_buffers(decoder: EngineDecoder) -> BufferPool[Any]:
    """The recorded buffers of a decoder that no search is using."""
    return buffer_pool(decoder)


def encode_each(
    model: Seq2Seq,
    sources: Sequence[Any],
    collate: Callable[[list[Any]], Source],
    *,
    int8: bool = False,
    constant_weights: bool = False,
) -> Memory:
    """The memory of sources on a CPU, each of which has the states that it has alone, bit for bit.

    The compiled encoder gives these for a whole batch. PyTorch rounds otherwise in another batch: one by one, then.
    """
    engine = COMPILED.with_constant_weights() if constant_weights else COMPILED
    if len(sources) > 1 and engine.encodes(model):
        memory = engine.encode(model, collate([*sources]), half=False, int8=int8)
        if memory is not None:
            return memory
    return Memory.joined(
        [
            encode(model, collate([each]), int8=int8, constant_weights=constant_weights)
            for each in sources
        ]
    )


def encode(
    model: Seq2Seq,
    source: Source,
    *,
    half: bool = False,
    int8: bool = False,
    constant_weights: bool = False,
) -> Memory:
    """The memory of a source, by the first engine that supports the encoder; in bfloat16 or int8 if asked for."""
    engines = _engines(constant_weights=constant_weights)
    found = (engine.encode(model, source, half=half, int8=int8) for engine in engines)
    return next(memory for memory in found if memory is not None)
