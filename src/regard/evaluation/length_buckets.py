"""Buckets of examples by source length."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from regard.core.errors import InvalidArgument
from regard.evaluation.statistics import Indices


@dataclass(frozen=True)
class LengthBucket:
    """Lengths from `first` to `last` inclusive, and the indices of the examples in that range."""

    first: int
    last: int
    indices: Indices


def length_buckets(lengths: Iterable[int], groups: str) -> list[LengthBucket]:
    """Buckets of increasing length that cover all examples.

    `groups` is the number of buckets, of about equal size ("4"), or the last length of each ("10,15,20").

    >>> [(b.first, b.last, len(b.indices)) for b in length_buckets([1, 2, 3, 4, 5, 6, 7, 30], "2")]
    [(1, 4, 4), (5, 30, 4)]
    >>> [(b.first, b.last, len(b.indices)) for b in length_buckets([1, 2, 3, 4, 5, 6, 7, 30], "3,10")]
    [(1, 3, 3), (4, 10, 4), (11, 30, 1)]
    """
    edges = _numbers(groups)
    array = np.fromiter(lengths, dtype=np.int64)
    shortest, longest = int(array.min()), int(array.max())
    if "," not in groups:
        quantiles = np.arange(1, edges[0]) / edges[0]
        edges = np.quantile(array, quantiles, method="inverted_cdf").astype(int).tolist()
    inside = sorted({edge for edge in edges if shortest <= edge < longest})
    firsts, lasts = [shortest, *(edge + 1 for edge in inside)], [*inside, longest]
    return [
        LengthBucket(first, last, np.flatnonzero((array >= first) & (array <= last)))
        for first, last in zip(firsts, lasts, strict=True)
    ]


def _numbers(groups: str) -> list[int]:
    try:
        numbers = [int(part) for part in groups.split(",") if part.strip()]
        if min(numbers) < 1:
            raise ValueError
    except ValueError:
        raise InvalidArgument(
            "by-length",
            wanted="a number of groups (4), or their ends (10,15,20)",
            got=repr(groups),
            remedy="Lengths are counted from 1.",
        ) from None
    return numbers
