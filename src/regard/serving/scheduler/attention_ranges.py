"""Exact attention of one input for a client: the maps of a look, in the ranges of rows and columns asked for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.api.look import look
from regard.core.errors import InvalidArgument
from regard.inference.predictor import Predictor
from regard.interpret.look import Look
from regard.interpret.maps import AttentionMap

MAX_WEIGHTS = 1 << 22  # of one answer, in all maps: 16 MiB as float32
Range = tuple[int, int]  # the first, and the one after the last


@dataclass(frozen=True)
class InspectedMap:
    """Weights of one attention module: of some heads, and of ranges of its rows (queries) and columns (keys)."""

    name: str
    kind: str
    part: str
    layer: int
    source: int
    size: Range  # rows and columns of the whole map
    heads: tuple[int, ...]
    rows: Range
    columns: Range
    row_names: tuple[str, ...]
    column_names: tuple[str, ...]
    query_side: str
    key_side: str
    causal: bool
    data: bytes  # the weights: little-endian float32
    summaries: tuple[dict[str, Any], ...] | None = (
        None  # measures of each head, where they are asked for
    )

    @property
    def shape(self) -> tuple[int, int, int]:
        """Heads, rows, columns."""
        return len(self.heads), self.rows[1] - self.rows[0], self.columns[1] - self.columns[0]

    @property
    def weights(self) -> NDArray[np.float32]:
        return np.frombuffer(self.data, "<f4").reshape(self.shape)


@dataclass(frozen=True)
class InspectedAttention:
    """What a model read and generated, and where it attended to; `sources` and `output` as in `Look.as_dict`."""

    sources: tuple[dict[str, Any], ...]
    output: dict[str, Any] | None
    maps: tuple[InspectedMap, ...]


def inspect(
    predictor: Predictor,
    input: Any,
    *,
    output: str | Sequence[int] | None,
    layers: Sequence[int] | None,
    maps: Sequence[str] | None,
    heads: Sequence[int] | None,
    rows: Range | None,
    columns: Range | None,
    words: bool,
    truncate: bool,
    edits: Sequence[Mapping[str, Any]] = (),
    summaries: bool = False,
    options: Mapping[str, Any],
    prefix: str = "",
    max_weights: int = MAX_WEIGHTS,
    channel: str | int | None = None,
) -> InspectedAttention:
    """A look at one input. Memory grows with the weights asked for, which are limited, and with the input's length."""
    check_range("rows", rows)
    check_range("columns", columns)
    searched = {**options, **({"prefixes": [prefix]} if prefix else {})}
    seen = look(
        predictor,
        input,
        output=output,
        layers=layers,
        words=words,
        truncate=truncate,
        edits=edits,
        channel=channel,
        **searched,
    )
    chosen = [
        _Tile.of(each, heads, rows, columns)
        for each in ([seen[name] for name in maps] if maps else seen.maps)
    ]
    count = sum(
        len(each.heads) * prod(last - first for first, last in (each.rows, each.columns))
        for each in chosen
    )
    if (
        not 0 < count <= max_weights and seen.maps
    ):  # a model without attention has an output to look at
        sizes = [
            f"{each.map.name}: {each.map.heads} × {each.map.size[0]} × {each.map.size[1]}"
            for each in chosen
        ]
        wanted, got = f"1 to {max_weights:,} weights", f"{count:,}"
        remedy = f"Choose from heads × rows × columns of {', '.join(sizes)}."
        raise InvalidArgument("maps, heads, rows, columns", wanted=wanted, got=got, remedy=remedy)
    shown = None if seen.output is None else seen.output.as_dict()
    sources = tuple(source.as_dict() for source in seen.sources)
    return InspectedAttention(
        sources, shown, tuple(each.inspected(seen, summaries=summaries) for each in chosen)
    )


def check_range(name: str, given: Range | None) -> None:
    """Refuse one that is empty, or begins before 0."""
    if given is not None and not 0 <= given[0] < given[1]:
        wanted, remedy = (
            "the first, and the one after the last",
            "They count from 0, as in [0, 64].",
        )
        raise InvalidArgument(name, wanted=wanted, got=str(list(given)), remedy=remedy)


@dataclass(frozen=True)
class _Tile:
    """What is asked for of one map."""

    map: AttentionMap
    heads: tuple[int, ...]
    rows: Range
    columns: Range

    @staticmethod
    def of(
        each: AttentionMap, heads: Sequence[int] | None, rows: Range | None, columns: Range | None
    ) -> "_Tile":
        chosen = tuple(head for head in range(each.heads) if heads is None or head in heads)
        (first, last), (low, high) = (
            (0, size) if given is None else (min(given[0], size), min(given[1], size))
            for given, size in zip((rows, columns), each.size, strict=True)
        )
        return _Tile(each, chosen, (first, last), (low, high))

    def inspected(self, seen: Look, *, summaries: bool) -> InspectedMap:
        each, row_names, column_names = self.map, *seen.names(self.map)
        weights = each.tile(slice(*self.rows), slice(*self.columns), list(self.heads))
        measured = each.summary(0).heads() if summaries else []
        return InspectedMap(
            each.name, each.kind, each.part, each.layer, each.source, each.size, self.heads, self.rows, self.columns,
            row_names[slice(*self.rows)], column_names[slice(*self.columns)], each.query_side, each.key_side,
            each.causal, weights.cpu().numpy().astype("<f4").tobytes(),
            tuple(measured[head].as_dict() for head in self.heads) if summaries else None,
        )  # fmt: skip
