"""Groups of examples by the length of their source."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from regard.core.errors import InvalidArgument
from regard.evaluation.statistics import StatisticRows


@dataclass(frozen=True)
class LengthRange:
    """The lengths from `first` to `last`, both in it, and which examples have them."""

    first: int
    last: int
    rows: StatisticRows


def spans(lengths: Iterable[int], groups: str) -> list[LengthRange]:
    """Examples in groups of rising length, from the shortest to the longest.

    `groups` is how many, each of about as many examples as the others ("4"), or where each ends ("10,15,20").

    >>> [(s.first, s.last, len(s.rows)) for s in spans([1, 2, 3, 4, 5, 6, 7, 30], "2")]
    [(1, 4, 4), (5, 30, 4)]
    >>> [(s.first, s.last, len(s.rows)) for s in spans([1, 2, 3, 4, 5, 6, 7, 30], "3,10")]
    [(1, 3, 3), (4, 10, 4), (11, 30, 1)]
    """
    numbers = _numbers(groups)
    found = np.fromiter(lengths, dtype=np.int64)
    shortest, longest = int(found.min()), int(found.max())
    ends = numbers
    if "," not in groups:
        count = numbers[0]
        ends = np.quantile(found, np.arange(1, count) / count, method="inverted_cdf").astype(int).tolist()
    inside = sorted({end for end in ends if shortest <= end < longest})
    firsts, lasts = [shortest, *(end + 1 for end in inside)], [*inside, longest]
    return [
        LengthRange(first, last, np.flatnonzero((found >= first) & (found <= last)))
        for first, last in zip(firsts, lasts, strict=True)
    ]


def _numbers(groups: str) -> list[int]:
    try:
        found = [int(part) for part in groups.split(",") if part.strip()]
        if min(found) < 1:
            raise ValueError
    except ValueError:
        raise InvalidArgument(
            "by-length",
            wanted="a number of groups (4), or their ends (10,15,20)",
            got=repr(groups),
            remedy="Lengths are counted from 1.",
        ) from None
    return found
