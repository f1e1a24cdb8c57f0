"""The specification of an attention call: everything that decides its weights. Values are passed separately."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Protocol, runtime_checkable

import torch

from regard.core.shapes import Float, Int, Keys, LogSumExp, Outputs, Queries, Tensor, Values
from regard.kernels.attention import bias as biases
from regard.kernels.attention.bias import Bias, DistanceBias
from regard.kernels.attention.mask import AttentionMask, RowRange, axis_tile
from regard.kernels.attention.score_function import ScoreFunction

# query, key, weight of the score function, mask, values of the bias
Tensors = tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]


@dataclass(frozen=True)
class FixedRows:
    """Rows whose weights were replaced after a kernel computed them; their log-sum-exp counts as 0."""

    index: Int[Tensor, " F"]  # query rows
    weights: Float[Tensor, "B H F M"]

    @staticmethod
    def concatenated(specs: "Sequence[AttentionSpec]") -> "FixedRows | None":
        """The fixed rows of calls one after another, as rows of one call with all their queries."""
        ends = accumulate(spec.n for spec in specs)
        parts = [
            (spec.fixed, end - spec.n)
            for spec, end in zip(specs, ends, strict=True)
            if spec.fixed is not None
        ]
        if not parts:
            return None
        index = torch.cat([fixed.index + first for fixed, first in parts])
        return FixedRows(index, torch.cat([fixed.weights for fixed, _ in parts], 2))

    def write(
        self, scores: Float[Tensor, "B H R C"], rows: RowRange, low: int, high: int, n: int
    ) -> None:
        """Replace the scores of these rows with keys low..high-1 by the logarithms of their weights."""
        given = torch.arange(n, device=scores.device)[rows]
        at, fixed = (given[:, None] == self.index).nonzero(as_tuple=True)
        scores[:, :, at] = self.weights[:, :, fixed, low:high].to(scores.dtype).log()


@dataclass(frozen=True)
class AttentionSpec:
    """Queries, keys, score function, mask and bias: what attention weights are computed from, at any time.

    Kernels never see fixed rows: interceptors replace rows after a kernel, and captures show them.
    """

    score_function: ScoreFunction
    query: Queries
    key: Keys
    visible: AttentionMask
    bias: Bias | None = None
    fixed: FixedRows | None = None

    @property
    def n(self) -> int:
        return self.query.shape[2]

    @property
    def m(self) -> int:
        return self.key.shape[2]

    @property
    def tensors(self) -> Tensors:
        """Its tensors, for autograd to save; `frame` holds the rest and rebuilds the spec from them."""
        bias = None if self.bias is None else biases.bias_values(self.bias)
        return self.query, self.key, self.score_function.weight, self.visible.allowed, bias

    @property
    def frame(self) -> "Frame":
        """The spec without its tensors."""
        weight = self.score_function.weight
        score_function = self.score_function.with_weight(
            None if weight is None else weight.detach()
        )
        return Frame(
            score_function,
            self.visible.behind,
            self.visible.ahead,
            isinstance(self.bias, DistanceBias),
        )

    def detached(self) -> "AttentionSpec":
        query, key, *others = self.tensors
        spec = self.frame.around(
            query.detach(), key.detach(), *(None if x is None else x.detach() for x in others)
        )
        return spec if self.fixed is None else replace(spec, fixed=self.fixed)

    def for_heads(self, heads: Tensor) -> "AttentionSpec":
        """The spec of a selection of query heads."""
        query, key = (
            self.query[:, heads],
            self.key[:, heads // (self.query.shape[1] // self.key.shape[1])],
        )
        bias, visible, fixed = (
            biases.selected(self.bias, 1, heads),
            self.visible.select(1, heads),
            self.fixed,
        )
        fixed = None if fixed is None else replace(fixed, weights=fixed.weights[:, heads])
        return AttentionSpec(self.score_function.for_heads(heads), query, key, visible, bias, fixed)

    def for_batch(self, part: slice) -> "AttentionSpec":
        """The spec of a slice of the batch."""
        visible, bias, fixed = (
            self.visible.select(0, part),
            biases.selected(self.bias, 0, part),
            self.fixed,
        )
        fixed = None if fixed is None else replace(fixed, weights=fixed.weights[part])
        return AttentionSpec(
            self.score_function, self.query[part], self.key[part], visible, bias, fixed
        )

    def for_keys(self, low: int, high: int) -> "AttentionSpec":
        """The spec of keys low..high-1, of a call whose mask and bias do not depend on distances."""
        assert not self.visible.banded
        assert not isinstance(self.bias, DistanceBias)
        every = slice(None)
        allowed = (
            None
            if self.visible.allowed is None
            else axis_tile(self.visible.allowed, every, low, high)
        )
        bias = None if self.bias is None else axis_tile(self.bias, every, low, high)
        fixed = (
            None
            if self.fixed is None
            else replace(self.fixed, weights=self.fixed.weights[..., low:high])
        )
        return replace(
            self,
            key=self.key[:, :, low:high],
            visible=AttentionMask(allowed),
            bias=bias,
            fixed=fixed,
        )

    def scores(self, rows: RowRange, low: int, high: int) -> Float[Tensor, "B H R C"]:
        """Scores of these rows with keys low..high-1, −∞ where masked, in float32 or wider."""
        query, key = (
            self.query[:, :, rows],
            repeat_heads(self.key, self.query.shape[1])[:, :, low:high],
        )
        scores = self.score_function.blocked_scores(widened(query), widened(key))
        if self.bias is not None:
            scores += biases.tile(self.bias, rows, low, high, self.n)
        visible = self.visible.tile(rows, low, high, self.n, self.m, query.device)
        if visible is not None:
            scores.masked_fill_(~visible, -torch.inf)
        if self.fixed is not None:
            self.fixed.write(scores, rows, low, high, self.n)
        return scores


@dataclass(frozen=True)
class Frame:
    """An AttentionSpec without its tensors; the score function's weight is a detached placeholder."""

    score_function: ScoreFunction
    behind: int | None
    ahead: int | None
    by_distance: bool  # whether the bias is a DistanceBias

    def around(
        self,
        query: Tensor,
        key: Tensor,
        weight: Tensor | None,
        allowed: Tensor | None,
        bias: Tensor | None,
    ) -> AttentionSpec:
        """The spec rebuilt around its tensors."""
        mask = AttentionMask(allowed, self.behind, self.ahead)
        whole_bias = DistanceBias(bias) if bias is not None and self.by_distance else bias
        return AttentionSpec(self.score_function.with_weight(weight), query, key, mask, whole_bias)


@runtime_checkable
class AttentionKernel(Protocol):
    """An implementation of attention: a module with these two functions."""

    def supports(self, spec: AttentionSpec, value: Values, dropout: float) -> bool:
        """Whether `attend` computes this call, with its gradients, on this device."""

    def attend(
        self, spec: AttentionSpec, value: Values, dropout: float = 0.0
    ) -> tuple[Outputs, LogSumExp]:
        """The output, and the log-sum-exp of each row of scores (0 for a row that may attend to nothing)."""


def repeat_heads(tensor: Float[Tensor, "B _ M E"], heads: int) -> Float[Tensor, "B H M E"]:
    """Each key or value head repeated for every query head of its group (grouped-query attention)."""
    group = heads // max(1, tensor.shape[1])
    return tensor if group == 1 else tensor.repeat_interleave(group, dim=1)


def widened(tensor: Tensor) -> Tensor:
    """float16 and bfloat16 as float32, any other dtype unchanged."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
