"""Score functions: how well a query and a key fit. All are interchangeable wherever attention is used.

A score projects queries and keys into one space and leaves the rest to an energy there, so four of them share the
fused dot-product kernels and all share one streamed one. Keys can be projected once per source and used for many
queries: see `KeysReady`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import Literal

import torch
from torch import nn

from regard.core.errors import InvalidArgument
from regard.core.shapes import Float, Tensor
from regard.kernels.attention.score_function import AdditiveScoreFunction, DotScoreFunction, ScoreFunction


class Score(nn.Module, ABC):
    """A score function with its parameters.

    Those that have any take `heads` to hold them per head, for queries (..., heads, N, width), and `key_heads` where
    several query heads share one head of keys.
    """

    def queries(self, query: Float[Tensor, "... N Q"]) -> Float[Tensor, "... N D"]:
        return query

    def keys(self, key: Float[Tensor, "... M K"]) -> Float[Tensor, "... M D"]:
        return key

    @abstractmethod
    def score_function(self, dim: int) -> ScoreFunction:
        """What is computed where queries and keys meet, `width` being the width there."""


@dataclass(frozen=True)
class ProjectedKeys:
    """A score whose keys already went through `score.keys`: once per source, then a step costs only its query."""

    score: Score

    def queries(self, query: Float[Tensor, "... N Q"]) -> Float[Tensor, "... N D"]:
        return self.score.queries(query)

    def keys(self, key: Float[Tensor, "... M D"]) -> Float[Tensor, "... M D"]:
        return key

    def score_function(self, dim: int) -> ScoreFunction:
        return self.score.score_function(dim)


Scoring = Score | ProjectedKeys


class Dot(Score):
    """q·k"""

    def score_function(self, dim: int) -> ScoreFunction:
        return DotScoreFunction(1.0)


class ScaledDot(Score):
    """q·k / √width, so that the variance of a score does not grow with the width."""

    def score_function(self, dim: int) -> ScoreFunction:
        return DotScoreFunction(1 / sqrt(dim))


class Bilinear(Score):
    """qᵀ W k, the multiplicative score; W is applied to the keys, which are there once and asked many times."""

    def __init__(self, query_dim: int, key_dim: int, *, heads: int | None = None, kv_heads: int | None = None) -> None:
        super().__init__()
        self.weight = _matrix(key_dim, query_dim, kv_heads or heads)

    def keys(self, key: Float[Tensor, "... M K"]) -> Float[Tensor, "... M D"]:
        _check("key", key, self.weight)
        return key @ self.weight

    def score_function(self, dim: int) -> ScoreFunction:
        return DotScoreFunction(1.0)


class ReducedRank(Score):
    """(Uq)·(Vk), the bilinear score with W = UᵀV of low rank."""

    def __init__(
        self, query_dim: int, key_dim: int, rank: int, *, heads: int | None = None, kv_heads: int | None = None
    ) -> None:
        super().__init__()
        self.query_weight = _matrix(query_dim, rank, heads)
        self.key_weight = _matrix(key_dim, rank, kv_heads or heads)

    def queries(self, query: Float[Tensor, "... N Q"]) -> Float[Tensor, "... N D"]:
        _check("query", query, self.query_weight)
        return query @ self.query_weight

    def keys(self, key: Float[Tensor, "... M K"]) -> Float[Tensor, "... M D"]:
        _check("key", key, self.key_weight)
        return key @ self.key_weight

    def score_function(self, dim: int) -> ScoreFunction:
        return DotScoreFunction(1.0)


class Additive(Score):
    """w · tanh(Uq + Vk + b), a perceptron with one hidden layer (https://arxiv.org/abs/1409.0473)."""

    def __init__(
        self, query_dim: int, key_dim: int, dim: int, *, heads: int | None = None, kv_heads: int | None = None
    ) -> None:
        super().__init__()
        self.query_weight = _matrix(query_dim, dim, heads)
        self.key_weight = _matrix(key_dim, dim, kv_heads or heads)
        self.key_bias = nn.Parameter(self.key_weight.new_zeros(*self.key_weight.shape[:-2], 1, dim))
        self.weight = nn.Parameter(torch.empty(heads or 1, dim).uniform_(-1, 1) * sqrt(3 / dim))

    def queries(self, query: Float[Tensor, "... N Q"]) -> Float[Tensor, "... N D"]:
        _check("query", query, self.query_weight)
        return query @ self.query_weight

    def keys(self, key: Float[Tensor, "... M K"]) -> Float[Tensor, "... M D"]:
        _check("key", key, self.key_weight)
        return key @ self.key_weight + self.key_bias

    def score_function(self, dim: int) -> ScoreFunction:
        return AdditiveScoreFunction(self.weight)


class Uniform(Score):
    """Every visible key alike: mean pooling, the baseline that any other score should beat."""

    def queries(self, query: Float[Tensor, "... N Q"]) -> Float[Tensor, "... N 1"]:
        return query.new_zeros(*query.shape[:-1], 1)

    def keys(self, key: Float[Tensor, "... M K"]) -> Float[Tensor, "... M 1"]:
        return key.new_zeros(*key.shape[:-1], 1)

    def score_function(self, dim: int) -> ScoreFunction:
        return DotScoreFunction(1.0)


def _same_dim(name: str, query_dim: int, key_dim: int) -> None:
    if query_dim != key_dim:
        raise InvalidArgument(
            "score",
            wanted=f"queries and keys of one width for {name!r}",
            got=f"widths {query_dim} and {key_dim}",
            remedy="Make them equal, or use 'bilinear', 'reduced_rank' or 'additive'.",
        )


def _dot(query_dim: int, key_dim: int, heads: int | None, kv_heads: int | None) -> Score:
    _same_dim("dot", query_dim, key_dim)
    return Dot()


def _scaled_dot(query_dim: int, key_dim: int, heads: int | None, kv_heads: int | None) -> Score:
    _same_dim("scaled_dot", query_dim, key_dim)
    return ScaledDot()


ScoreName = Literal["dot", "scaled_dot", "bilinear", "reduced_rank", "additive", "uniform"]

# name -> how to make one: the widths of queries and keys, and how many heads of each (None: no head axis)
SCORES: dict[str, Callable[[int, int, int | None, int | None], Score]] = {
    "dot": _dot,
    "scaled_dot": _scaled_dot,
    "bilinear": lambda q, k, heads, kv_heads: Bilinear(q, k, heads=heads, kv_heads=kv_heads),
    "reduced_rank": lambda q, k, heads, kv_heads: ReducedRank(
        q, k, max(1, min(q, k) // 4), heads=heads, kv_heads=kv_heads
    ),
    "additive": lambda q, k, heads, kv_heads: Additive(q, k, q, heads=heads, kv_heads=kv_heads),
    "uniform": lambda q, k, heads, kv_heads: Uniform(),
}


def _matrix(rows: int, columns: int, heads: int | None) -> nn.Parameter:
    """Glorot's uniform initialisation, for one matrix or one a head."""
    if min(rows, columns, heads or 1) < 1:
        raise InvalidArgument(
            "widths and heads of a score", wanted="at least 1", got=f"{rows}, {columns}, {heads}", remedy="Check them."
        )
    shape = (rows, columns) if heads is None else (heads, rows, columns)
    return nn.Parameter(torch.empty(shape).uniform_(-1, 1) * sqrt(6 / (rows + columns)))


def _check(argument: str, tensor: Tensor, weight: Tensor) -> None:
    """Refuse a tensor (..., positions, width) that these weights, one matrix or one a head, cannot project."""
    if tensor.shape[-1] != weight.shape[-2]:
        raise InvalidArgument(
            argument,
            wanted=f"width {weight.shape[-2]}, as the score was built for",
            got=f"width {tensor.shape[-1]} in shape {tuple(tensor.shape)}",
            remedy="Build the score with the widths of your queries and keys.",
        )
    if weight.dim() == 3 and tensor.dim() > 2 and tensor.shape[-3] not in (1, weight.shape[0]):
        raise InvalidArgument(
            argument,
            wanted=f"a head axis of {weight.shape[0]} before the positions, as the score was built for",
            got=f"{tensor.shape[-3]} in shape {tuple(tensor.shape)}",
            remedy="Give (..., heads, positions, width), or build the score without heads.",
        )
