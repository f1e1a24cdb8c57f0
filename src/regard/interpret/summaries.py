"""Summaries of attention rows and heads: entropy, distance, confidence, and the weight on certain positions."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from math import isfinite
from typing import Any, Generic, TypeVar

import torch

from regard.core.config import nearest
from regard.core.errors import InvalidArgument
from regard.core.shapes import Float, Int, Tensor
from regard.kernels.attention.weights import entropy

# The rows, the first key, weights (H, R, C), and the keys that each row may attend to (None: all).
Tile = tuple[slice, int, Tensor, Tensor | None]
HeadName = tuple[str, int]  # of a map, and the number of a head
Value = TypeVar("Value")


@dataclass(frozen=True)
class Measures(Generic[Value]):
    """The measures of each row. Those of a head are means over its rows that attend to anything.

    The last row is aligned with the last key, so that in self-attention each row is aligned with its own key.
    """

    entropy: Value  # in nats
    evenness: Value  # entropy divided by the largest possible: 0 attends to one key, 1 uniformly
    distance: Value  # expected distance from a row's own position to the key
    confidence: Value  # the largest weight
    first: Value  # the weight of the first key
    last: Value
    own: Value  # of the key at the row's own position
    previous: Value  # of the key before it
    punctuation: Value  # of keys without a letter or a digit: punctuation and special tokens


MEASURES = tuple(field.name for field in fields(Measures))


@dataclass(frozen=True)
class Head(Measures[float]):
    """The means of a head."""

    head: int

    def as_dict(self) -> dict[str, Any]:
        """In the format of `Look.to_json`."""
        return {"head": self.head} | {name: finite(getattr(self, name)) for name in MEASURES}


@dataclass(frozen=True)
class RowSummaries(Measures[Float[Tensor, "H N"]]):
    """The measures of each row of each head, and its largest weights."""

    top_weights: Float[Tensor, "H N top"]  # the largest weights, in descending order
    top_keys: Int[Tensor, "H N top"]  # their keys; -1 where the weight is zero

    def heads(self) -> list[Head]:
        attends = self.confidence > 0  # (H, N)
        rows = attends.sum(1).clamp(min=1)  # (H,)
        stacked = torch.stack([getattr(self, name) for name in MEASURES], 1)
        values = stacked.double()  # (H, measures, N)
        sums = (values * attends[:, None]).sum(2)  # (H, measures)
        means = (sums / rows[:, None]).tolist()
        heads = []
        for head, mean in enumerate(means):
            by_name = dict(zip(MEASURES, mean, strict=True))
            heads.append(Head(**by_name, head=head))
        return heads

    def with_top(self, top: int) -> "RowSummaries":
        weights = self.top_weights[..., :top]
        keys = self.top_keys[..., :top]
        return replace(self, top_weights=weights, top_keys=keys)


class HeadMeans:
    """The means of each head over many inputs."""

    def __init__(self) -> None:
        self._counts: Counter[HeadName] = Counter()
        self._sums: dict[HeadName, Counter[str]] = {}

    def add(self, heads: Iterable[tuple[str, Head]]) -> None:
        """Add the means of one input's heads, each with the name of its map."""
        for name, head in heads:
            self._counts[name, head.head] += 1
            sums = self._sums.setdefault((name, head.head), Counter())
            for measure in MEASURES:
                sums[measure] += getattr(head, measure)

    def means(self) -> dict[HeadName, Head]:
        found = {}
        for name, sums in self._sums.items():
            count = self._counts[name]
            means = {measure: sums[measure] / count for measure in MEASURES}
            found[name] = Head(head=name[1], **means)
        return found


def finite(number: float) -> float | None:
    """A number in the form that JSON can hold: None if it is not finite."""
    return number if isfinite(number) else None


SummaryLine = TypeVar("SummaryLine", bound=tuple[Any, Head])


def sorted_by(lines: list[SummaryLine], measure: str | None) -> list[SummaryLine]:
    """Heads by one of `MEASURES`, in descending order; unchanged if it is None."""
    if measure is None:
        return lines
    if measure not in MEASURES:
        raise InvalidArgument(
            "sort",
            wanted=f"one of {', '.join(MEASURES)}",
            got=repr(measure),
            remedy=nearest(str(measure), MEASURES, listed=True),
        )
    return sorted(lines, key=lambda line: -float(getattr(line[1], measure)))


@torch.no_grad()
def summarize(
    heads: int, size: tuple[int, int], tiles: Iterable[Tile], top: int, punctuation: Tensor | None
) -> RowSummaries:
    """Compute summaries in one pass over tiles of weights, which are not kept."""
    n, m = size
    top = min(top, m)
    measures = {name: torch.zeros(heads, n) for name in MEASURES}
    top_weights = torch.zeros(heads, n, top)
    top_keys = torch.full((heads, n, top), -1, dtype=torch.int32)
    marked = torch.zeros(m)  # 1 at punctuation
    if punctuation is not None:
        marked = punctuation.float()
    for rows, low, tile_weights, visible in tiles:
        weights = tile_weights.float()  # (H, R, C)
        high = low + weights.shape[-1]
        device = weights.device
        keys = torch.arange(low, high, device=device)  # (C,)
        own = (torch.arange(rows.start, rows.stop, device=device) + (m - n))[:, None]  # (R, 1)
        row_entropy = entropy(weights)  # (H, R)
        seen = torch.full((1, 1), len(keys))
        if visible is not None:
            seen = visible.sum(-1)
        # The entropy of a row that attends to all of its keys with equal weights.
        most = seen.to(device).float().log()
        best = weights.topk(min(top, len(keys)), dim=-1)
        of_tile = {
            "entropy": row_entropy,
            "evenness": (row_entropy / most).where(most > 0, 0.0),
            "distance": torch.einsum("hrc,rc->hr", weights, (keys - own).abs().float()),
            "confidence": weights.amax(-1),
            "first": weights[..., 0] if low == 0 else torch.zeros(()),
            "last": weights[..., -1] if high == m else torch.zeros(()),
            "own": _at(weights, own - low),
            "previous": _at(weights, own - low - 1),
            "punctuation": weights @ marked[low:high].to(device),
        }
        for name, value in of_tile.items():
            measures[name][:, rows] = value.cpu()
        count = best.values.shape[-1]
        best_keys = (best.indices + low).where(best.values > 0, -1)
        top_weights[:, rows, :count] = best.values.cpu()
        top_keys[:, rows, :count] = best_keys.int().cpu()
    return RowSummaries(**measures, top_weights=top_weights, top_keys=top_keys)


def _at(weights: Float[Tensor, "H R C"], keys: Int[Tensor, "R 1"]) -> Float[Tensor, "H R"]:
    """The weight of one key of each row; zero where the key is not in the tile."""
    inside = (keys >= 0) & (keys < weights.shape[-1])  # (R, 1)
    index = keys.clamp(0, weights.shape[-1] - 1).expand(len(weights), -1, 1)  # (H, R, 1)
    chosen = weights.gather(-1, index) * inside
    return chosen[..., 0]
