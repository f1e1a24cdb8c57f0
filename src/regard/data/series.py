"""Windows of long series: tables read, checked by their times, split in order of time,
and cut into examples.

A series is in memory once, and on disk once for each split; windows are cut from it where they are
read. So the size of a corpus does not depend on how much its windows overlap.
"""

import csv
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.core.config import nearest
from regard.core.errors import InvalidArgument, InvalidData
from regard.core.sanitize import one_line
from regard.data import parquet, text
from regard.data.example import SPLITS, Example, Split
from regard.data.series_config import SeriesConfig
from regard.data.series_window import Series, TimeStamps, Window, stepped
from regard.data.text import Errors

logger = logging.getLogger(__name__)
SHOWN = 3  # names of series in a message
PERIODS = {"minute": 60, "hour": 24, "weekday": 7, "day": 31, "month": 12}
LARGEST_NUMBER = float(np.finfo(np.float32).max)
EMPTY = ("", "nan", "null", "none", "na", "n/a")  # cells without a value


def of_array(name: str, values: NDArray[np.float64]) -> Series:
    """A series (rows, channels) that is in memory."""
    return Series(name, 0, values, np.zeros((len(values), 0)), values.shape[1])


def windows(
    config: SeriesConfig, loaded: Iterable[Series], own: str, split: Split
) -> Iterator[Example]:
    """The windows of a split with what follows each.

    At least one; series that are too short are reported.

    own   the name of their file
    """
    stride = config.stride if split == "train" else config.evaluation_stride
    size = config.window + config.horizon
    short: list[str] = []
    found = 0
    for series in loaded:
        part = series
        if split in config.split_parts:
            part = split_rows(series, config, split)
        starts = range(0, len(part) - size + 1, stride)
        if not starts:
            short.append(series.name)
        for start in starts:
            middle = start + config.window
            source = Window(part, start, middle, "source")
            yield Example(source, Window(part, middle, start + size, "target"))
            found += 1
    if not short:
        return
    names = ", ".join(short[:SHOWN]) + (", …" if len(short) > SHOWN else "")
    if not found:
        raise InvalidData(
            own,
            wanted=(
                f"a series of at least {size} rows for the split {split!r}: a window and a horizon"
            ),
            got=f"none among {len(short)}",
            remedy="Lower data.series.window or horizon, or change data.series.split.",
        )
    _warn_of_short(own, f"{len(short)} with fewer than {size} rows in the split {split!r}", names)


@cache
def _warn_of_short(own: str, which: str, names: str) -> None:
    """Once for each split, however often it is read."""
    logger.warning("%s: series that give no window, %s: %s", own, which, names)


def split_rows(series: Series, config: SeriesConfig, split: Split) -> Series:
    """The rows of a split, with those before it that its first window looks back to."""
    ends = (0, *config.parts(len(series)), 0)
    place = SPLITS.index(split)
    start = ends[place]
    stop = ends[place + 1]
    if split != "train":
        start = max(0, start - config.window)
    return series.rows(start, max(start, stop))


def last_windows(
    config: SeriesConfig, file: str, errors: Errors, *, refuse_missing: bool
) -> Iterator[Window]:
    """The last window of each series of a file,
    of which a model forecasts what comes after the file.
    """
    loaded = load(file, config, errors, refuse_missing=refuse_missing)
    # Of a series that is split at gaps, the part after the last one.
    for series in {each.name: each for each in loaded}.values():
        if len(series) < config.window:
            raise InvalidData(
                file,
                wanted=f"at least {config.window} rows of each series, which the model reads",
                got=f"{len(series)} of {series.name}",
                remedy="Give more rows.",
            )
        yield Window(series, len(series) - config.window, len(series), "source")


def load(
    file: str, config: SeriesConfig, errors: Errors, *, refuse_missing: bool
) -> tuple[Series, ...]:
    """The series of a table, checked by their times.

    refuse_missing   whether values that are missing are refused
    """
    with text.readable(file):
        stat = Path(file).stat()
    state = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
    return _read(file, config, errors, refuse_missing, state)


@lru_cache(maxsize=4)
def _read(
    file: str,
    config: SeriesConfig,
    errors: Errors,
    refuse_missing: bool,
    state: tuple[int, ...],
) -> tuple[Series, ...]:
    """The series of a file, whose `state` it has."""
    names = _columns(file, config)
    extra = [name for name in (config.group, config.time) if name is not None]
    places: dict[str, list[int]] = {}  # rows of each group, in the order of its first
    values: list[list[float]] = []
    times: list[str] = []
    for number, row in enumerate(_rows(file, [*names, *extra], errors)):
        cells = row[: len(names)]
        values.append(
            [_number(file, number, name, cell) for name, cell in zip(names, cells, strict=True)]
        )
        group = str(row[len(names)]) if config.group is not None else ""
        places.setdefault(group, []).append(number)
        if config.time is not None:
            times.append(str(row[-1]))
    if not values:
        raise InvalidData(file, wanted="at least one row", got="none", remedy="Look at its end.")
    table = np.array(values, dtype=np.float64)  # (rows, channels)
    if refuse_missing and np.isnan(table).any():
        place, column = (int(index[0]) for index in np.nonzero(np.isnan(table)))
        raise InvalidData(
            file,
            text.line_of(file, place + 1),
            wanted=f"a number in {names[column]!r}",
            got="an empty cell, or NaN" + (f", at {times[place]}" if times else ""),
            remedy='Fill it, or set missing = "mask" in data.source and data.target.',
        )
    targets = len(config.targets or names)
    found = []
    for group, rows in places.items():
        name = f"{file}, {config.group} {group}" if config.group is not None else file
        own = table[rows]
        if config.time is None:
            found.append(Series(name, 0, own, np.zeros((len(own), 0)), targets, tuple(names)))
            continue
        clock = _Clock(file, [times[row] for row in rows], rows)
        whole = Series(
            name,
            0,
            own,
            clock.calendar(config),
            targets,
            (*names, *clock.calendar_names(config)),
            clock.stamps(config),
        )
        found += _by_time(whole, clock, config)
    if config.gaps == "fill" and refuse_missing and any(np.isnan(s.values).any() for s in found):
        raise InvalidArgument(
            "data.series.gaps",
            wanted="'fill' only with missing = \"mask\" in data.source and data.target",
            got="'fill', and rows that are missing",
            remedy="Set both.",
        )
    return tuple(found)


def _columns(file: str, config: SeriesConfig) -> list[str]:
    """The channels: those that are forecast, then the others."""
    names = list(config.columns or ())
    if config.columns is None:
        known = _header(file)
        for name in (config.time, config.group, *(config.targets or ())):
            if name is not None and name not in known:
                remedy = nearest(name, known, listed=True)
                raise InvalidData(file, 1, wanted=f"a column {name!r}", got="none", remedy=remedy)
        names = [name for name in known if name not in (config.time, config.group)]
    if not names:
        raise InvalidData(
            file, 1, wanted="a column of values", got="none", remedy="Set data.series.columns."
        )
    targets = list(config.targets or names)
    return [*targets, *(name for name in names if name not in targets)]


def _header(file: str) -> list[str]:
    form = text.form(file)
    if form == ".parquet":
        with text.readable(file), text.open_regular(file) as opened:
            return parquet.column_names(file, opened)
    if form not in text.SEPARATORS:
        raise InvalidArgument(
            "data.series.columns",
            wanted=f"the names of columns, for a {form or 'such a'} file",
            got="none",
            remedy="Name them.",
        )
    first = next(text.lines(file), "")
    return next(csv.reader([first], delimiter=text.SEPARATORS[form]), [])


def _rows(file: str, columns: Sequence[str], errors: Errors) -> Iterator[tuple[Any, ...]]:
    if text.form(file) != ".parquet":
        yield from text.rows(file, columns, errors)
        return
    with text.readable(file), text.open_regular(file) as opened:
        yield from parquet.rows(file, opened, columns)


def _number(file: str, row: int, name: str, cell: Any) -> float:
    if cell is None:
        return math.nan
    try:
        number = float(cell)
    except (TypeError, ValueError):
        number = math.inf
        if str(cell).strip().lower() in EMPTY:
            return math.nan
    if math.isinf(number) or abs(number) > LARGEST_NUMBER:
        raise InvalidData(
            file,
            text.line_of(file, row + 1),
            wanted=f"a number in {name!r}, in the range of float32",
            got=one_line(repr(cell))[:60],
            remedy="Correct it, or name other columns in data.series.columns.",
        )
    return number


class _Clock:
    """The times of the rows of one series, which increase."""

    def __init__(self, file: str, written: Sequence[str], rows: Sequence[int]) -> None:
        self.file = file
        self.rows = rows
        self.written = written
        self.dates: list[datetime] | None = None
        self.seconds = self._parsed()
        steps = np.diff(self.seconds)
        wrong = np.flatnonzero(~(steps > 0))
        if len(wrong):
            place = int(wrong[0]) + 1
            raise InvalidData(
                file,
                text.line_of(file, rows[place] + 1),
                wanted=f"a time after {written[place - 1]}, that of the row before it",
                got=written[place],
                remedy="Sort the rows of each series by time, and remove repeated ones.",
            )
        self.step = 1.0
        if len(steps):
            sizes, counts = np.unique(steps, return_counts=True)
            self.step = float(sizes[counts.argmax()])
        # Differences of fractions of a second are not exact.
        is_regular = np.isclose(steps, self.step, rtol=1e-6, atol=0.0)
        self.gaps = np.flatnonzero(~is_regular) + 1  # the rows after a gap

    def _parsed(self) -> NDArray[np.float64]:
        try:
            return np.array([float(each) for each in self.written])
        except ValueError:
            pass
        dates = []
        for place, each in enumerate(self.written):
            try:
                dates.append(datetime.fromisoformat(each.strip()))
            except ValueError:
                raise InvalidData(
                    self.file,
                    text.line_of(self.file, self.rows[place] + 1),
                    wanted="a time of ISO 8601, such as 2016-07-01 00:00:00, or a number",
                    got=one_line(repr(each))[:60],
                    remedy="Write times alike.",
                ) from None
        self.dates = dates
        try:
            seconds = [(each - dates[0]).total_seconds() for each in dates]
        except TypeError:
            raise InvalidData(
                self.file,
                wanted="times that all have a time zone, or none",
                got="both",
                remedy="Write times alike.",
            ) from None
        return np.array(seconds)

    def refuse_gap(self) -> InvalidData:
        place = int(self.gaps[0])
        distance = self.seconds[place] - self.seconds[place - 1]
        return InvalidData(
            self.file,
            text.line_of(self.file, self.rows[place] + 1),
            wanted=f"a row every {self.step:g} {self.unit}",
            got=f"{distance:g} {self.unit} from {self.written[place - 1]} to {self.written[place]}",
            remedy='Set data.series.gaps to "split", "fill" or "ignore".',
        )

    @property
    def stride(self) -> timedelta | float:
        """The step from one row to the next, as it is added to a time."""
        return self.step if self.dates is None else timedelta(seconds=self.step)

    def stamps(self, config: SeriesConfig) -> TimeStamps:
        """The time stamps of the rows; where gaps are ignored, none follow from the step."""
        is_regular = not len(self.gaps) or config.gaps != "ignore"
        return TimeStamps(tuple(self.written), self.stride if is_regular else None)

    def filled_stamps(self, rows: NDArray[np.int64]) -> tuple[str, ...]:
        """The time stamps of a series that has rows for its gaps too; `rows` are the places of its own."""
        own = dict(zip(rows.tolist(), self.written, strict=True))
        first = self.written[0]
        count = int(rows[-1]) + 1
        return tuple(own.get(row) or stepped(first, self.stride, row) for row in range(count))

    @property
    def unit(self) -> str:
        return "of time" if self.dates is None else "seconds"

    def calendar_names(self, config: SeriesConfig) -> list[str]:
        """The names of the channels of `calendar`."""
        parts = config.calendar or ()
        return [f"{wave} of {part}" for part in parts for wave in ("sine", "cosine")]

    def calendar(self, config: SeriesConfig) -> NDArray[np.float64]:
        """Sine and cosine (rows, 2 · parts) of parts of the time."""
        if not config.calendar:
            return np.zeros((len(self.seconds), 0))
        if self.dates is None:
            raise InvalidData(
                self.file,
                wanted="dates and times in data.series.time, for data.series.calendar",
                got="numbers",
                remedy="Leave calendar out.",
            )
        columns = []
        for part in config.calendar or ():
            numbers = np.array([_part(each, part) for each in self.dates])
            angles = 2 * np.pi * numbers / PERIODS[part]
            columns += [np.sin(angles), np.cos(angles)]
        return np.stack(columns, axis=1)


def _part(date: datetime, part: str) -> float:
    if part == "minute":
        return float(date.minute)
    if part == "hour":
        return date.hour + date.minute / 60
    if part == "weekday":
        return date.weekday() + date.hour / 24
    return float(date.day if part == "day" else date.month) - 1


def _by_time(whole: Series, clock: _Clock, config: SeriesConfig) -> Iterator[Series]:
    """A series by the times of its rows; several where it is split at gaps."""
    if not len(clock.gaps) or config.gaps == "ignore":
        yield whole
    elif config.gaps == "refuse":
        raise clock.refuse_gap()
    elif config.gaps == "split":
        edges = [0, *clock.gaps.tolist(), len(whole)]
        for first, last in pairwise(edges):
            yield whole.rows(first, last)
    else:
        yield _filled(whole, clock)


def _filled(whole: Series, clock: _Clock) -> Series:
    """A series with a row of missing values wherever its times have a gap."""
    places = (clock.seconds - clock.seconds[0]) / clock.step
    rows = np.rint(places).astype(np.int64)
    wrong = np.flatnonzero(np.abs(places - rows) > 1e-6)
    if len(wrong):
        place = int(wrong[0])
        raise InvalidData(
            clock.file,
            text.line_of(clock.file, clock.rows[place] + 1),
            wanted=f"times that are multiples of {clock.step:g} {clock.unit} apart, to fill gaps",
            got=clock.written[place],
            remedy="Use another value of data.series.gaps.",
        )
    count = int(rows[-1]) + 1
    if count > 16 * len(whole):
        raise InvalidData(
            clock.file,
            wanted="gaps that together are at most 15 times as long as the series",
            got=f"{count - len(whole):,} missing rows beside {len(whole):,}",
            remedy='Set data.series.gaps = "split".',
        )
    filled = np.full((count, whole.values.shape[1]), np.nan)
    filled[rows] = whole.values
    calendar = np.zeros((count, whole.given.shape[1]))
    calendar[rows] = whole.given
    stamps = TimeStamps(clock.filled_stamps(rows), clock.stride)
    return replace(whole, values=filled, given=calendar, stamps=stamps, normalized={})
