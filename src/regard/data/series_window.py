"""A long series in memory, and windows of it: the sources and the targets of examples."""

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from regard.data.columns import SlicedRows
from regard.data.statistics import Statistics

Side = Literal["source", "target"]


@dataclass(frozen=True, eq=False, repr=False)
class Series:
    """Some rows of one series.

    name     of its group, if it has one, and its file
    first    the number of its first row in the series, from 0
    values   (rows, channels), those that are forecast first; NaN where a value is missing
    given    (rows, further channels) of the calendar
    targets  how many channels are forecast
    """

    name: str
    first: int
    values: NDArray[np.float64]
    given: NDArray[np.float64]
    targets: int
    normalized: dict[str, tuple[Statistics, NDArray[np.float32]]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.values)

    def side(self, side: Side) -> NDArray[np.float64]:
        """All rows, with the channels of this side of an example."""
        if side == "target":
            return self.values[:, : self.targets]
        return np.concatenate((self.values, self.given), axis=1)

    def normalized_side(self, side: Side, statistics: Statistics) -> NDArray[np.float32]:
        """The same, normalized; computed once."""
        known = self.normalized.get(side)
        if known is None or known[0] is not statistics:
            known = statistics, statistics.normalize(self.side(side))
            self.normalized[side] = known
        return known[1]

    def rows(self, start: int, stop: int) -> "Series":
        """Some of its rows as a series."""
        return Series(
            self.name,
            self.first + start,
            self.values[start:stop],
            self.given[start:stop],
            self.targets,
        )


@dataclass(frozen=True, eq=False, repr=False)
class Window:
    """Consecutive rows of a series, as the source or the target of an example."""

    series: Series
    start: int
    stop: int
    side: Side

    def __len__(self) -> int:
        return self.stop - self.start

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.series.side(self.side)[self.start : self.stop], dtype=dtype)

    def __repr__(self) -> str:
        first = self.series.first + self.start + 1
        return f"{self.series.name}, rows {first} to {first + len(self) - 1}"

    def encoded(self, statistics: Statistics) -> SlicedRows:
        """The normalized rows, as a part of those of the series."""
        whole = self.series.normalized_side(self.side, statistics)
        return SlicedRows(whole, self.start, self.stop)
