"""A long series in memory, and windows of it: the sources and the targets of examples."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from regard.data.columns import SlicedRows
from regard.data.statistics import Statistics

Side = Literal["source", "target"]
Form = Callable[[datetime], str]


def _forms() -> Iterator[Form]:
    yield lambda time: time.date().isoformat()
    for separator in (" ", "T"):
        for precision in ("seconds", "minutes", "hours", "milliseconds", "microseconds"):
            yield partial(datetime.isoformat, sep=separator, timespec=precision)


FORMS = tuple(_forms())  # in which time stamps may be written


@dataclass(frozen=True)
class TimeStamps:
    """The time stamps of consecutive rows, as their table has them.

    written   of each row
    step      from one row to the next, as a number or a span of time; None: steps are unequal
    """

    written: tuple[str, ...]
    step: timedelta | float | None = None

    def rows(self, start: int, stop: int) -> "TimeStamps":
        """Those of some rows."""
        return TimeStamps(self.written[start:stop], self.step)

    def after(self, row: int, count: int) -> tuple[str, ...] | None:
        """Those of as many rows after this one; None where they do not follow from the step."""
        known = self.written[row + 1 : row + 1 + count]
        if len(known) == count:
            return known
        if self.step is None:
            return None
        last = len(self.written) - 1
        steps = range(row + 1 + len(known) - last, row + 1 + count - last)
        further = [stepped(self.written[last], self.step, number) for number in steps]
        return (*known, *further)


def stepped(stamp: str, step: timedelta | float, count: int) -> str:
    """The time stamp so many steps after another one, written in the same form."""
    if not isinstance(step, timedelta):
        return f"{float(stamp) + count * step:.15g}"
    first = datetime.fromisoformat(stamp.strip())
    found = first + count * step
    for form in FORMS:
        loses_nothing = datetime.fromisoformat(form(found)) == found
        if loses_nothing and form(first) == stamp.strip():
            return form(found)
    return found.isoformat(" ")


@dataclass(frozen=True, eq=False, repr=False)
class Series:
    """Some rows of one series.

    name     of its group, if it has one, and its file
    first    the number of its first row in the series, from 0
    values   (rows, channels), those that are forecast first; NaN where a value is missing
    given    (rows, further channels) of the calendar
    targets  how many channels are forecast
    names    of all channels, those of the calendar last
    stamps   of the rows, where they have times
    """

    name: str
    first: int
    values: NDArray[np.float64]
    given: NDArray[np.float64]
    targets: int
    names: tuple[str, ...] = ()
    stamps: TimeStamps | None = None
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
            self.names,
            None if self.stamps is None else self.stamps.rows(start, stop),
        )

    def names_of(self, side: Side) -> tuple[str, ...]:
        """The names of the channels of this side of an example; none where they have none."""
        return self.names[: self.targets] if side == "target" else self.names


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

    @property
    def stamps(self) -> tuple[str, ...] | None:
        """The time stamps of its rows."""
        stamps = self.series.stamps
        return None if stamps is None else stamps.written[self.start : self.stop]

    def stamps_after(self, count: int) -> tuple[str, ...] | None:
        """The time stamps of as many rows after it, also where its series ends before them."""
        stamps = self.series.stamps
        return None if stamps is None else stamps.after(self.stop - 1, count)

    def __repr__(self) -> str:
        stamps = self.stamps
        if stamps:
            return f"{self.series.name}, {stamps[0]} to {stamps[-1]}"
        first = self.series.first + self.start + 1
        return f"{self.series.name}, rows {first} to {first + len(self) - 1}"

    def encoded(self, statistics: Statistics) -> SlicedRows:
        """The normalized rows, as a part of those of the series."""
        whole = self.series.normalized_side(self.side, statistics)
        return SlicedRows(whole, self.start, self.stop)
