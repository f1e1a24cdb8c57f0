"""PyTorch's scaled dot-product attention kernels, called so that they return the log-sum-exp they compute.

They take an additive mask (B, H, N, M) and a top-left aligned causal mask. Where mask and bias can be expressed in this
way without materializing (N, M), one call suffices. Otherwise rows are computed in blocks, each with its range of keys
and its tile of the mask, which the backward pass computes again, so that memory grows with N + M.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.nn import functional as F

from regard.core.interruption import check_interruption
from regard.core.shapes import LogSumExp, Outputs, Tensor, Values
from regard.kernels import triton_launch
from regard.kernels.attention import bias as biases
from regard.kernels.attention.bias import DistanceBias
from regard.kernels.attention.blockwise import refuse_second_derivative
from regard.kernels.attention.mask import AttentionMask
from regard.kernels.attention.score_function import DotScoreFunction
from regard.kernels.attention.spec import AttentionSpec, Frame, repeat_heads, widened

aten = torch.ops.aten

DTYPES = {"cpu": (*triton_launch.DTYPES, torch.float64), "cuda": triton_launch.DTYPES}
TILE = 2**21  # elements of a materialised mask that exist at a time: eight megabytes of float32
# Scores that one call on a CPU computes at most, about half a second of one core, unless gradients
# are needed: longer inputs are computed in blocks of rows, between which they can be interrupted.
UNINTERRUPTED = 2**28
BLOCK_SCORES = 2**25  # of such a block, where no mask has to be made for it


def supports(spec: AttentionSpec, value: Values, dropout: float) -> bool:
    """Whether PyTorch has a kernel for this call: dot products, no learned bias, no dropout on a CPU or in blocks."""
    device = spec.query.device.type
    if not isinstance(spec.score_function, DotScoreFunction):
        return False
    if spec.query.dtype not in DTYPES.get(device, ()):
        return False
    if spec.bias is not None and torch.is_grad_enabled():
        is_learned = biases.bias_values(spec.bias).requires_grad
        if is_learned:
            return False
    # Empty tensors crash the process in these kernels.
    if 0 in (*spec.query.shape, *value.shape):
        return False
    drops_in_blocks = dropout > 0 and (device == "cpu" or _rows(spec) < spec.n)
    return not drops_in_blocks


def attend(spec: AttentionSpec, value: Values, dropout: float = 0.0) -> tuple[Outputs, LogSumExp]:
    query = spec.query
    key = spec.key
    dim = value.shape[-1]
    scale = _scale(spec)
    if key.shape[1] != value.shape[1]:
        key = repeat_heads(key, query.shape[1])
        value = repeat_heads(value, query.shape[1])
    padded_dim = max(query.shape[-1], dim)
    if query.device.type == "cuda":
        padded_dim += -padded_dim % 8
    if not query.shape[-1] == padded_dim == dim:
        # The kernels take one dim for all three. Zeros change neither scores nor values.
        query = F.pad(query, (0, padded_dim - query.shape[-1]))
        key = F.pad(key, (0, padded_dim - key.shape[-1]))
        value = F.pad(value, (0, padded_dim - value.shape[-1]))
    # The kernels assume that the last axis is contiguous, and read out of bounds where it is not.
    query = _with_contiguous_rows(query)
    key = _with_contiguous_rows(key)
    value = _with_contiguous_rows(value)
    spec = replace(spec, query=query, key=key)
    if _rows(spec) >= spec.n:
        low, high = spec.visible.span(0, spec.n, spec.n, spec.m)
        mask, causal = _mask(spec, slice(0, spec.n), low, high)
        if (low, high) != (0, spec.m):
            key = key[:, :, low:high]
            value = value[:, :, low:high]
        out, lse = _forward(query, key, value, mask, causal, scale, dropout)
    else:
        out, lse = _Blocked.apply(spec.frame, value, *spec.tensors)  # type: ignore[no-untyped-call]
    if out.shape[-1] != dim:
        out = out[..., :dim]
    return out, lse


def _with_contiguous_rows(x: Tensor) -> Tensor:
    """The tensor, or a copy whose last axis is contiguous."""
    if x.stride(-1) == 1:
        return x
    return x.contiguous()


def _scale(spec: AttentionSpec) -> float:
    assert isinstance(spec.score_function, DotScoreFunction)
    return spec.score_function.scale


def _square(spec: AttentionSpec) -> bool:
    """Whether the band is PyTorch's `is_causal`: with N = M both alignments are the same."""
    return spec.visible.ahead == 0 and spec.visible.behind is None and spec.n == spec.m


def _is_long(spec: AttentionSpec) -> bool:
    """Whether one call for all rows would keep a processor busy for long, and would save nothing but time."""
    if spec.query.device.type != "cpu" or torch.is_grad_enabled():
        return False
    return spec.query.shape[0] * spec.query.shape[1] * spec.n * spec.m > UNINTERRUPTED


def _rows(spec: AttentionSpec) -> int:
    """How many rows go into one call: all of them where the mask does not differ by row or is small."""
    visible = spec.visible
    bias = spec.bias
    n = spec.n
    m = spec.m
    added = []
    if visible.allowed is not None:
        added.append(visible.allowed)
    if bias is not None:
        added.append(biases.bias_values(bias))
    band_differs = visible.banded and n > 1 and not _square(spec)
    by_row = band_differs or isinstance(bias, DistanceBias) or any(x.shape[-2] > 1 for x in added)
    if not by_row and not _is_long(spec):
        return n
    if not (by_row or visible.banded):
        scores_per_row = spec.query.shape[0] * spec.query.shape[1] * m
        return max(1, min(n, BLOCK_SCORES // scores_per_row))
    # The size of the mask for one row.
    batch = max([1, *(x.shape[0] for x in added)])
    heads = max([1, *(x.shape[1] for x in added)])
    rows = max(1, TILE // (batch * heads * m))
    if visible.behind is not None:
        # A narrow window is fastest in blocks about as tall as it is wide.
        ahead = m if visible.ahead is None else visible.ahead
        rows = min(rows, max(128, visible.behind + 1 + ahead))
    return rows


def _blocks(spec: AttentionSpec) -> Iterator[tuple[slice, int, int]]:
    step = _rows(spec)
    for first in range(0, spec.n, step):
        last = min(first + step, spec.n)
        low, high = spec.visible.span(first, last, spec.n, spec.m)
        if low < high:
            check_interruption()
            yield slice(first, last), low, high


def _mask(spec: AttentionSpec, rows: slice, low: int, high: int) -> tuple[Tensor | None, bool]:
    """The additive mask of these rows and keys, and whether the kernel adds its causal mask to it."""
    causal = _square(spec) and rows == slice(0, spec.n)
    visible = spec.visible
    if causal or rows.stop - rows.start == 1:
        # For one row, the range of keys is the band.
        visible = AttentionMask(visible.allowed)
    allowed = visible.tile(rows, low, high, spec.n, spec.m, spec.query.device)
    mask = None
    if spec.bias is not None:
        mask = biases.tile(spec.bias, rows, low, high, spec.n)
    if allowed is not None:
        if mask is None:
            mask = spec.query.new_zeros(())
        mask = torch.where(allowed, mask, -torch.inf)
    if mask is None:
        return None, causal
    expanded = mask.to(spec.query.dtype).expand(*mask.shape[:-1], high - low)
    missing_axes = 4 - mask.dim()
    return expanded[(None,) * missing_axes], causal


class _Blocked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, frame: Frame, value: Tensor, *tensors: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        spec = frame.around(*tensors)  # type: ignore[arg-type]
        query = spec.query
        key = spec.key
        out = query.new_zeros(*query.shape[:3], value.shape[3])
        lse = widened(query[:0]).new_zeros(query.shape[:3])
        for rows, low, high in _blocks(spec):
            mask, _ = _mask(spec, rows, low, high)
            query_rows = query[:, :, rows]
            key_block = key[:, :, low:high]
            value_block = value[:, :, low:high]
            block_out, block_lse = _forward(
                query_rows,
                key_block,
                value_block,
                mask,
                causal=False,
                scale=_scale(spec),
                dropout=0.0,
            )
            out[:, :, rows] = block_out
            lse[:, :, rows] = block_lse
        ctx.save_for_backward(value, out, lse, *tensors)
        ctx.frame = frame
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, d_out: Tensor, _d_lse: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        value, out, lse, *tensors = ctx.saved_tensors
        spec: AttentionSpec = ctx.frame.around(*tensors)
        query = spec.query
        key = spec.key
        d_query = torch.zeros_like(query)
        d_key = torch.zeros_like(key)
        d_value = torch.zeros_like(value)
        for rows, low, high in _blocks(spec):
            mask, _ = _mask(spec, rows, low, high)
            d_queries, d_keys, d_values = _backward(
                d_out[:, :, rows],
                query[:, :, rows],
                key[:, :, low:high],
                value[:, :, low:high],
                out[:, :, rows],
                lse[:, :, rows],
                mask,
                _scale(spec),
            )
            d_query[:, :, rows] = d_queries
            d_key[:, :, low:high] += d_keys
            d_value[:, :, low:high] += d_values
        return None, d_value, d_query, d_key, None, None, None


def _forward(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float, dropout: float
) -> tuple[Tensor, Tensor]:
    if q.device.type == "cpu":
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu.default(
            q, k, v, 0.0, causal, attn_mask=mask, scale=scale
        )
        return out, lse
    heads = q.shape[1]
    k = repeat_heads(k, heads)
    v = repeat_heads(v, heads)
    # Without a mask, the kernel that PyTorch itself chooses: 1 is flash, 3 is cuDNN.
    choice = None
    if mask is None:
        choice = torch._fused_sdp_choice(q, k, v, None, dropout, causal, scale=scale)
    if choice == 3:
        out, lse, *_ = aten._scaled_dot_product_cudnn_attention.default(
            q, k, v, None, True, dropout, causal, scale=scale
        )
        return out, lse[..., 0]
    if choice == 1:
        out, lse, *_ = aten._scaled_dot_product_flash_attention.default(
            q, k, v, dropout, causal, scale=scale
        )
        return out, lse
    aligned = _aligned(mask, q, k)
    out, lse, *_ = aten._scaled_dot_product_efficient_attention.default(
        q, k, v, aligned, True, dropout, causal, scale=scale
    )
    # The kernel rounds the rows up to a multiple of 32.
    lse = lse[:, :, : q.shape[2]]
    return out, lse.masked_fill(lse.isinf(), 0.0)


def _backward(
    d_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    mask: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    if q.device.type == "cpu":
        d_q, d_k, d_v = aten._scaled_dot_product_flash_attention_for_cpu_backward.default(
            d_out, q, k, v, out, lse, 0.0, False, attn_mask=mask, scale=scale
        )
        return d_q, d_k, d_v
    heads = q.shape[1]
    group = q.shape[1] // k.shape[1]
    # Without dropout there is no random state.
    none = torch.empty((), dtype=torch.int64, device=q.device)
    padded = F.pad(lse, (0, -lse.shape[-1] % 32))
    aligned = _aligned(mask, q, k)
    repeated_k = repeat_heads(k, heads)
    repeated_v = repeat_heads(v, heads)
    d_q, d_k, d_v, _ = aten._scaled_dot_product_efficient_attention_backward.default(
        d_out.contiguous(), q, repeated_k, repeated_v, aligned, out.contiguous(),
        padded, none, none, 0.0, [True, True, True, False], False, scale=scale,
    )  # fmt: skip
    # The gradient of a key or value head is the sum over the query heads of its group.
    d_k = d_k.unflatten(1, (-1, group)).sum(2)
    d_v = d_v.unflatten(1, (-1, group)).sum(2)
    return d_q, d_k, d_v


def _aligned(mask: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """The mask as the memory-efficient kernel requires it: every axis expanded, rows aligned to 16 elements."""
    if mask is None:
        return None
    m = k.shape[2]
    aligned = F.pad(mask, (0, -m % 16))[..., :m]
    return aligned.expand(q.shape[0], q.shape[1], q.shape[2], m)
