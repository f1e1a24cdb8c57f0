"""What the steps of a search read and write. On a GPU a step is recorded once for each size, and replayed.

A small model waits for its kernels to be launched, one by one, more than for their work. Replayed they start at once
and do what they did, on the same memory; so whatever a step makes anew is copied back to where the old was. What is
recorded is kept with its memory, for the next search of that size.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from copy import copy
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import torch

from regard.core.shapes import Int, Tensor
from regard.model.kv_cache import Slots
from regard.runtime.cuda.cuda_graphs import LAUNCHED, record
from regard.runtime.cuda.static_decoder import StaticDecoder, StaticState
from regard.runtime.interfaces import SearchStrategy

SHARE = 8  # of a card's memory, an eighth may lie in desks that are kept


StrategyType = TypeVar("StrategyType", bound=SearchStrategy)


class DecodeBuffers(Generic[StrategyType]):
    """A decoder, its state, a way of searching with what was said, and the last tokens."""

    def __init__(
        self,
        decoder: Any,
        strategy: StrategyType,
        first: int,
        table: Int[Tensor, "B known"],
        state: Any,
        *,
        fixed: bool = False,
        recorded: bool = False,
    ) -> None:
        self.decoder, self.strategy, self.state = decoder, strategy, state
        self.first = first  # the token before an output's first
        self.tokens = torch.full_like(strategy.generated.tokens[:, :, 0], first)
        self.table = table  # what is known of inputs as they enter, where a recording reads it
        self.fixed, self.recorded = fixed, recorded  # whether all of this stays where it is, and steps are recorded
        self.launched: Counter[Hashable] = Counter()  # how often each work was
        self.replays: dict[Hashable, Callable[[], None]] = {}

    def play(self, name: Hashable, work: Callable[[], None]) -> None:
        """Work that is the same whenever it has this name, on what lies here: launched at first, and then recorded."""
        with torch.cuda.device_of(self.tokens):  # type: ignore[no-untyped-call]
            if self.recorded and name not in self.replays and self.launched[name] >= LAUNCHED:
                self.replays[name] = record(work) or work
            self.launched[name] += 1
            self.replays.get(name, work)()

    def steps(self, count: int) -> None:
        """So many more tokens of every hypothesis; nobody waits for them."""
        assert count > 0
        if not self.fixed:
            for _ in range(count):
                self.state, self.tokens = self._step()
        elif not isinstance(self.state, StaticState) or self.state.make_room(count):
            self._at_once(count)
        else:  # the cache is full on the way
            for _ in range(count):
                self.state.make_room()
                self._at_once(1)

    def _at_once(self, count: int) -> None:
        """In one recording: between two of them a GPU stands still."""

        def work() -> None:
            for _ in range(count):
                self._stay()

        self.play(count, work)

    def _step(self) -> tuple[Any, Int[Tensor, "B K"]]:
        logits, state = self.decoder.step(self.tokens.flatten(), self.state)
        tokens, parents = self.strategy.advance(logits.view(*self.tokens.shape, -1))
        return state if parents is None else state.follow(parents), tokens

    def _stay(self) -> None:
        """A step that leaves everything in its place."""
        owners = (self.strategy, self.strategy.generated)
        before = [(owner, name, x) for owner in owners for name, x in vars(owner).items() if isinstance(x, Tensor)]
        state, tokens = self._step()
        for owner, name, x in before:
            _put(x, getattr(owner, name))
            setattr(owner, name, x)
        self._settle(state)
        _put(self.tokens, tokens)

    def _settle(self, state: Any) -> None:
        """A state in the memory of the one before it, where it is as large."""
        pairs = list(zip(_tensors(self.state), _tensors(state), strict=True))
        if all(old.shape == new.shape for old, new in pairs):
            for old, new in pairs:
                _put(old, new)
        else:
            self.state = state
            self.replays.clear()

    def admit(self, rows: Slots, fresh: Any) -> None:
        """Inputs whose outputs have not begun, in these places."""
        entered = self.state.admit(rows, fresh)
        if self.fixed:
            self._settle(entered)
        else:
            self.state = entered

    def keep(self, rows: Int[Tensor, " n"]) -> "DecodeBuffers[StrategyType]":
        """A desk for these places alone."""
        strategy = copy(self.strategy)
        strategy.keep(rows)
        kind = {"fixed": self.fixed, "recorded": self.recorded}
        desk = DecodeBuffers(self.decoder, strategy, self.first, self.table[rows], self.state.reorder(rows), **kind)
        desk.tokens = self.tokens[rows]
        return desk

    def take_over(self, other: "DecodeBuffers[StrategyType]") -> None:
        """All that lies on another desk of the same size."""
        for old, new in zip(self.tensors(), other.tensors(), strict=True):
            _put(old, new)
        if isinstance(self.state, StaticState):
            self.state.steps = other.state.steps

    def tensors(self) -> Iterator[Tensor]:
        owners = (self.strategy, self.strategy.generated)
        yield from (x for owner in owners for x in vars(owner).values() if isinstance(x, Tensor))
        yield self.tokens
        yield from _tensors(self.state)


class BufferPool:
    """Those that no search works at, of one decoder."""

    def __init__(self) -> None:
        self.kept: dict[Hashable, DecodeBuffers[Any]] = {}

    def take(self, key: Hashable) -> DecodeBuffers[Any] | None:
        found = self.kept.pop(key, None)
        if found is not None and isinstance(found.state, StaticState):
            found.state.restart()
        return found

    def put(self, key: Hashable, desk: DecodeBuffers[Any]) -> None:
        """Keep it, and let those go that have lain there longest."""
        desk.decoder = None  # whose weak reference decides how long all this lives
        self.kept.pop(key, None)
        self.kept[key] = desk
        sizes = {key: sum(x.nbytes for x in each.tensors()) for key, each in self.kept.items()}
        while sum(sizes.values()) > _memory(desk.tokens.device) // SHARE:
            oldest = next(iter(sizes))
            del self.kept[oldest], sizes[oldest]


_desks: "WeakKeyDictionary[Any, BufferPool]" = WeakKeyDictionary()


def buffer_pool(decoder: Any) -> BufferPool:
    return _desks.setdefault(decoder, BufferPool())


def stays(decoder: Any) -> bool:
    """Whether a decoder's steps are the same work each time, on states of the same sizes, and ask a GPU for nothing."""
    return isinstance(decoder, StaticDecoder)


@lru_cache(maxsize=16)
def _memory(device: torch.device) -> int:
    """Bytes of a card."""
    return torch.cuda.get_device_properties(device).total_memory


def _put(old: Tensor, new: Tensor) -> None:
    if new is not old:
        old.copy_(new)


def _tensors(state: Any) -> Iterator[Tensor]:
    """All that a state is made of."""
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, list | tuple):
        for each in state:
            yield from _tensors(each)
    elif is_dataclass(state):
        for field in fields(state):
            yield from _tensors(getattr(state, field.name))
