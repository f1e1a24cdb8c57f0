"""The two energies that every score comes down to once its projections are done: a dot product, and tanh.

An energy gives scores (B, H, R, C) for queries (B, H, R, D) and keys (B, H, C, D), and the gradients of what went in.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from regard.core.shapes import Float, Tensor

Gradients = tuple[Tensor, Tensor, Tensor | None]  # of the query, the key and the energy's own weight


@dataclass(frozen=True)
class DotScoreFunction:
    """scale · q·k"""

    scale: float

    @property
    def weight(self) -> None:
        return None

    def for_heads(self, heads: Tensor) -> "DotScoreFunction":
        return self

    def plain(self, query: Float[Tensor, "B H R D"], key: Float[Tensor, "B H C D"]) -> Float[Tensor, "B H R C"]:
        return query @ key.mT * self.scale

    def scores(self, query: Float[Tensor, "B H R D"], key: Float[Tensor, "B H C D"]) -> Float[Tensor, "B H R C"]:
        return (query * self.scale) @ key.mT

    def gradients(
        self, scores: Float[Tensor, "B H R C"], query: Float[Tensor, "B H R D"], key: Float[Tensor, "B H C D"]
    ) -> Gradients:
        return scores @ key * self.scale, scores.mT @ (query * self.scale), None


# How many elements of the query × key × width cube exist at a time: two megabytes of float32 stay in a core's cache.
CUBE = 2**19


@dataclass(frozen=True)
class AdditiveScoreFunction:
    """w · tanh(q + k), one w for all heads or one a head (https://arxiv.org/abs/1409.0473).

    The cube of every query with every key is visited in pieces that fit a cache, forwards and backwards.
    """

    weight: Float[Tensor, "#H D"]

    def for_heads(self, heads: Tensor) -> "AdditiveScoreFunction":
        return self if self.weight.shape[0] == 1 else AdditiveScoreFunction(self.weight[heads])

    def plain(self, query: Float[Tensor, "B H R D"], key: Float[Tensor, "B H C D"]) -> Float[Tensor, "B H R C"]:
        cube = torch.tanh(query[:, :, :, None] + key[:, :, None])  # (B, H, R, C, D)
        return (cube @ self.weight.to(cube.dtype)[:, None, :, None])[..., 0]

    def scores(self, query: Float[Tensor, "B H R D"], key: Float[Tensor, "B H C D"]) -> Float[Tensor, "B H R C"]:
        weight = self.weight.to(query.dtype)
        out = query.new_empty(*query.shape[:3], key.shape[2])
        for b, h, rows, keys in self._pieces(query, key):
            cube = (query[b, h, rows, None] + key[b, h, None, keys]).tanh_()  # (b, R, C, D)
            out[b, h, rows, keys] = cube @ weight[h if len(weight) > 1 else 0]
        return out

    def gradients(
        self, scores: Float[Tensor, "B H R C"], query: Float[Tensor, "B H R D"], key: Float[Tensor, "B H C D"]
    ) -> Gradients:
        weight = self.weight.to(query.dtype)
        d_query, d_key, d_weight = torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(weight)
        for b, h, rows, keys in self._pieces(query, key):
            cube = (query[b, h, rows, None] + key[b, h, None, keys]).tanh_()  # (b, R, C, D)
            piece = scores[b, h, rows, keys]  # (b, R, C)
            d_weight[h if len(weight) > 1 else 0] += piece.flatten() @ cube.flatten(0, -2)
            cube.square_().neg_().add_(1).mul_(piece[..., None])  # tanh' = 1 - tanh²
            d_query[b, h, rows] += cube.sum(-2)
            d_key[b, h, keys] += cube.sum(-3)
        return d_query * weight[:, None], d_key * weight[:, None], d_weight

    def _pieces(self, query: Tensor, key: Tensor) -> Iterator[tuple[slice, int, slice, slice]]:
        batch, heads, r, width = query.shape
        assert len(self.weight) in (1, heads)
        c = key.shape[2]
        keys = max(1, min(c, 128))
        rows = max(1, min(r, CUBE // max(1, width * keys)))
        items = max(1, CUBE // max(1, width * keys * rows))
        for b in range(0, batch, items):
            for h in range(heads):
                for i in range(0, r, rows):
                    for j in range(0, c, keys):
                        yield slice(b, b + items), h, slice(i, i + rows), slice(j, j + keys)


ScoreFunction = DotScoreFunction | AdditiveScoreFunction
