"""Mean and scale of the numbers of the training data, by which values are normalized."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.core.errors import InvalidArgument
from regard.core.sanitize import one_line
from regard.data.vocabulary import Vocabulary

CHUNK = 4096  # rows whose sums are computed at once
SMALLEST = 1e-8  # scale; numbers that are all equal are divided by 1


class Statistics(Vocabulary):
    """The mean and the standard deviation of each number of a value, from the training data alone.

    longest   of sequences, how many vectors the longest has
    length    of sequences, how many vectors each has, where all of the training data have as many
    names     of the numbers, where they are columns of a table
    """

    file_format = "a file of statistics"
    stored_kind = "statistics"

    def __init__(
        self,
        mean: Iterable[float],
        scale: Iterable[float],
        longest: int | None = None,
        length: int | None = None,
        names: Sequence[str] = (),
    ) -> None:
        self.mean = tuple(map(float, mean))
        self.scale = tuple(map(float, scale))
        self.size = len(self.mean)
        self.longest = longest
        self.length = length
        self.names = tuple(names)
        numbers = (*self.mean, *self.scale)
        is_usable = all(map(math.isfinite, numbers)) and all(each > 0 for each in self.scale)
        if not self.mean or len(self.scale) != self.size or not is_usable:
            raise InvalidArgument(
                "statistics",
                wanted="a finite mean and a positive scale for each number",
                got=f"{self.size} means and {len(self.scale)} scales",
                remedy="Learn them from the training data.",
            )

    @staticmethod
    def of(rows: Iterable[NDArray[Any]], *, normalize: bool = True) -> "Statistics":
        """The statistics of rows (n, D) of one dimension; without `normalize`, mean 0 and scale 1.

        NaN is a missing number, which counts nowhere.
        """
        count: NDArray[np.int64] = np.zeros(0, dtype=np.int64)  # (D,)
        mean: NDArray[np.float64] = np.zeros(0)
        squares: NDArray[np.float64] = np.zeros(0)
        for chunk in rows:
            values = np.asarray(chunk, dtype=np.float64)
            if not len(values):
                continue
            if not len(count):
                count = np.zeros(values.shape[1], dtype=np.int64)
                mean = np.zeros(values.shape[1])
                squares = np.zeros(values.shape[1])
            # The parallel form of Welford's algorithm: no sum of squares of large numbers.
            # What overflows in spite of it is refused below.
            with np.errstate(over="ignore", invalid="ignore"):
                present = ~np.isnan(values)
                added = present.sum(0)
                new_count = np.maximum(count + added, 1)
                new_mean = np.where(present, values, 0.0).sum(0) / np.maximum(added, 1)
                deviations = np.where(present, values - new_mean, 0.0)
                difference = np.where(added > 0, new_mean - mean, 0.0)
                squares = squares + (deviations**2).sum(0)
                squares = squares + difference**2 * count * added / new_count
                mean = mean + difference * added / new_count
                count = count + added
        if not len(count):
            raise InvalidArgument(
                "data", wanted="at least one number", got="none", remedy="Look at data.train."
            )
        if not count.all():
            channel = int(np.flatnonzero(count == 0)[0]) + 1
            raise InvalidArgument(
                "data",
                wanted="at least one number in each place of the training data",
                got=f"none as number {channel} of any vector",
                remedy="Leave this number out.",
            )
        if not normalize:
            return Statistics(np.zeros_like(mean), np.ones_like(mean))
        if not np.isfinite(squares).all():
            raise InvalidArgument(
                "data",
                wanted="numbers whose squares are finite",
                got="larger ones in the training data",
                remedy="Give them in a larger unit, or as logarithms.",
            )
        scale = np.sqrt(squares / count)
        return Statistics(mean, np.where(scale > SMALLEST, scale, 1.0))

    @classmethod
    def from_json(cls, text: str, settings: Mapping[str, Any] | None = None) -> "Statistics":
        content = json.loads(text)
        lists = [content.get(key) for key in ("mean", "scale")] if isinstance(content, dict) else []
        if not lists or not all(isinstance(each, list) for each in lists):
            raise ValueError("no mean and scale in it")
        mean, scale = lists
        assert isinstance(mean, list)
        assert isinstance(scale, list)
        lengths = {}
        for name in ("longest", "length"):
            number = content.get(name)
            if number is not None and (type(number) is not int or number < 1):
                raise ValueError(f"{name} that is no number of vectors")
            lengths[name] = number
        names = content.get("names", [])
        is_named = isinstance(names, list) and all(isinstance(each, str) for each in names)
        if not is_named or len(names) not in (0, len(mean)):
            raise ValueError("names that are not one for each number")
        return Statistics(map(float, mean), map(float, scale), **lengths, names=names)

    def to_json(self) -> str:
        content: dict[str, Any] = {"mean": self.mean, "scale": self.scale}
        for name in ("longest", "length"):
            number = getattr(self, name)
            if number is not None:
                content[name] = number
        if self.names:
            content["names"] = self.names
        return json.dumps(content, indent=1)

    @property
    def number_names(self) -> tuple[str, ...]:
        """The names of the numbers of a vector, or their numbers from 1."""
        return self.names or tuple(self.tokens())

    def tokens(self) -> list[str]:
        return [str(number) for number in range(1, self.size + 1)]

    def normalize(self, values: NDArray[Any]) -> NDArray[np.float32]:
        """Values (..., D) with mean 0 and scale 1."""
        normalized = (np.asarray(values, dtype=np.float64) - self.mean) / self.scale
        return normalized.astype(np.float32)

    def restore(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Normalized values (..., D) in the original units."""
        restored: NDArray[np.float64] = np.asarray(values, dtype=np.float64) * self.scale
        restored += np.asarray(self.mean)
        return restored


def place_of(argument: str, given: str | int, names: Sequence[str]) -> int:
    """The index of a number of a vector that is named, or numbered from 1; `argument` is the name for messages."""
    wanted = str(given)
    if isinstance(given, str) and wanted in names:
        return names.index(wanted)
    if wanted.isdecimal() and 1 <= int(wanted) <= len(names):
        return int(wanted) - 1
    numbers = f"numbers from 1 to {len(names)}"
    is_named = [*names] != [str(number) for number in range(1, len(names) + 1)]
    raise InvalidArgument(
        argument,
        wanted=f"one of {', '.join(names)}, or {numbers}" if is_named else numbers,
        got=one_line(repr(given))[:60],
        remedy="Choose from these.",
    )
