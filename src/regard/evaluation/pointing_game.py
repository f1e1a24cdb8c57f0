"""Whether attention points at what is named: how much of a word's weight falls into a box of the picture."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from regard.core.shapes import Float, Tensor

BoundingBox = tuple[float, float, float, float]  # left, top, right, bottom, as shares of the picture's sides


@dataclass(frozen=True)
class PointingScore:
    """The mean over words."""

    words: int
    inside: float  # share of the weight in the box of what the word names
    chance: float  # the box's share of the picture, which even weights would give
    hits: float  # share of words whose heaviest region has its middle in the box


def covered(rows: int, columns: int, box: BoundingBox) -> Float[Tensor, "rows columns"]:
    """The share of each region that a box covers.

    >>> covered(2, 2, (0.25, 0.0, 1.0, 0.5))
    tensor([[0.5000, 1.0000],
            [0.0000, 0.0000]])
    """
    left, top, right, bottom = box
    return _overlap(rows, top, bottom)[:, None] * _overlap(columns, left, right)


def _overlap(parts: int, start: float, end: float) -> Float[Tensor, " parts"]:
    edges = torch.arange(parts + 1) / parts
    return (edges[1:].clamp(max=end) - edges[:-1].clamp(min=start)).clamp(min=0) * parts


def pointed(looks: Sequence[tuple[Float[Tensor, "rows columns"], BoundingBox]]) -> PointingScore | None:
    """Of words, each with its weights and the box of what it names; None of no words."""
    if not looks:
        return None
    inside, chance, hits = 0.0, 0.0, 0
    for weights, box in looks:
        rows, columns = weights.shape
        inside += float((weights * covered(rows, columns, box)).sum() / weights.sum())
        left, top, right, bottom = box
        chance += (right - left) * (bottom - top)
        row, column = divmod(int(weights.argmax()), columns)
        hits += top <= (row + 0.5) / rows <= bottom and left <= (column + 0.5) / columns <= right
    count = len(looks)
    return PointingScore(count, inside / count, chance / count, hits / count)
