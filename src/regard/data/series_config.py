"""The table [data.series] of a recipe: windows of long series,
of which a model forecasts the continuation.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from regard.core.config import Config, Count, Range, doc
from regard.core.errors import Problem
from regard.data.example import SPLITS, Split

CalendarPart = Literal["minute", "hour", "weekday", "day", "month"]
Gaps = Literal["refuse", "split", "fill", "ignore"]


@dataclass(frozen=True)
class SeriesConfig(Config):
    """Windows of long series in tables, one row for each time: the source is a window,
    the target what follows it.
    """

    window: Count = doc(96, "rows that the model reads: the look-back")
    horizon: Count = doc(24, "rows after them that it forecasts")
    stride: Count = doc(1, "rows from one training window to the next")
    evaluation_stride: Count = doc(1, "rows from one window of validation or test to the next")
    time: str | None = doc(
        None, "column of times: ISO 8601, or numbers; without it rows are one step apart"
    )
    group: str | None = doc(
        None, "column that says which series a row belongs to, where a file has several"
    )
    columns: tuple[str, ...] | None = doc(
        None, "columns that are read, as channels; by default all but time and group"
    )
    targets: tuple[str, ...] | None = doc(
        None, "channels that are forecast, which the model reads first; by default all"
    )
    calendar: tuple[CalendarPart, ...] | None = doc(
        None, "further channels to read: sine and cosine of a part of the time, such as the hour"
    )
    split: tuple[Annotated[float, Range(0.0)], ...] | None = doc(
        None,
        "rows of each series for training, validation and test, one after the other, or shares of "
        "its rows; windows of validation and test look back into the rows before them",
    )
    gaps: Gaps = doc(
        "refuse",
        "where rows are missing by their times: refuse them; split: the rows after a gap are a "
        'series of their own; fill: insert rows without values, for missing = "mask"; or ignore: '
        "read rows as they follow one another",
    )
    season: Count | None = doc(
        None,
        "rows of a season, such as 24 hours: `regard evaluate` also reports the "
        "errors of repeating the last one",
    )

    def conflicts(self) -> Iterator[Problem]:
        if self.split is not None:
            yield from self._wrong_split(self.split)
        if self.calendar and self.time is None:
            yield Problem("calendar", "a column of times", "none", "Set data.series.time.")
        if self.season is not None and self.season > self.window:
            wanted = f"at most window = {self.window}, as the last season is repeated"
            yield Problem("season", wanted, str(self.season), "Lower it, or raise window.")
        if self.columns is not None:
            named = [*self.columns, *filter(None, (self.time, self.group))]
            twice = [name for name in named if named.count(name) > 1]
            if twice:
                yield Problem("columns", "each column once", repr(twice[0]), "Leave one out.")
            missing = [name for name in self.targets or () if name not in self.columns]
            if missing:
                wanted = "some of columns"
                yield Problem("targets", wanted, repr(missing[0]), "Add it to columns.")

    def _wrong_split(self, split: tuple[float, ...]) -> Iterator[Problem]:
        got = str(list(split))
        if len(split) not in (2, 3) or not split[0] > 0:
            wanted = "two or three numbers: of training, validation and perhaps test"
            yield Problem("split", wanted, got, "As in split = [0.7, 0.1, 0.2].")
        elif not self.has_shares and any(part != int(part) for part in split):
            wanted = "whole numbers of rows, or shares whose sum is at most 1"
            yield Problem("split", wanted, got, "Change it.")

    @property
    def split_parts(self) -> tuple[Split, ...]:
        """The splits that are parts of each series."""
        return () if self.split is None else SPLITS[: len(self.split)]

    @property
    def has_shares(self) -> bool:
        """Whether `split` has shares, not numbers of rows."""
        return self.split is not None and sum(self.split) <= 1.0 + 1e-9

    def parts(self, rows: int) -> tuple[int, ...]:
        """Where training, validation and test end in a series of so many rows."""
        assert self.split is not None
        split = self.split
        if self.has_shares:
            counts = [int(share * rows + 1e-9) for share in split]
            if sum(split) > 1.0 - 1e-9:
                # What rounding leaves over is for validation.
                counts[1] = rows - sum(counts) + counts[1]
        else:
            counts = [int(part) for part in split]
        ends = [sum(counts[: i + 1]) for i in range(len(counts))]
        return tuple(min(end, rows) for end in ends)
