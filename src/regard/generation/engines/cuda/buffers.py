"""The buffers that the steps of a search read and write. On a GPU, steps are recorded as CUDA graphs.

A recorded step works on fixed memory: whatever it makes anew is copied back to where the old tensor was. Buffers are
kept with their recordings for the next search of the same size.
"""

from collections.abc import Callable, Hashable, Iterator
from copy import copy
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import torch

from regard.core.shapes import Int, Tensor
from regard.generation.engines.base import EngineDecoder, LoopBounds, SearchStrategy
from regard.generation.engines.cuda.cuda_graphs import GraphRecorder
from regard.generation.engines.cuda.static_decoder import StaticState, tensors_of
from regard.model.interfaces import DecoderState
from regard.model.kv_cache import Slots
from regard.model.memory import Memory

BEGINNINGS, BEGINNING_ROWS = (
    4,
    64,
)  # recorded at most, of so many hypotheses: each holds all keys of its sources
SHARE = 8  # kept buffers may use an eighth of a GPU's memory
StrategyType = TypeVar("StrategyType", bound=SearchStrategy)


class DecodeBuffers(Generic[StrategyType]):
    """A decoder, its state, a search strategy with the generated tokens, and the last tokens."""

    state: DecoderState | None
    decoder: EngineDecoder | None

    def __init__(
        self, decoder: EngineDecoder, strategy: StrategyType, table: Int[Tensor, "B columns"],
        state: DecoderState | None, *, recorded: bool = False,
    ) -> None:  # fmt: skip
        self.decoder, self.strategy, self.state = decoder, strategy, state
        self.tokens = torch.zeros_like(strategy.generated.tokens[:, :, 0])
        self.table = table  # the parameters of admitted requests, where a recording reads them
        self.static, self.recorded = (
            decoder.static,
            recorded,
        )  # whether memory is fixed, and steps are recorded
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
        """Reset a static state to before the first step, write requests, and fill `count` slots with this memory."""
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
        """Read the first `count` tokens of every prompt at once; False: nothing has changed, take steps."""
        assert self.decoder is not None
        assert self.state is not None
        prompts = None if self.static else self.strategy.prompts(count)
        if prompts is None:
            return False
        state = self.decoder.prefill(
            torch.cat((self.tokens[:, :1], prompts[:, :-1]), 1), self.state
        )
        if state is None:
            return False
        self.state, self.tokens = state, prompts[:, -1:].repeat(1, self.tokens.shape[1])
        self.strategy.skip(slice(len(prompts)), prompts)
        return True

    def prefill_slot(self, slot: int, count: int) -> bool:
        """As `prefill`, of one slot, whose sequence was admitted last and has not stepped."""
        assert self.decoder is not None
        prompts = None if self.static or not self.decoder.admits else self.strategy.prompts(count)
        if prompts is None:
            return False
        slots = torch.tensor([slot], device=self.tokens.device)
        fresh, prompt = self.decoder.start(None, batch=1, capacity=count), prompts[slots]
        filled = self.decoder.prefill(torch.cat((self.tokens[slots, :1], prompt[:, :-1]), 1), fresh)
        if filled is None:
            return False
        self.admit(slots, filled)
        self.tokens[slots] = prompt[:, -1:]
        self.strategy.skip(slots, prompt)
        return True

    def steps_until(self, bounds: LoopBounds) -> int:
        """Take steps within these bounds: how many. Without a compiled loop, one step."""
        assert bounds.steps > 0
        assert self.decoder is not None
        assert self.state is not None
        room = self.strategy.reserve()
        loop = None if self.static or self.tokens.is_cuda else self.strategy.loop()
        if loop is not None:
            self.tokens = self.tokens.contiguous()
            bounds = replace(bounds, steps=min(bounds.steps, room))
            searched = self.decoder.search(self.tokens, self.state, loop, bounds)
            if searched is not None:
                taken, self.state = searched
                return taken
        self.steps(1)
        return 1

    def steps(self, count: int) -> None:
        """Take `count` steps of every hypothesis, without waiting for the device."""
        assert count > 0
        if not self.static:
            for _ in range(count):
                self.strategy.reserve()
                self.state, self.tokens = self._step()
        elif not isinstance(self.state, StaticState) or self.state.reserve(count):
            self.run(
                count, lambda: self._static_steps(count)
            )  # in one recording: between two a GPU is idle
        else:  # the cache fills up on the way
            for _ in range(count):
                self.state.reserve()
                self.run(1, lambda: self._static_steps(1))

    def _step(self) -> tuple[DecoderState, Int[Tensor, "B K"]]:
        assert self.decoder is not None
        assert self.state is not None
        logits, state = self.decoder.step(self.tokens.flatten(), self.state)
        tokens, parents = self.strategy.advance(logits.view(*self.tokens.shape, -1))
        return state if parents is None else state.follow(parents), tokens

    def _static_steps(self, count: int) -> None:
        """Steps after each of which every tensor is where it was."""
        assert self.decoder is not None
        assert self.state is not None
        loop = self.strategy.loop()
        if (
            loop is not None
            and self.decoder.greedy_steps(self.tokens, self.state, loop, count) is not None
        ):
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
        """Put the states of new sequences into these slots."""
        assert self.state is not None
        admitted = self.state.admit(slots, fresh)
        if self.static:
            self._settle(admitted)
        else:
            self.state = admitted

    def keep(self, slots: Int[Tensor, " n"]) -> "DecodeBuffers[StrategyType]":
        """Smaller buffers with these slots only."""
        assert self.decoder is not None
        assert self.state is not None
        strategy = copy(self.strategy)
        strategy.keep(slots)
        state, table = self.state.reorder(slots), self.table[slots]
        smaller = DecodeBuffers(self.decoder, strategy, table, state, recorded=self.recorded)
        smaller.tokens = self.tokens[slots]
        return smaller

    def copy_from(self, other: "DecodeBuffers[StrategyType]") -> None:
        """Copy the content of other buffers of the same size."""
        for old, new in zip(self.tensors(), other.tensors(), strict=True):
            _overwrite(old, new)
        if isinstance(self.state, StaticState) and isinstance(other.state, StaticState):
            self.state.steps = other.state.steps

    @cached_property
    def nbytes(self) -> int:
        """Of all tensors."""
        return sum(x.nbytes for x in self.tensors())

    def tensors(self) -> list[Tensor]:
        return [*(x for _, _, x in self._strategy_tensors()), self.tokens, *tensors_of(self.state)]

    def _strategy_tensors(self) -> Iterator[tuple[object, str, Tensor]]:
        for owner in (self.strategy, self.strategy.generated):
            yield from (
                (owner, name, x) for name, x in vars(owner).items() if isinstance(x, Tensor)
            )


class BufferPool(Generic[StrategyType]):
    """Buffers of one decoder that no search is using."""

    def __init__(self) -> None:
        self.kept: dict[Hashable, DecodeBuffers[StrategyType]] = {}

    def take(self, key: Hashable) -> DecodeBuffers[StrategyType] | None:
        buffers = self.kept.pop(key, None)
        if buffers is not None and isinstance(buffers.state, StaticState):
            buffers.state.steps = 0  # `begin` resets the rest
        return buffers

    def put(self, key: Hashable, buffers: DecodeBuffers[StrategyType]) -> None:
        """Keep buffers, and release the least recently used ones beyond the limit of memory."""
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
