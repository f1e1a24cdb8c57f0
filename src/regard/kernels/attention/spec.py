"""The specification of an attention call: everything that decides its weights. Values are passed separately."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
        first = 0
        indices = []
        weights = []
        for spec in specs:
            if spec.fixed is not None:
                indices.append(spec.fixed.index + first)
                weights.append(spec.fixed.weights)
            first += spec.n
        if not indices:
            return None
        return FixedRows(torch.cat(indices), torch.cat(weights, 2))

    def write(
        self, scores: Float[Tensor, "B H R C"], rows: RowRange, low: int, high: int, n: int
    ) -> None:
        """Replace the scores of these rows with keys low..high-1 by the logarithms of their weights."""
        given = torch.arange(n, device=scores.device)[rows]  # (R,)
        at, fixed = (given[:, None] == self.index).nonzero(as_tuple=True)
        weights = self.weights[:, :, fixed, low:high]
        scores[:, :, at] = weights.to(scores.dtype).log()


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
        bias = None
        if self.bias is not None:
            bias = biases.bias_values(self.bias)
        return self.query, self.key, self.score_function.weight, self.visible.allowed, bias

    @property
    def frame(self) -> "Frame":
        """The spec without its tensors."""
        weight = self.score_function.weight
        if weight is not None:
            weight = weight.detach()
        return Frame(
            score_function=self.score_function.with_weight(weight),
            behind=self.visible.behind,
            ahead=self.visible.ahead,
            by_distance=isinstance(self.bias, DistanceBias),
        )

    def detached(self) -> "AttentionSpec":
        """The spec with its tensors outside of the graph of autograd."""
        query, key, *others = self.tensors
        detached = [None if x is None else x.detach() for x in others]
        spec = self.frame.around(query.detach(), key.detach(), *detached)
        if self.fixed is None:
            return spec
        return replace(spec, fixed=self.fixed)

    def for_heads(self, heads: Tensor) -> "AttentionSpec":
        """The spec of a selection of query heads."""
        query = self.query[:, heads]
        group = self.query.shape[1] // self.key.shape[1]
        key = self.key[:, heads // group]
        bias = biases.selected(self.bias, 1, heads)
        visible = self.visible.select(1, heads)
        fixed = self.fixed
        if fixed is not None:
            fixed = replace(fixed, weights=fixed.weights[:, heads])
        return AttentionSpec(self.score_function.for_heads(heads), query, key, visible, bias, fixed)

    def for_batch(self, part: slice) -> "AttentionSpec":
        """The spec of a slice of the batch."""
        visible = self.visible.select(0, part)
        bias = biases.selected(self.bias, 0, part)
        fixed = self.fixed
        if fixed is not None:
            fixed = replace(fixed, weights=fixed.weights[part])
        query = self.query[part]
        key = self.key[part]
        return AttentionSpec(self.score_function, query, key, visible, bias, fixed)

    def for_keys(self, low: int, high: int) -> "AttentionSpec":
        """The spec of keys low..high-1, of a call whose mask and bias do not depend on distances."""
        assert not self.visible.banded
        assert not isinstance(self.bias, DistanceBias)
        every = slice(None)
        allowed = self.visible.allowed
        if allowed is not None:
            allowed = axis_tile(allowed, every, low, high)
        bias = self.bias
        if bias is not None:
            bias = axis_tile(bias, every, low, high)
        fixed = self.fixed
        if fixed is not None:
            fixed = replace(fixed, weights=fixed.weights[..., low:high])
        return replace(
            self,
            key=self.key[:, :, low:high],
            visible=AttentionMask(allowed),
            bias=bias,
            fixed=fixed,
        )

    def scores(self, rows: RowRange, low: int, high: int) -> Float[Tensor, "B H R C"]:
        """Scores of these rows with keys low..high-1, −∞ where masked, in float32 or wider."""
        query = self.query[:, :, rows]  # (B, H, R, D)
        key = repeat_heads(self.key, self.query.shape[1])[:, :, low:high]  # (B, H, C, D)
        scores = self.score_function.blocked_scores(widened(query), widened(key))  # (B, H, R, C)
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
        whole_bias: Bias | None = bias
        if bias is not None and self.by_distance:
            whole_bias = DistanceBias(bias)
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
    if group == 1:
        return tensor
    return tensor.repeat_interleave(group, dim=1)


def widened(tensor: Tensor) -> Tensor:
    """float16 and bfloat16 as float32, any other dtype unchanged."""
    if tensor.dtype in (torch.float16, torch.bfloat16):
        return tensor.float()
    return tensor
