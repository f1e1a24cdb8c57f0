"""Summaries of attention rows and heads: entropy, distance, confidence, and the weight on certain positions."""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch

from regard.core.config import nearest
from regard.core.errors import InvalidArgument
from regard.core.shapes import Float, Int, Tensor
from regard.interpret.sites import AttentionSite
from regard.kernels.attention.weights import entropy

# rows, the first key, weights (H, R, C), and the number of keys visible to each row
Tile = tuple[slice, int, Tensor, Tensor]


@dataclass(frozen=True)
class Head:
    """Means of a head over the rows that attend to anything.

    The last row is aligned with the last key, so that in self-attention each row is aligned with its own key.
    """

    head: int
    entropy: float  # in nats
    evenness: float  # entropy divided by the largest possible: 0 attends to one key, 1 uniformly
    distance: float  # expected distance from a row's own position to the key
    confidence: float  # the largest weight
    first: float  # the weight of the first key
    last: float
    own: float  # of the key at the row's own position
    previous: float  # of the key before it
    punctuation: float  # of keys without a letter or a digit: punctuation and special tokens


MEASURES = tuple(field.name for field in fields(Head) if field.name != "head")


@dataclass(frozen=True)
class RowSummaries:
    """The measures of each row of each head, and its largest weights."""

    entropy: Float[Tensor, "H N"]
    evenness: Float[Tensor, "H N"]
    distance: Float[Tensor, "H N"]
    confidence: Float[Tensor, "H N"]
    first: Float[Tensor, "H N"]
    last: Float[Tensor, "H N"]
    own: Float[Tensor, "H N"]
    previous: Float[Tensor, "H N"]
    punctuation: Float[Tensor, "H N"]
    top_weights: Float[Tensor, "H N top"]  # the largest weights, in descending order
    top_keys: Int[Tensor, "H N top"]  # their keys; -1 where the weight is zero

    def heads(self) -> list[Head]:
        attends = self.confidence > 0
        rows = attends.sum(1).clamp(min=1)
        means = {name: (getattr(self, name).double() * attends).sum(1) / rows for name in MEASURES}
        return [
            Head(head, **{name: float(mean[head]) for name, mean in means.items()}) for head in range(len(self.entropy))
        ]

    def with_top(self, top: int) -> "RowSummaries":
        return replace(self, top_weights=self.top_weights[..., :top], top_keys=self.top_keys[..., :top])


class HeadMeans:
    """Running means of the measures of each head over many inputs."""

    def __init__(self) -> None:
        self._sums: dict[tuple[AttentionSite, int], list[float]] = {}
        self._counts: dict[tuple[AttentionSite, int], int] = {}

    def add(self, site: AttentionSite, head: Head) -> None:
        key = AttentionSite(site.name, site.kind, site.part, site.layer), head.head
        before = self._sums.get(key, [0.0] * len(MEASURES))
        self._sums[key] = [total + getattr(head, name) for total, name in zip(before, MEASURES, strict=True)]
        self._counts[key] = self._counts.get(key, 0) + 1

    def lines(self) -> list[tuple[AttentionSite, Head]]:
        return [
            (site, Head(head, *(total / self._counts[site, head] for total in sums)))
            for (site, head), sums in self._sums.items()
        ]


SummaryLine = TypeVar("SummaryLine", bound=tuple[Any, Head])


def sorted_by(lines: list[SummaryLine], measure: str | None) -> list[SummaryLine]:
    """Heads by one of `MEASURES`, in descending order; unchanged if it is None."""
    if measure is None:
        return lines
    if measure not in MEASURES:
        raise InvalidArgument(
            "sort", wanted=f"one of {', '.join(MEASURES)}", got=repr(measure), remedy=nearest(str(measure), MEASURES)
        )
    return sorted(lines, key=lambda line: -float(getattr(line[1], measure)))


@torch.no_grad()
def summarize(
    heads: int, size: tuple[int, int], tiles: Iterable[Tile], top: int, punctuation: Tensor | None
) -> RowSummaries:
    """Summaries in one pass over tiles of weights, which are not kept."""
    n, m = size
    top = min(top, m)
    measures = {name: torch.zeros(heads, n) for name in MEASURES}
    top_weights, top_keys = torch.zeros(heads, n, top), torch.full((heads, n, top), -1, dtype=torch.int32)
    marked = torch.zeros(m) if punctuation is None else punctuation.float()
    for rows, low, weights, visible in tiles:
        weights, high = weights.float(), low + weights.shape[-1]
        keys = torch.arange(low, high, device=weights.device)
        own = (torch.arange(rows.start, rows.stop, device=weights.device) + (m - n))[:, None]  # (R, 1)
        row_entropy = entropy(weights)
        most = visible.to(weights.device).float().log()
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
            "punctuation": weights @ marked[low:high].to(weights.device),
        }
        for name, value in of_tile.items():
            measures[name][:, rows] = value.cpu()
        top_weights[:, rows, : best.values.shape[-1]] = best.values.cpu()
        top_keys[:, rows, : best.values.shape[-1]] = (best.indices + low).where(best.values > 0, -1).int().cpu()
    return RowSummaries(**measures, top_weights=top_weights, top_keys=top_keys)


def _at(weights: Float[Tensor, "H R C"], keys: Int[Tensor, "R 1"]) -> Float[Tensor, "H R"]:
    """The weight of one key of each row; zero where the key is not in the tile."""
    inside = (keys >= 0) & (keys < weights.shape[-1])
    index = keys.clamp(0, weights.shape[-1] - 1).expand(len(weights), -1, 1)
    return (weights.gather(-1, index) * inside)[..., 0]
