"""Where the vectors of a sequence are in time, for what is drawn over them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


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

    def names(self, indices: Sequence[int]) -> tuple[str, ...]:
        """The names of several vectors."""
        return tuple(self.name(index) for index in indices)


def stamps_of(values: Sequence[Any]) -> TimeAxis:
    """The axis of vectors with time stamps of any type."""
    return TimeAxis(stamps=tuple(map(str, values)))
