"""Attention of wide heads over few keys, in half precision on a GPU: materialises the weights, smaller than q, k, v.

PyTorch's kernels for head dims above 256 take ten times as long in the backward pass. Scores and weights are float32.
"""

from typing import Any

import torch

from regard.core.shapes import LogSumExp, Outputs, Tensor, Values
from regard.kernels import triton_launch
from regard.kernels.attention import bias as biases
from regard.kernels.attention.blockwise import refuse_second_derivative
from regard.kernels.attention.score_function import DotScoreFunction
from regard.kernels.attention.spec import AttentionSpec
from regard.kernels.layers.linear import matmul_float32

MAX_SDPA_DIM = 256  # head dim up to which PyTorch has specialised kernels


def supports(spec: AttentionSpec, value: Values, dropout: float) -> bool:
    query, key = spec.query, spec.key
    n, m, dim = spec.n, spec.m, min(query.shape[-1], value.shape[-1])
    return (
        query.is_cuda
        and query.dtype == key.dtype == value.dtype
        and query.dtype in triton_launch.HALF
        and isinstance(spec.score_function, DotScoreFunction)
        and not torch.compiler.is_compiling()
        and not (
            spec.bias is not None
            and biases.bias_values(spec.bias).requires_grad
            and torch.is_grad_enabled()
        )
        and dropout == 0
        and query.shape[1] == key.shape[1] == value.shape[1]
        and dim > MAX_SDPA_DIM
        and 0 < n * m <= (n + m) * dim
    )


def attend(spec: AttentionSpec, value: Values, dropout: float = 0.0) -> tuple[Outputs, LogSumExp]:
    n, m, rows = spec.n, spec.m, slice(0, spec.n)
    bias = None if spec.bias is None else biases.tile(spec.bias, rows, 0, m, n)
    visible = spec.visible.tile(rows, 0, m, n, m, value.device)
    assert isinstance(spec.score_function, DotScoreFunction)
    assert dropout == 0
    with torch.autocast(value.device.type, enabled=False):
        return _SmallKV.apply(spec.score_function.scale, bias, visible, spec.query, spec.key, value)  # type: ignore[no-untyped-call, no-any-return]


class _SmallKV(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        scale: float,
        bias: Tensor | None,
        visible: Tensor | None,
        query: Tensor,
        key: Tensor,
        value: Tensor,
    ) -> tuple[Tensor, Tensor]:
        shape = query.shape[:2]
        query, key, value = (x.flatten(0, 1) for x in (query, key, value))
        scores = matmul_float32(query, key.mT).mul_(scale).unflatten(0, shape)  # type: ignore[no-untyped-call]
        if bias is not None:
            scores += bias
        if visible is not None:
            scores = scores.masked_fill_(~visible, -torch.inf)
        lse = scores.logsumexp(-1)
        lse = lse.masked_fill(
            lse == -torch.inf, 0.0
        )  # a row that may attend to nothing gives zeros
        weights = scores.sub_(lse[..., None]).exp_().flatten(0, 1)
        ctx.save_for_backward(query, key, value, weights)
        ctx.scale, ctx.shape = scale, shape
        ctx.mark_non_differentiable(lse)
        return (weights.to(value.dtype) @ value).unflatten(0, shape), lse

    @staticmethod
    def backward(ctx: Any, d_out: Tensor, _d_lse: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        query, key, value, weights = ctx.saved_tensors
        d_out = d_out.flatten(0, 1)
        d_weights = matmul_float32(d_out, value.mT).mul_(weights)
        d_scores = (
            torch.addcmul(d_weights, weights, d_weights.sum(-1, keepdim=True), value=-1)
            .mul_(ctx.scale)
            .to(query.dtype)
        )
        parts = d_scores @ key, d_scores.mT @ query, weights.to(value.dtype).mT @ d_out
        return None, None, None, *(x.unflatten(0, ctx.shape) for x in parts)
