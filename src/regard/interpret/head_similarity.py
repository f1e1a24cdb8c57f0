"""Similarity of attention heads: Jensen-Shannon distances between their rows, and groups of heads with similar rows."""

from collections.abc import Sequence

import torch

from regard.core.shapes import Float, Tensor
from regard.interpret.maps import AttentionMap
from regard.kernels.attention.weights import entropy

ROWS = 256  # rows of an input that are compared; longer inputs give evenly spaced ones
TOGETHER = 1 << 21  # weights of all heads that are in memory at once
SAME_GROUP = 0.5  # heads are merged into a group up to this mean distance


class HeadDistances:
    """Mean Jensen-Shannon distance between the rows of heads that attend from and to the same positions.

    The distance of two rows is √JS(p, q) with logarithms to base 2: 0 for equal rows, 1 where no key has weight in both
    (the comparison of heads in https://arxiv.org/abs/1906.04341). Rows that attend to nothing are left out.
    """

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str], Float[Tensor, "H G"]] = {}
        self._rows: dict[tuple[str, str], int] = {}

    @torch.no_grad()
    def add(self, maps: Sequence[AttentionMap]) -> None:
        """Add the rows of the maps of one input."""
        # Only heads of maps with the same rows and keys can be compared.
        comparable: dict[tuple[object, ...], list[AttentionMap]] = {}
        for each in maps:
            positions = (each.query_side, each.key_side, each.source, each.kind, each.size)
            comparable.setdefault(positions, []).append(each)
        for group in comparable.values():
            self._add_group(group)

    def _add_group(self, maps: Sequence[AttentionMap]) -> None:
        n, m = maps[0].size
        rows = torch.linspace(0, n - 1, min(n, ROWS)).round().long()
        heads = sum(each.heads for each in maps)
        step = max(1, TOGETHER // (max(1, m) * heads))
        for chunk in torch.split(rows, step):
            chosen = chunk.tolist()
            weights = [each.weights(chosen, range(each.heads)).cpu() for each in maps]  # (H, R, M)
            for i, first in enumerate(weights):
                for other, second in zip(maps[i:], weights[i:], strict=True):
                    self._add_pair((maps[i].name, other.name), first, second)

    def _add_pair(self, names: tuple[str, str], first: Tensor, second: Tensor) -> None:
        attends = (first.sum(-1) > 0).all(0) & (second.sum(-1) > 0).all(0)  # (R,)
        first = first[:, attends]
        second = second[:, attends]
        entropies = entropy(first)  # (H, R)
        other_entropies = entropy(second)  # (G, R)
        sums = []
        # Each head of the first map with all heads of the second.
        for rows, row_entropies in zip(first, entropies, strict=True):
            mixed = entropy((rows + second) / 2)  # (G, R)
            mean = (row_entropies + other_entropies) / 2  # (G, R)
            sums.append(_distance(mixed, mean))
        total = torch.stack(sums)  # (H, G)
        self._sums[names] = self._sums.get(names, torch.zeros(())) + total
        self._rows[names] = self._rows.get(names, 0) + int(attends.sum())

    def matrix(self, heads: Sequence[tuple[str, int]]) -> list[list[float | None]]:
        """Distances between heads, each the name of a map and a number; None where their positions differ."""
        return [[self._mean(a, b) for b in heads] for a in heads]

    def _mean(self, a: tuple[str, int], b: tuple[str, int]) -> float | None:
        if a == b:
            return 0.0
        names = (a[0], b[0])
        i = a[1]
        j = b[1]
        if names not in self._sums:
            names = (b[0], a[0])
            i = b[1]
            j = a[1]
        if not self._rows.get(names):
            return None
        return float(self._sums[names][i, j]) / self._rows[names]


def _distance(mixed: Tensor, mean: Tensor) -> Float[Tensor, " G"]:
    """The sum over rows of √JS.

    mixed   (G, R), the entropy of the mean of two rows, in nats
    mean    (G, R), the mean of their entropies
    """
    log_of_2 = torch.log(torch.tensor(2.0, dtype=torch.float64))
    divergence = (mixed - mean).double() / log_of_2
    return divergence.clamp(0.0, 1.0).sqrt().sum(-1)


def grouped(distances: Sequence[Sequence[float | None]], most: float = SAME_GROUP) -> list[int]:
    """The group of each head: average linkage (UPGMA) up to this mean distance.

    Groups are numbered from 0 in the order of the whole dendrogram, so that groups with near numbers are similar too.

    >>> grouped([[0.0, 0.1, None], [0.1, 0.0, 0.9], [None, 0.9, 0.0]])
    [0, 0, 1]
    """
    if not distances:
        return []
    infinite = float("inf")
    # Heads that cannot be compared, and a head and itself, are never merged.
    known = [[infinite if distance is None else distance for distance in row] for row in distances]
    between = torch.tensor(known, dtype=torch.float64)
    between.fill_diagonal_(infinite)
    members = [[head] for head in range(len(distances))]
    groups = None
    while True:
        nearest = float(between.min())
        # The groups are the clusters before the first merge over too large a distance.
        if groups is None and nearest > most:
            groups = [set(each) for each in members]
        if nearest == infinite:
            break
        a, b = sorted(divmod(int(between.argmin()), len(members)))
        size = torch.tensor([len(members[a]), len(members[b])], dtype=torch.float64)
        joined = (between[a] * size[0] + between[b] * size[1]) / size.sum()
        between[a] = joined
        between[:, a] = joined
        between[a, a] = infinite
        kept = [each for each in range(len(members)) if each != b]
        between = between[kept][:, kept]
        members[a] = members[a] + members[b]
        del members[b]
    order = [head for each in members for head in each]
    numbered = sorted(groups or [set(order)], key=lambda group: min(map(order.index, group)))
    number_of = {head: number for number, group in enumerate(numbered) for head in group}
    return [number_of[head] for head in range(len(distances))]
