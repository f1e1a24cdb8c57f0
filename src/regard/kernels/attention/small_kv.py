"""Attention of wide heads over few keys, in half precision on a GPU.

It materializes the weights, which are smaller than queries, keys and values. PyTorch's kernels for head dims above 256
take ten times as long in the backward pass. Scores and weights are float32.
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
    query = spec.query
    key = spec.key
    n = spec.n
    m = spec.m
    dim = min(query.shape[-1], value.shape[-1])
    if not query.is_cuda or torch.compiler.is_compiling():
        return False
    if not query.dtype == key.dtype == value.dtype or query.dtype not in triton_launch.HALF:
        return False
    if not isinstance(spec.score_function, DotScoreFunction) or dropout != 0:
        return False
    # The backward pass has no gradient for a learned bias.
    if spec.bias is not None and torch.is_grad_enabled():
        is_learned = biases.bias_values(spec.bias).requires_grad
        if is_learned:
            return False
    same_heads = query.shape[1] == key.shape[1] == value.shape[1]
    weights_are_smaller = 0 < n * m <= (n + m) * dim
    return same_heads and dim > MAX_SDPA_DIM and weights_are_smaller


def attend(spec: AttentionSpec, value: Values, dropout: float = 0.0) -> tuple[Outputs, LogSumExp]:
    n = spec.n
    m = spec.m
    rows = slice(0, spec.n)
    bias = None
    if spec.bias is not None:
        bias = biases.tile(spec.bias, rows, 0, m, n)
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
        query = query.flatten(0, 1)  # (B H, N, D)
        key = key.flatten(0, 1)
        value = value.flatten(0, 1)
        products = matmul_float32(query, key.mT).mul_(scale)  # (B H, N, M)
        scores = products.unflatten(0, shape)  # type: ignore[no-untyped-call]
        if bias is not None:
            scores += bias
        if visible is not None:
            scores = scores.masked_fill_(~visible, -torch.inf)
        lse = scores.logsumexp(-1)
        # A row that may attend to nothing gives zeros.
        lse = lse.masked_fill(lse == -torch.inf, 0.0)
        weights = scores.sub_(lse[..., None]).exp_().flatten(0, 1)  # (B H, N, M)
        ctx.save_for_backward(query, key, value, weights)
        ctx.scale = scale
        ctx.shape = shape
        ctx.mark_non_differentiable(lse)
        out = weights.to(value.dtype) @ value  # (B H, N, E)
        return out.unflatten(0, shape), lse

    @staticmethod
    def backward(ctx: Any, d_out: Tensor, _d_lse: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        query, key, value, weights = ctx.saved_tensors
        d_out = d_out.flatten(0, 1)  # (B H, N, E)
        d_weights = matmul_float32(d_out, value.mT).mul_(weights)  # (B H, N, M)
        sums = d_weights.sum(-1, keepdim=True)
        d_scores = torch.addcmul(d_weights, weights, sums, value=-1)  # (B H, N, M)
        d_scores = d_scores.mul_(ctx.scale).to(query.dtype)
        d_query = d_scores @ key
        d_key = d_scores.mT @ query
        d_value = weights.to(value.dtype).mT @ d_out
        gradients = [x.unflatten(0, ctx.shape) for x in (d_query, d_key, d_value)]
        return None, None, None, *gradients
