"""The pointing game: how much of a word's attention falls into the bounding box of what the word names."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from regard.core.shapes import Float, Tensor

# Left, top, right and bottom, as fractions of the image's sides.
BoundingBox = tuple[float, float, float, float]


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
    of_rows = _overlap(rows, top, bottom)
    of_columns = _overlap(columns, left, right)
    return of_rows[:, None] * of_columns


def _overlap(parts: int, start: float, end: float) -> Float[Tensor, " parts"]:
    """The fraction of each of the equal parts of a side that lies between start and end."""
    edges = torch.arange(parts + 1) / parts
    covered = edges[1:].clamp(max=end) - edges[:-1].clamp(min=start)
    return covered.clamp(min=0) * parts


def pointing_score(
    maps: Sequence[tuple[Float[Tensor, "rows columns"], BoundingBox]],
) -> PointingScore | None:
    """The score of words, each given by its attention map and the box of what it names; None without words."""
    if not maps:
        return None
    inside = 0.0
    chance = 0.0
    hits = 0
    for weights, box in maps:
        rows, columns = weights.shape
        weights_inside = weights * box_coverage(rows, columns, box)
        inside += float(weights_inside.sum() / weights.sum())
        left, top, right, bottom = box
        chance += (right - left) * (bottom - top)
        # The region of largest weight hits the box if its center lies inside.
        row, column = divmod(int(weights.argmax()), columns)
        center_y = (row + 0.5) / rows
        center_x = (column + 0.5) / columns
        hits += top <= center_y <= bottom and left <= center_x <= right
    count = len(maps)
    return PointingScore(count, inside / count, chance / count, hits / count)
