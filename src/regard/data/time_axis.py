"""Where the vectors of a sequence are in time, for what is drawn over them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

STAMP = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d)?")


@dataclass(frozen=True)
class TimeAxis:
    """The names of vectors: by their number from 1, by time stamps,
    or by a time that grows by equal steps.

    step     from one vector to the next, in `unit`; None: they have no time, and are numbered
    start    of the first vector; of numbers, how many rows are before it
    unit     of steps: "s"
    stamps   of the vectors, where each has its own
    """

    step: float | None = None
    start: float | int = 0
    unit: str = "s"
    stamps: tuple[str, ...] | None = None

    def name(self, index: int) -> str:
        """The name of a vector, which counts from 0."""
        if self.stamps is not None and index < len(self.stamps):
            return self.stamps[index]
        if self.step is None:
            return str(round(self.start) + index + 1)
        return f"{self.start + index * self.step:.4g} {self.unit}"

    def since(self, index: int) -> "TimeAxis":
        """The axis of the vectors from this one on."""
        stamps = None if self.stamps is None else self.stamps[index:]
        step = 1 if self.step is None else self.step
        return replace(self, start=self.start + index * step, stamps=stamps)

    def names(self, indices: Sequence[int]) -> tuple[str, ...]:
        """The names of several vectors."""
        return tuple(self.name(index) for index in indices)


def brief_times(names: Sequence[str], most: int) -> tuple[str, ...]:
    """Time stamps of at most so many letters, without seconds that are all zero and a year that all have.

    Other names are left as they are.
    """
    found = tuple(names)
    if all(map(STAMP.fullmatch, found)) and max(map(len, found), default=0) > most:
        if all(name.endswith(":00") and name.count(":") == 2 for name in found):
            found = tuple(name.removesuffix(":00") for name in found)
        years = {name[:5] for name in found}
        if len(years) == 1 and max(map(len, found)) > most:
            found = tuple(name[5:] for name in found)
    return found


def stamps_of(values: Sequence[Any]) -> TimeAxis:
    """The axis of vectors with time stamps of any type."""
    return TimeAxis(stamps=tuple(map(str, values)))
