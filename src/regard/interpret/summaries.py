"""What rows and heads of attention come to: how sharp, how far, how much on which places."""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch

from regard.core.config import nearest
from regard.core.errors import InvalidArgument
from regard.core.shapes import Float, Int, Tensor
from regard.interpret.sites import AttentionSite
from regard.kernels.attention.weights import entropy

# rows, the first key, weights (H, R, C), and how many keys each row may see
Tile = tuple[slice, int, Tensor, Tensor]


@dataclass(frozen=True)
class Head:
    """The mean of a head over the rows that see anything.

    The last row stands at the last key, so that in self-attention each row's own place is its own.
    """

    head: int
    entropy: float  # in nats
    evenness: float  # the same as a share of the largest possible: 0 looks at one key, 1 at all alike
    distance: float  # from a row's own place to where it looks
    confidence: float  # the largest weight
    first: float  # the weight on the first key
    last: float
    own: float  # on the key at the row's own place
    previous: float  # on the one before
    signs: float  # on keys without a letter or a digit: punctuation, ends


MEASURES = tuple(field.name for field in fields(Head) if field.name != "head")


@dataclass(frozen=True)
class RowSummaries:
    """What each row of each head comes to."""

    entropy: Float[Tensor, "H N"]
    evenness: Float[Tensor, "H N"]
    distance: Float[Tensor, "H N"]
    confidence: Float[Tensor, "H N"]
    first: Float[Tensor, "H N"]
    last: Float[Tensor, "H N"]
    own: Float[Tensor, "H N"]
    previous: Float[Tensor, "H N"]
    signs: Float[Tensor, "H N"]
    top_weights: Float[Tensor, "H N top"]  # the largest weights, largest first
    top_keys: Int[Tensor, "H N top"]  # and where they are; -1 beside a weight of zero

    def heads(self) -> list[Head]:
        sees = self.confidence > 0
        rows = sees.sum(1).clamp(min=1)
        means = {name: (getattr(self, name).double() * sees).sum(1) / rows for name in MEASURES}
        return [
            Head(head, **{name: float(mean[head]) for name, mean in means.items()}) for head in range(len(self.entropy))
        ]

    def with_top(self, top: int) -> "RowSummaries":
        return replace(self, top_weights=self.top_weights[..., :top], top_keys=self.top_keys[..., :top])


class Mean:
    """The mean of each head over many looks, of which nothing else is kept."""

    def __init__(self) -> None:
        self._sums: dict[tuple[AttentionSite, int], list[float]] = {}
        self._looks: dict[tuple[AttentionSite, int], int] = {}

    def add(self, place: AttentionSite, head: Head) -> None:
        at = AttentionSite(place.name, place.kind, place.part, place.layer), head.head
        before = self._sums.get(at, [0.0] * len(MEASURES))
        self._sums[at] = [total + getattr(head, name) for total, name in zip(before, MEASURES, strict=True)]
        self._looks[at] = self._looks.get(at, 0) + 1

    def lines(self) -> list[tuple[AttentionSite, Head]]:
        return [(at[0], Head(at[1], *(total / self._looks[at] for total in sums))) for at, sums in self._sums.items()]


SummaryLine = TypeVar("SummaryLine", bound=tuple[Any, Head])


def sorted_by(lines: list[SummaryLine], measure: str | None) -> list[SummaryLine]:
    """Heads by one of `MEASURES`, the largest first; as they are where none is named."""
    if measure is None:
        return lines
    if measure not in MEASURES:
        raise InvalidArgument(
            "sort", wanted=f"one of {', '.join(MEASURES)}", got=repr(measure), remedy=nearest(str(measure), MEASURES)
        )
    return sorted(lines, key=lambda line: -float(getattr(line[1], measure)))


@torch.no_grad()
def summarise(heads: int, size: tuple[int, int], tiles: Iterable[Tile], top: int, signs: Tensor | None) -> RowSummaries:
    """In one pass over blocks of weights, none of which is kept."""
    n, m = size
    top = min(top, m)
    every = {name: torch.zeros(heads, n) for name in MEASURES}
    top_weights, top_keys = torch.zeros(heads, n, top), torch.full((heads, n, top), -1, dtype=torch.int32)
    marked = torch.zeros(m) if signs is None else signs.float()
    for rows, low, seen, count in tiles:
        seen, high = seen.float(), low + seen.shape[-1]
        keys = torch.arange(low, high, device=seen.device)
        own = (torch.arange(rows.start, rows.stop, device=seen.device) + (m - n))[:, None]  # (R, 1)
        spread = entropy(seen)
        most = count.to(seen.device).float().log()
        best = seen.topk(min(top, len(keys)), dim=-1)
        found = {
            "entropy": spread,
            "evenness": (spread / most).where(most > 0, 0.0),
            "distance": torch.einsum("hrc,rc->hr", seen, (keys - own).abs().float()),
            "confidence": seen.amax(-1),
            "first": seen[..., 0] if low == 0 else torch.zeros(()),
            "last": seen[..., -1] if high == m else torch.zeros(()),
            "own": _at(seen, own - low),
            "previous": _at(seen, own - low - 1),
            "signs": seen @ marked[low:high].to(seen.device),
        }
        for name, value in found.items():
            every[name][:, rows] = value.cpu()
        top_weights[:, rows, : best.values.shape[-1]] = best.values.cpu()
        top_keys[:, rows, : best.values.shape[-1]] = (best.indices + low).where(best.values > 0, -1).int().cpu()
    return RowSummaries(**every, top_weights=top_weights, top_keys=top_keys)


def _at(seen: Float[Tensor, "H R C"], keys: Int[Tensor, "R 1"]) -> Float[Tensor, "H R"]:
    there = (keys >= 0) & (keys < seen.shape[-1])
    index = keys.clamp(0, seen.shape[-1] - 1).expand(len(seen), -1, 1)
    return (seen.gather(-1, index) * there)[..., 0]
