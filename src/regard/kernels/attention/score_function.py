"""Score functions: how well a projected query and a projected key match. Attention weights are their softmax.

`ScoreFunction` is the interface; a `regard.Score` projects queries and keys and names the score function to use. Every
score function runs in the reference and blockwise kernels and in exact weights; the other kernels declare in their
`supports` which ones they take.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import final

import torch

from regard.core.shapes import Float, Tensor

QueryRows = Float[Tensor, "B H R D"]
KeyBlock = Float[Tensor, "B H C D"]
ScoreTile = Float[Tensor, "B H R C"]
# Of the query, the key and the function's own weight.
Gradients = tuple[Tensor, Tensor, Tensor | None]


class ScoreFunction(ABC):
    """Scores (B, H, R, C) of queries (B, H, R, D) with keys (B, H, C, D), and their gradients.

    Subclasses are frozen dataclasses. `scores` is all that one has to define; `blocked_scores` and `gradients` are
    overridden where less memory or less time is possible.
    """

    # A learnable tensor of the function's own, its first axis the heads (1: shared by all); None: it has none.
    weight: Float[Tensor, "#H ..."] | None

    @abstractmethod
    def scores(self, query: QueryRows, key: KeyBlock) -> ScoreTile:
        """The scores, written so that autograd can differentiate them.

        `query` and `key` are float32 or wider; cast the weight to their dtype.
        """

    def blocked_scores(self, query: QueryRows, key: KeyBlock) -> ScoreTile:
        """The same as `scores` of `query` and `key`, in bounded memory.

        The caller overwrites the result, which must be a tensor of its own.
        """
        return self.scores(query, key)

    def gradients(self, d_scores: ScoreTile, query: QueryRows, key: KeyBlock) -> Gradients:
        """Gradients of `query`, `key` and the weight (None without one), given `d_scores`, the scores' gradient."""
        inputs = [query, key]
        if self.weight is not None:
            inputs.append(self.weight.to(query.dtype))
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_() for x in inputs]
            scores = self.with_weight(*leaves[2:]).scores(*leaves[:2])
            d_query, d_key, *d_weight = torch.autograd.grad(
                scores, leaves, d_scores, materialize_grads=True
            )
        return d_query, d_key, d_weight[0] if d_weight else None

    def with_weight(self, weight: Tensor | None = None) -> "ScoreFunction":
        """A copy with another weight, such as the one that autograd saved for the backward pass."""
        if weight is None:
            return self
        return replace(self, weight=weight)  # type: ignore[type-var]

    def for_heads(self, heads: Tensor) -> "ScoreFunction":
        """The function of a selection of heads."""
        if self.weight is None or len(self.weight) == 1:
            return self
        return self.with_weight(self.weight[heads])


@final
@dataclass(frozen=True)
class DotScoreFunction(ScoreFunction):
    """scale · q·k"""

    scale: float
    weight = None

    def scores(self, query: QueryRows, key: KeyBlock) -> ScoreTile:
        return query @ key.mT * self.scale

    def blocked_scores(self, query: QueryRows, key: KeyBlock) -> ScoreTile:
        return (query * self.scale) @ key.mT

    def gradients(self, d_scores: ScoreTile, query: QueryRows, key: KeyBlock) -> Gradients:
        return d_scores @ key * self.scale, d_scores.mT @ (query * self.scale), None


# Elements of the (query, key, dim) cube that exist at a time: two megabytes of float32 stay in a core's cache.
CUBE = 2**19


@final
@dataclass(frozen=True)
class AdditiveScoreFunction(ScoreFunction):
    """w · tanh(q + k), with one w for all heads or one per head (https://arxiv.org/abs/1409.0473).

    The (query, key, dim) cube is computed in pieces that fit a cache, in the forward and the backward pass.
    """

    weight: Float[Tensor, "#H D"]

    def scores(self, query: QueryRows, key: KeyBlock) -> ScoreTile:
        cube = torch.tanh(query[:, :, :, None] + key[:, :, None])  # (B, H, R, C, D)
        return (cube @ self.weight.to(cube.dtype)[:, None, :, None])[..., 0]

    def blocked_scores(self, query: QueryRows, key: KeyBlock) -> ScoreTile:
        weight = self.weight.to(query.dtype)
        out = query.new_empty(*query.shape[:3], key.shape[2])
        for b, h, rows, keys in self._pieces(query, key):
            own = h if len(weight) > 1 else 0
            cube = (query[b, h, rows, None] + key[b, h, None, keys]).tanh_()  # (b, R, C, D)
            out[b, h, rows, keys] = cube @ weight[own]
        return out

    def gradients(self, d_scores: ScoreTile, query: QueryRows, key: KeyBlock) -> Gradients:
        weight = self.weight.to(query.dtype)
        d_query = torch.zeros_like(query)
        d_key = torch.zeros_like(key)
        d_weight = torch.zeros_like(weight)
        for b, h, rows, keys in self._pieces(query, key):
            own = h if len(weight) > 1 else 0
            cube = (query[b, h, rows, None] + key[b, h, None, keys]).tanh_()  # (b, R, C, D)
            piece = d_scores[b, h, rows, keys]  # (b, R, C)
            d_weight[own] += piece.flatten() @ cube.flatten(0, -2)
            cube.square_().neg_().add_(1).mul_(piece[..., None])  # tanh' = 1 - tanh²
            d_query[b, h, rows] += cube.sum(-2)
            d_key[b, h, keys] += cube.sum(-3)
        return d_query * weight[:, None], d_key * weight[:, None], d_weight

    def _pieces(self, query: Tensor, key: Tensor) -> Iterator[tuple[slice, int, slice, slice]]:
        """Slices of the batch, a head, slices of the queries and of the keys that cover the cube."""
        batch, heads, r, dim = query.shape
        assert len(self.weight) in (1, heads)
        c = key.shape[2]
        keys = max(1, min(c, 128))
        rows = max(1, min(r, CUBE // max(1, dim * keys)))
        items = max(1, CUBE // max(1, dim * keys * rows))
        for b in range(0, batch, items):
            for h in range(heads):
                for i in range(0, r, rows):
                    for j in range(0, c, keys):
                        yield slice(b, b + items), h, slice(i, i + rows), slice(j, j + keys)
