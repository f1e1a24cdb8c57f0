"""Buffers whose steps are the same kernels on the same memory, so that they can be recorded as CUDA graphs.

A recorded step works on fixed memory: whatever it makes anew is copied back to where the old tensor was. Buffers are
kept with their recordings for the next search of the same size.
"""

from collections.abc import Callable, Hashable, Iterator
from functools import cached_property, lru_cache
from typing import Any, Generic
from weakref import WeakKeyDictionary

import torch

from regard.core.shapes import Int, Tensor
from regard.generation.engines.base import EngineDecoder
from regard.generation.engines.buffers import DecodeBuffers, StrategyType
from regard.generation.engines.cuda.static_decoder import StaticState, tensors_of
from regard.generation.engines.loop import LoopBounds
from regard.kernels.cuda_graphs import GraphRecorder
from regard.model.interfaces import DecoderState
from regard.model.kv_cache import Slots
from regard.model.memory import Memory

# Beginnings that are recorded at most, of so many hypotheses: each holds all keys of its sources.
BEGINNINGS = 4
BEGINNING_ROWS = 64
SHARE = 8  # kept buffers may use an eighth of a GPU's memory


class StaticBuffers(DecodeBuffers[StrategyType]):
    """Decode buffers in fixed memory.

    recorded   whether steps are recorded
    """

    def __init__(
        self,
        decoder: EngineDecoder,
        strategy: StrategyType,
        table: Int[Tensor, "B columns"],
        state: DecoderState | None,
        *,
        fused: bool = False,
        recorded: bool = False,
    ) -> None:
        super().__init__(decoder, strategy, table, state, fused=fused)
        self.recorded = recorded
        self.graphs = GraphRecorder()
        self.memories: dict[Hashable, Memory | None] = {}  # that recorded beginnings read

    def run(self, key: Hashable, work: Callable[[], None]) -> None:
        """Run work that is the same whenever it has this key, on these buffers."""
        with torch.cuda.device_of(self.tokens):  # type: ignore[no-untyped-call]
            if self.recorded:
                self.graphs.run(key, work)
            else:
                work()

    def begin(
        self,
        write: Callable[[], None],
        fill: Callable[[Memory | None], None],
        count: int,
        memory: Memory | None,
    ) -> None:
        key, kept = (count, None if memory is None else memory.states.shape), self.memories
        whole = (
            self.recorded
            and self.tokens.numel() <= BEGINNING_ROWS
            and (key in kept or len(kept) < BEGINNINGS)
        )
        if (
            whole and (read := kept.setdefault(key, memory)) is not memory
        ):  # a recording reads the first one
            assert read is not None
            assert memory is not None
            read.states.copy_(memory.states)
            read.mask.copy_(memory.mask)
            memory = read

        def work() -> None:
            if isinstance(self.state, StaticState):
                self.state.clear()
            write()
            if whole:
                fill(memory)

        self.run(("begin", key if whole else None), work)
        if not whole:
            fill(memory)

    def prefill(self, count: int) -> bool:
        return False

    def prefill_slot(self, slot: int, count: int) -> bool:
        return False

    def steps_until(self, bounds: LoopBounds) -> int:
        self.strategy.reserve()
        self.steps(1)
        return 1

    def steps(self, count: int) -> None:
        assert count > 0
        if not isinstance(self.state, StaticState) or self.state.reserve(count):
            # In one recording: between two a GPU is idle.
            self.run(count, lambda: self._static_steps(count))
        else:  # the cache fills up on the way
            for _ in range(count):
                self.state.reserve()
                self.run(1, lambda: self._static_steps(1))

    def _static_steps(self, count: int) -> None:
        """Steps after each of which every tensor is where it was."""
        assert self.decoder is not None
        assert self.state is not None
        if self.fused:
            loop = self.strategy.loop()
            if self.decoder.greedy_steps(self.tokens, self.state, loop, count) is not None:
                return
        for _ in range(count):
            before = list(self._strategy_tensors())
            state, tokens = self._step()
            for owner, name, x in before:
                _overwrite(x, getattr(owner, name))
                setattr(owner, name, x)
            self._settle(state)
            _overwrite(self.tokens, tokens)

    def _settle(self, state: DecoderState) -> None:
        """Copy a state into the memory of the one before it, if sizes are equal; else recordings are void."""
        pairs = list(zip(tensors_of(self.state), tensors_of(state), strict=True))
        if all(old.shape == new.shape for old, new in pairs):
            for old, new in pairs:
                _overwrite(old, new)
        else:
            self.state = state
            self.graphs.replays.clear()
            self.__dict__.pop("nbytes", None)

    def admit(self, slots: Slots, fresh: DecoderState) -> None:
        assert self.state is not None
        self._settle(self.state.admit(slots, fresh))

    def _like(
        self, strategy: StrategyType, table: Int[Tensor, "B columns"], state: DecoderState
    ) -> "StaticBuffers[StrategyType]":
        assert self.decoder is not None
        return StaticBuffers(
            self.decoder, strategy, table, state, fused=self.fused, recorded=self.recorded
        )

    def copy_from(self, other: DecodeBuffers[StrategyType]) -> None:
        assert isinstance(other, StaticBuffers)
        for old, new in zip(self.tensors(), other.tensors(), strict=True):
            _overwrite(old, new)
        if isinstance(self.state, StaticState) and isinstance(other.state, StaticState):
            self.state.steps = other.state.steps

    @cached_property
    def nbytes(self) -> int:
        """Of all tensors."""
        return sum(x.nbytes for x in self.tensors())

    def tensors(self) -> list[Tensor]:
        """All that steps read and write."""
        return [*(x for _, _, x in self._strategy_tensors()), self.tokens, *tensors_of(self.state)]

    def _strategy_tensors(self) -> Iterator[tuple[object, str, Tensor]]:
        for owner in (self.strategy, self.strategy.generated):
            yield from (
                (owner, name, x) for name, x in vars(owner).items() if isinstance(x, Tensor)
            )


class BufferPool(Generic[StrategyType]):
    """Buffers of one decoder that no search is using."""

    def __init__(self) -> None:
        self.kept: dict[Hashable, StaticBuffers[StrategyType]] = {}

    def take(self, key: Hashable) -> StaticBuffers[StrategyType] | None:
        buffers = self.kept.pop(key, None)
        if buffers is not None and isinstance(buffers.state, StaticState):
            buffers.state.steps = 0  # `begin` resets the rest
        return buffers

    def put(self, key: Hashable, buffers: DecodeBuffers[StrategyType]) -> None:
        """Keep buffers, and release the least recently used ones beyond the limit of memory."""
        assert isinstance(buffers, StaticBuffers)
        buffers.decoder = None  # the pool lives as long as the decoder, which is referenced weakly
        self.kept.pop(key, None)
        self.kept[key] = buffers
        while (
            sum(each.nbytes for each in self.kept.values())
            > _memory(buffers.tokens.device) // SHARE
        ):
            del self.kept[next(iter(self.kept))]


_pools: "WeakKeyDictionary[EngineDecoder, BufferPool[Any]]" = WeakKeyDictionary()


def buffer_pool(decoder: EngineDecoder) -> BufferPool[Any]:
    """The pool of a decoder. A key names the strategy among the rest."""
    return _pools.setdefault(decoder, BufferPool())


@lru_cache(maxsize=16)
def _memory(device: torch.device) -> int:
    """Bytes of a GPU's memory."""
    return torch.cuda.get_device_properties(device).total_memory


def _overwrite(old: Tensor, new: Tensor) -> None:
    if new is not old:
        old.copy_(new)
