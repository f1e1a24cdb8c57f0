"""Scores: how well a query matches a key. All are interchangeable wherever attention is used.

A score projects queries and keys into one space and names the `ScoreFunction` to apply there, so
four of them share the dot-product kernels and all share the blockwise one. Keys can be projected
once per source: see `ProjectedKeys`.
"""

from dataclasses import dataclass
from math import sqrt
from typing import Annotated, ClassVar

import torch
from torch import nn

from regard.core.errors import InvalidArgument
from regard.core.registry import Registry
from regard.core.shapes import Float, Tensor
from regard.kernels.attention.score_function import (
    AdditiveScoreFunction,
    DotScoreFunction,
    ScoreFunction,
)


class Score(nn.Module):
    """A score with its parameters.

    Subclasses define `queries` and `keys` where they project, and `score_function` unless it is the
    dot product. Parameters per head have a leading axis of `heads`, for queries (..., heads, N,
    dim), or of `kv_heads` where query heads share a head of keys.
    """

    # Whether packed attention supports it: dot products that keep the head dim.
    packable: ClassVar[bool] = False
    equal_dims: ClassVar[bool] = False  # whether queries and keys must have the same dim
    # Whether `queries` is a linear map, which kernels may fold into weights.
    linear_queries: ClassVar[bool] = False
    content_based: ClassVar[bool] = True  # whether scores depend on the queries and keys at all

    @classmethod
    def build(
        cls, query_dim: int, key_dim: int, heads: int | None = None, kv_heads: int | None = None
    ) -> "Score":
        """A score for these dims; called for a name in `SCORES`.

        query_dim, key_dim   of the queries and of the keys
        heads                number of heads that have parameters of their own; None: one set for
                             all
        kv_heads             heads of keys, where query heads share them
        """
        if cls.equal_dims and query_dim != key_dim:
            wanted = f"queries and keys of one dim for {cls.__name__}"
            remedy = "Make them equal, or use 'bilinear', 'reduced_rank' or 'additive'."
            raise InvalidArgument(
                "score", wanted=wanted, got=f"dims {query_dim} and {key_dim}", remedy=remedy
            )
        return cls()

    def queries(self, query: Float[Tensor, "... N Q"]) -> Float[Tensor, "... N D"]:
        """The projected queries (..., N, D) of `query` (..., N, query_dim)."""
        return query

    def keys(self, key: Float[Tensor, "... M K"]) -> Float[Tensor, "... M D"]:
        """The projected keys (..., M, D) of `key` (..., M, key_dim)."""
        return key

    def score_function(self, dim: int) -> ScoreFunction:
        """The function of projected queries and keys, of this dim."""
        return DotScoreFunction(1.0)


@dataclass(frozen=True)
class ProjectedKeys:
    """A score whose keys were already projected by `score.keys`: once per source,
    then each step only its query.
    """

    score: Score

    def queries(self, query: Float[Tensor, "... N Q"]) -> Float[Tensor, "... N D"]:
        """The projected queries of `query`, by the score."""
        return self.score.queries(query)

    def keys(self, key: Float[Tensor, "... M D"]) -> Float[Tensor, "... M D"]:
        """The given `key`, which is projected already."""
        return key

    def score_function(self, dim: int) -> ScoreFunction:
        """That of the score, for queries and keys of this `dim`."""
        return self.score.score_function(dim)


Scoring = Score | ProjectedKeys


class Dot(Score):
    """q·k"""

    packable = equal_dims = linear_queries = True


class ScaledDot(Score):
    """q·k / √dim, so that the variance of a score does not grow with the dim
    (https://arxiv.org/abs/1706.03762).
    """

    packable = equal_dims = linear_queries = True

    def score_function(self, dim: int) -> ScoreFunction:
        return DotScoreFunction(1 / sqrt(dim))


class Bilinear(Score):
    """qᵀ W k, the multiplicative score;
    W is applied to the keys (https://arxiv.org/abs/1508.04025).

    query_dim, key_dim, heads, kv_heads   as of `Score.build`
    """

    packable = linear_queries = True

    def __init__(
        self, query_dim: int, key_dim: int, *, heads: int | None = None, kv_heads: int | None = None
    ) -> None:
        super().__init__()
        self.weight = _matrix(key_dim, query_dim, kv_heads or heads)

    @classmethod
    def build(
        cls, query_dim: int, key_dim: int, heads: int | None = None, kv_heads: int | None = None
    ) -> Score:
        """As `Score.build` of query_dim, key_dim, heads, kv_heads."""
        return cls(query_dim, key_dim, heads=heads, kv_heads=kv_heads)

    def keys(self, key: Float[Tensor, "... M K"]) -> Float[Tensor, "... M D"]:
        return _project("key", key, self.weight)


class ProjectedScore(Score):
    """Base of the scores that project queries and keys into one space of dimension `dim`."""

    linear_queries = True

    def __init__(
        self,
        query_dim: int,
        key_dim: int,
        dim: int,
        *,
        heads: int | None = None,
        kv_heads: int | None = None,
    ) -> None:
        super().__init__()
        self.query_weight = _matrix(query_dim, dim, heads)
        self.key_weight = _matrix(key_dim, dim, kv_heads or heads)

    def queries(self, query: Float[Tensor, "... N Q"]) -> Float[Tensor, "... N D"]:
        return _project("query", query, self.query_weight)

    def keys(self, key: Float[Tensor, "... M K"]) -> Float[Tensor, "... M D"]:
        return _project("key", key, self.key_weight)


class ReducedRank(ProjectedScore):
    """(Uq)·(Vk), the bilinear score with W = UᵀV of rank `dim`.

    query_dim, key_dim, heads, kv_heads   as of `Score.build`
    dim                                   of the projected queries and keys
    """

    @classmethod
    def build(
        cls, query_dim: int, key_dim: int, heads: int | None = None, kv_heads: int | None = None
    ) -> Score:
        """As `Score.build` of query_dim, key_dim, heads, kv_heads;
        the rank is a quarter of the smaller dim.
        """
        rank = max(1, min(query_dim, key_dim) // 4)
        return cls(query_dim, key_dim, rank, heads=heads, kv_heads=kv_heads)


class Additive(ProjectedScore):
    """w · tanh(Uq + Vk + b), a perceptron with one hidden layer (https://arxiv.org/abs/1409.0473).

    query_dim, key_dim, heads, kv_heads   as of `Score.build`
    dim                                   of the hidden layer
    """

    def __init__(
        self,
        query_dim: int,
        key_dim: int,
        dim: int,
        *,
        heads: int | None = None,
        kv_heads: int | None = None,
    ) -> None:
        super().__init__(query_dim, key_dim, dim, heads=heads, kv_heads=kv_heads)
        self.key_bias = nn.Parameter(self.key_weight.new_zeros(*self.key_weight.shape[:-2], 1, dim))
        self.weight = nn.Parameter(torch.empty(heads or 1, dim).uniform_(-1, 1) * sqrt(3 / dim))

    @classmethod
    def build(
        cls, query_dim: int, key_dim: int, heads: int | None = None, kv_heads: int | None = None
    ) -> Score:
        """As `Score.build` of query_dim, key_dim, heads, kv_heads;
        the hidden layer has query_dim units.
        """
        return cls(query_dim, key_dim, query_dim, heads=heads, kv_heads=kv_heads)

    def keys(self, key: Float[Tensor, "... M K"]) -> Float[Tensor, "... M D"]:
        return super().keys(key) + self.key_bias

    def score_function(self, dim: int) -> ScoreFunction:
        return AdditiveScoreFunction(self.weight)


class Uniform(Score):
    """0 for every pair: attention becomes the mean of the visible values,
    a baseline for the other scores.
    """

    content_based = False
    linear_queries = True

    def queries(self, query: Float[Tensor, "... N Q"]) -> Float[Tensor, "... N 1"]:
        """One zero per query: the `query` itself does not matter."""
        return query.new_zeros(*query.shape[:-1], 1)

    def keys(self, key: Float[Tensor, "... M K"]) -> Float[Tensor, "... M 1"]:
        """One zero per key: the `key` itself does not matter."""
        return key.new_zeros(*key.shape[:-1], 1)


SCORES: Registry[type[Score]] = Registry(
    "score",
    {
        "dot": Dot,
        "scaled_dot": ScaledDot,
        "bilinear": Bilinear,
        "reduced_rank": ReducedRank,
        "additive": Additive,
        "uniform": Uniform,
    },
)
ScoreName = Annotated[str, SCORES]


def _matrix(rows: int, columns: int, heads: int | None) -> nn.Parameter:
    """A matrix, or one per head, with Xavier uniform initialisation."""
    if min(rows, columns, heads or 1) < 1:
        raise InvalidArgument(
            "dims and heads of a score",
            wanted="at least 1",
            got=f"{rows}, {columns}, {heads}",
            remedy="Check them.",
        )
    shape = (rows, columns) if heads is None else (heads, rows, columns)
    return nn.Parameter(torch.empty(shape).uniform_(-1, 1) * sqrt(6 / (rows + columns)))


def _project(argument: str, tensor: Tensor, weight: Tensor) -> Tensor:
    """A tensor (..., positions, dim) times one matrix, or one per head.

    Refused unless it has the matrix's dim.
    """
    if tensor.shape[-1] != weight.shape[-2]:
        wanted = f"dim {weight.shape[-2]}, for which the score was built"
        got = f"dim {tensor.shape[-1]} in shape {tuple(tensor.shape)}"
        remedy = "Build the score with the dims of your queries and keys."
        raise InvalidArgument(argument, wanted=wanted, got=got, remedy=remedy)
    if weight.dim() == 3 and tensor.dim() > 2 and tensor.shape[-3] not in (1, weight.shape[0]):
        wanted = (
            f"a head axis of {weight.shape[0]} before the positions, for which the score was built"
        )
        got = f"{tensor.shape[-3]} in shape {tuple(tensor.shape)}"
        remedy = "Give (..., heads, positions, dim), or build the score without heads."
        raise InvalidArgument(argument, wanted=wanted, got=got, remedy=remedy)
    return tensor @ weight
