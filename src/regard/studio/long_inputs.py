"""Attention maps of long inputs for a client that zooms and pans: exact tiles, max-pooled levels, single rows.

Level 0 of a map has a point for each weight; a point of level L is the largest of 2^L × 2^L weights. A tile is a
square of SIDE points. Tiles of low levels are computed when they are asked for. Those of high levels come from one grid
of at most GRID × GRID points, which is computed once for a head, in strips of rows, together with the entropy of every
row: memory grows with the length of the input, not with its square.
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from math import ceil, log2
from threading import Lock
from typing import ClassVar

import torch
from msgspec import Struct
from msgspec.json import encode
from torch.nn import functional as F

from regard.api.look import look
from regard.core.errors import InvalidArgument
from regard.core.shapes import Float, Tensor
from regard.inference.predictor import Predictor
from regard.interpret.look import GeneratedText, Look
from regard.interpret.maps import AttentionMap
from regard.kernels.attention.weights import entropy
from regard.serving.scheduler.jobs import BatchedWork
from regard.studio.model_cache import ModelCache
from regard.tasks.inputs import InputValue

SIDE = 256  # points of a tile's side
GRID = 1024  # points of a side of the grid that high levels come from
TOGETHER = 1 << 21  # weights in memory at once
STRIP = 1 << 26  # weights that one job computes at most
MOST_INPUTS = 8  # that are open: those that were opened last
KEPT = 2  # looks of a model that are kept: those that were used last
LONGEST = 1 << 16  # tokens of an input, where the model has no limit of its own
TOP = 16  # largest weights of a row


class LongMap(Struct, frozen=True):
    """One attention module. `grid_level` is the first level that comes from the grid, `levels` their number."""

    name: str
    kind: str
    heads: int
    rows: int
    keys: int
    causal: bool
    levels: int
    grid_level: int
    query_side: str
    key_side: str


class LongInput(Struct, frozen=True):
    """The names of positions, and the maps between them; weights are asked for tile by tile, of `side` points a side.

    id   names the input when these are asked for
    """

    id: str
    side: int
    tokens: dict[
        str, list[str]
    ]  # by side: "source", "output"; of self-attention the tokens that were read
    maps: list[LongMap]


class LongRow(Struct, frozen=True):
    """One row of one head: its largest weights, in descending order, with their keys."""

    keys: list[int]
    weights: list[float]
    entropy: float


class LongOverview(Struct, frozen=True):
    """How far the grid of a head is computed. `entropy` has a mean for each point of the grid's side."""

    rows: int
    complete: bool
    entropy: list[float]
    mean_entropy: float
    largest: float


@dataclass
class _Grid:
    """The largest weights of squares of 2^level a side, row strip by row strip, and sums of entropies."""

    level: int
    points: Float[Tensor, "y x"]
    entropies: Float[Tensor, " y"]
    done: int = 0  # rows


@dataclass
class _Opened:
    look: Look
    grids: dict[tuple[str, int], _Grid] = field(default_factory=dict)


# Shared by the schedulers of all devices of this process; the looks at them belong to the model of one.
_inputs: OrderedDict[str, InputValue] = OrderedDict()
_opened = ModelCache(OrderedDict[str, _Opened])
_lock = Lock()  # held while any of these is read or changed, and not while an input is looked at


def _named(given: InputValue) -> str:
    return sha256(repr(given).encode()).hexdigest()[:24]


def _remembered(given: InputValue) -> str:
    """The name of an input that is opened."""
    name = _named(given)
    with _lock:
        _inputs[name] = given
        _inputs.move_to_end(name)
        while len(_inputs) > MOST_INPUTS:
            _inputs.popitem(last=False)
    return name


def _of(predictor: Predictor, name: str) -> _Opened:
    """The look at an input: kept, or made anew where it was displaced."""
    with _lock:
        given = _inputs.get(name)
    if given is None:
        raise InvalidArgument(
            "id",
            wanted="an input that is open",
            got="another",
            remedy="Open it: POST /studio/long.",
        )
    kept = _opened.of(predictor)
    with _lock:
        opened = kept.get(name)
    if opened is None:
        output = None if predictor.recipe.data.source_fields else ""
        opened = _Opened(look(predictor, given, output=output, max_source_length=LONGEST))
    with _lock:
        kept[name] = opened
        kept.move_to_end(name)
        while len(kept) > KEPT:
            kept.popitem(last=False)
    return opened


def levels(each: AttentionMap) -> int:
    """Levels of a map, the last of which is one tile."""
    return 1 + max(0, ceil(log2(max(1, *each.size) / SIDE)))


def grid_level(each: AttentionMap) -> int:
    return max(0, ceil(log2(max(1, *each.size) / GRID)))


@dataclass(frozen=True)
class OpenLongInput(BatchedWork):
    """A look at one input, which is kept for tiles of its maps: a `LongInput` as JSON."""

    most: ClassVar[int] = 1

    @property
    def few_threads(self) -> bool:
        return True

    @property
    def group(self) -> Hashable:
        return self.locks

    @property
    def locks(self) -> Hashable:
        return _named(self.input)

    def compute(self, predictor: Predictor, works: Sequence["OpenLongInput"]) -> Sequence[bytes]:
        names = [_remembered(work.input) for work in works]
        return [encode(_described(name, _of(predictor, name).look)) for name in names]


def _described(name: str, seen: Look) -> LongInput:
    tokens = {"source": [token for source in seen.sources[:1] for token in source.tokens]}
    if isinstance(seen.output, GeneratedText):
        tokens |= {"output": list(seen.output.tokens), "read": list(seen.output.read)}
    maps = [
        LongMap(
            each.name, each.kind, each.heads, *each.size, each.causal, levels(each), grid_level(each),
            each.query_side, each.key_side,
        )
        for each in seen.maps
    ]  # fmt: skip
    return LongInput(name, SIDE, tokens, maps)


@dataclass(frozen=True)
class LongWork(BatchedWork):
    """Work on one head of an input that was opened; `input` is its name."""

    most: ClassVar[int] = 1
    map: str
    head: int

    @property
    def few_threads(self) -> bool:
        return True

    @property
    def group(self) -> Hashable:
        return self.locks

    @property
    def locks(self) -> Hashable:
        return str(self.input)

    @property
    def texts(self) -> Sequence[object]:
        return ()  # the input was read before

    def opened(self, predictor: Predictor) -> tuple[_Opened, AttentionMap]:
        opened = _of(predictor, str(self.input))
        each = opened.look[self.map]
        if not 0 <= self.head < each.heads:
            remedy = "They count from 0."
            raise InvalidArgument(
                "head", wanted=f"one of {each.heads}", got=str(self.head), remedy=remedy
            )
        return opened, each


@dataclass(frozen=True)
class TileOfMap(LongWork):
    """The points of a tile, as little-endian float32, row by row; tiles at the end are smaller than SIDE.

    Of a level that comes from a grid which is not complete yet, the rows that are known.
    """

    level: int
    row: int  # of tiles
    column: int

    def compute(self, predictor: Predictor, works: Sequence["TileOfMap"]) -> Sequence[bytes]:
        return [work._tile(predictor).numpy().astype("<f4").tobytes() for work in works]

    def _tile(self, predictor: Predictor) -> Tensor:
        opened, each = self.opened(predictor)
        (n, m), side = each.size, SIDE << max(0, self.level)
        if (
            not 0 <= self.level < levels(each)
            or not 0 <= self.row * side < n
            or not 0 <= self.column * side < m
        ):
            wanted, got = (
                f"a tile of {n} × {m} weights",
                f"level {self.level}, {self.row}, {self.column}",
            )
            raise InvalidArgument(
                "tile", wanted=wanted, got=got, remedy="Tiles and levels count from 0."
            )
        first, low = self.row * side, self.column * side
        start = grid_level(each)
        if self.level < start or (self.level == start == 0):
            return pooled(
                each,
                self.head,
                (first, min(first + side, n)),
                (low, min(low + side, m)),
                self.level,
            )
        grid = opened.grids.get((each.name, self.head))
        if grid is None:
            raise InvalidArgument(
                "tile", wanted="a grid that is computed", got="none", remedy="Ask for it first."
            )
        y, x = first >> start, low >> start
        tile = max_pool(
            grid.points[y : y + (side >> start), x : x + (side >> start)], self.level - start
        )
        return (
            tile if grid.done >= n else tile[: max(0, (grid.done >> self.level) - self.row * SIDE)]
        )


@dataclass(frozen=True)
class OverviewStep(LongWork):
    """The next strip of the grid of a head; how far it is: a `LongOverview` as JSON."""

    def compute(self, predictor: Predictor, works: Sequence["OverviewStep"]) -> Sequence[bytes]:
        return [encode(work._step(predictor)) for work in works]

    @torch.no_grad()
    def _step(self, predictor: Predictor) -> LongOverview:
        opened, each = self.opened(predictor)
        (n, m), level = each.size, grid_level(each)
        shape = (n + (1 << level) - 1) >> level, (m + (1 << level) - 1) >> level
        grid = opened.grids.setdefault(
            (each.name, self.head), _Grid(level, torch.zeros(shape), torch.zeros(shape[0]))
        )
        step = max(1, STRIP // max(1, m) >> level) << level  # whole points
        last = min(n, grid.done + step)
        _fill(grid, each, self.head, last)
        sizes = torch.full((shape[0],), 1 << level)
        sizes[-1] = n - ((shape[0] - 1) << level)
        means = grid.entropies / sizes
        return LongOverview(
            grid.done,
            grid.done >= n,
            means.tolist(),
            float(grid.entropies.sum()) / n,
            float(grid.points.max()),
        )


def _fill(grid: _Grid, each: AttentionMap, head: int, last: int) -> None:
    """Compute the grid up to a row."""
    m, size = each.size[1], 1 << grid.level
    rows = max(1, TOGETHER // max(1, m) // size) * size
    while grid.done < last:
        first, end = grid.done, min(last, grid.done + rows)
        weights = each.tile(slice(first, end), slice(0, m), [head])[0].cpu()  # (R, M)
        strip = max_pool(weights, grid.level)
        y = first >> grid.level
        grid.points[y : y + len(strip)] = strip
        grid.entropies.index_add_(0, torch.arange(first, end) >> grid.level, entropy(weights))
        grid.done = end


@dataclass(frozen=True)
class RowOfMap(LongWork):
    """The largest weights of a row, and its entropy: a `LongRow` as JSON."""

    row: int

    def compute(self, predictor: Predictor, works: Sequence["RowOfMap"]) -> Sequence[bytes]:
        return [encode(work._row(predictor)) for work in works]

    def _row(self, predictor: Predictor) -> LongRow:
        _, each = self.opened(predictor)
        weights = each.weights([self.row], [self.head])[0, 0].cpu()
        best = weights.topk(min(TOP, len(weights)))
        shown = best.values > 0
        return LongRow(
            best.indices[shown].tolist(), best.values[shown].tolist(), float(entropy(weights))
        )


@torch.no_grad()
def pooled(
    each: AttentionMap, head: int, rows: tuple[int, int], keys: tuple[int, int], level: int
) -> Tensor:
    """The largest of every 2^level × 2^level weights of ranges of rows and keys, which begin at multiples of it."""
    size, wide = 1 << level, keys[1] - keys[0]
    step = max(1, TOGETHER // max(1, wide) // size) * size
    strips = [
        max_pool(
            each.tile(slice(first, min(first + step, rows[1])), slice(*keys), [head])[0].cpu(),
            level,
        )
        for first in range(rows[0], rows[1], step)
    ]
    return torch.cat(strips)


def max_pool(points: Float[Tensor, "y x"], level: int) -> Float[Tensor, "Y X"]:
    """The largest of every 2^level × 2^level points; squares at the end may be smaller."""
    if level == 0 or not points.numel():
        return points
    return F.max_pool2d(points[None, None], 1 << level, ceil_mode=True)[0, 0]
