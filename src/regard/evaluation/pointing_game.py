"""The pointing game: how much of a word's attention falls into the bounding box of what the word names."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from regard.core.shapes import Float, Tensor

BoundingBox = tuple[
    float, float, float, float
]  # left, top, right, bottom, as fractions of the image's sides


@dataclass(frozen=True)
class PointingScore:
    """Means over words."""

    words: int
    inside: float  # fraction of the weight inside the box
    chance: float  # the box's fraction of the image, which uniform weights would give
    hits: float  # fraction of words whose region of largest weight has its center in the box


def box_coverage(rows: int, columns: int, box: BoundingBox) -> Float[Tensor, "rows columns"]:
    """The fraction of each region of a grid that a box covers.

    >>> box_coverage(2, 2, (0.25, 0.0, 1.0, 0.5))
    tensor([[0.5000, 1.0000],
            [0.0000, 0.0000]])
    """
    left, top, right, bottom = box
    return _overlap(rows, top, bottom)[:, None] * _overlap(columns, left, right)


def _overlap(parts: int, start: float, end: float) -> Float[Tensor, " parts"]:
    edges = torch.arange(parts + 1) / parts
    return (edges[1:].clamp(max=end) - edges[:-1].clamp(min=start)).clamp(min=0) * parts


def pointing_score(
    maps: Sequence[tuple[Float[Tensor, "rows columns"], BoundingBox]],
) -> PointingScore | None:
    """The score of words, each given by its attention map and the box of what it names; None without words."""
    if not maps:
        return None
    inside, chance, hits = 0.0, 0.0, 0
    for weights, box in maps:
        rows, columns = weights.shape
        inside += float((weights * box_coverage(rows, columns, box)).sum() / weights.sum())
        left, top, right, bottom = box
        chance += (right - left) * (bottom - top)
        row, column = divmod(int(weights.argmax()), columns)
        hits += top <= (row + 0.5) / rows <= bottom and left <= (column + 0.5) / columns <= right
    count = len(maps)
    return PointingScore(count, inside / count, chance / count, hits / count)
