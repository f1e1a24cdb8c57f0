"""PyTorch's own attention kernels, asked for the log-sum-exp that they compute anyway.

They take an additive mask of (B, H, N, M) and a causal edge aligned to the upper left. Where our masks and alignment
can be said in those words one call does it all; otherwise the rows go in blocks, each with its own run of keys and its
own piece of mask, made again for the backward instead of kept, so that memory grows with N + M.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.nn import functional as F

from regard.core.shapes import LogSumExp, Outputs, Tensor, Values
from regard.kernels.attention import bias as biases
from regard.kernels.attention.bias import DistanceBias
from regard.kernels.attention.blockwise import refuse_second_derivative
from regard.kernels.attention.mask import Visibility
from regard.kernels.attention.score_function import DotEnergy
from regard.kernels.attention.spec import Frame, Lookup, spread

aten = torch.ops.aten

HALF = (torch.float16, torch.bfloat16)
DTYPES = {"cpu": (torch.float32, torch.float64, *HALF), "cuda": (torch.float32, *HALF)}

# How many elements of mask exist at a time when it has to be laid out: eight megabytes of float32.
TILE = 2**21


def supports(lookup: Lookup, value: Values, dropout: float) -> bool:
    """Whether PyTorch has a kernel for this look-up on this device."""
    device = lookup.query.device.type
    learned = lookup.bias is not None and biases.bias_values(lookup.bias).requires_grad and torch.is_grad_enabled()
    random = dropout > 0 and (device == "cpu" or _rows(lookup) < lookup.n)
    return (
        isinstance(lookup.energy, DotEnergy)
        and lookup.query.dtype in DTYPES.get(device, ())
        and not learned
        and not random
        and 0 not in (*lookup.query.shape, *value.shape)  # nothing to see ends the process there
    )


def attend(lookup: Lookup, value: Values, dropout: float = 0.0) -> tuple[Outputs, LogSumExp]:
    query, key, width, scale = lookup.query, lookup.key, value.shape[-1], _scale(lookup)
    if key.shape[1] != value.shape[1]:
        key, value = spread(key, query.shape[1]), spread(value, query.shape[1])
    wide = max(query.shape[-1], width)
    if query.device.type == "cuda":
        wide += -wide % 8
    if not query.shape[-1] == wide == width:  # kernels know one width only; zeros change neither scores nor values
        query, key, value = (F.pad(x, (0, wide - x.shape[-1])) for x in (query, key, value))
    # The kernels take for granted that a vector's numbers lie side by side, and read others' memory where they do not.
    query, key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value))
    lookup = replace(lookup, query=query, key=key)
    if _rows(lookup) >= lookup.n:
        low, high = lookup.visible.span(0, lookup.n, lookup.n, lookup.m)
        mask, causal = _mask(lookup, slice(0, lookup.n), low, high)
        if (low, high) != (0, lookup.m):
            key, value = key[:, :, low:high], value[:, :, low:high]
        out, lse = _forward(query, key, value, mask, causal, scale, dropout)
    else:
        out, lse = _Blocked.apply(lookup.frame, value, *lookup.tensors)  # type: ignore[no-untyped-call]
    return out if out.shape[-1] == width else out[..., :width], lse


def _scale(lookup: Lookup) -> float:
    assert isinstance(lookup.energy, DotEnergy)
    return lookup.energy.scale


def _square(lookup: Lookup) -> bool:
    """Whether the band is PyTorch's `is_causal`: with N = M both alignments are one."""
    return lookup.visible.ahead == 0 and lookup.visible.behind is None and lookup.n == lookup.m


def _rows(lookup: Lookup) -> int:
    """How many rows go into one call: all of them where the mask needs no rows of its own or is small."""
    visible, bias, n, m = lookup.visible, lookup.bias, lookup.n, lookup.m
    layers = [x for x in (visible.allowed, None if bias is None else biases.bias_values(bias)) if x is not None]
    by_row = (
        (visible.banded and n > 1 and not _square(lookup))
        or isinstance(bias, DistanceBias)
        or any(x.shape[-2] > 1 for x in layers)
    )
    if not by_row:
        return n
    batch, heads = (max([1, *(x.shape[axis] for x in layers)]) for axis in (0, 1))
    rows = max(1, TILE // (batch * heads * m))
    if visible.behind is not None:  # a narrow window costs least in blocks about as tall as it is wide
        rows = min(rows, max(128, visible.behind + 1 + (m if visible.ahead is None else visible.ahead)))
    return rows


def _blocks(lookup: Lookup) -> Iterator[tuple[slice, int, int]]:
    step = _rows(lookup)
    for first in range(0, lookup.n, step):
        last = min(first + step, lookup.n)
        low, high = lookup.visible.span(first, last, lookup.n, lookup.m)
        if low < high:
            yield slice(first, last), low, high


def _mask(lookup: Lookup, rows: slice, low: int, high: int) -> tuple[Tensor | None, bool]:
    """The additive mask of these rows and keys, and whether the kernel's own causal edge is to be added to it."""
    causal = _square(lookup) and rows == slice(0, lookup.n)
    visible = lookup.visible
    if causal or rows.stop - rows.start == 1:  # the run of keys already says what one row can see
        visible = Visibility(visible.allowed)
    seen = visible.tile(rows, low, high, lookup.n, lookup.m, lookup.query.device)
    mask = None if lookup.bias is None else biases.tile(lookup.bias, rows, low, high, lookup.n)
    if seen is not None:
        mask = lookup.query.new_zeros(()) if mask is None else mask
        mask = torch.where(seen, mask, -torch.inf)
    if mask is None:
        return None, causal
    return mask.to(lookup.query.dtype).expand(*mask.shape[:-1], high - low)[(None,) * (4 - mask.dim())], causal


class _Blocked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, frame: Frame, value: Tensor, *tensors: Tensor | None) -> tuple[Tensor, Tensor]:
        lookup = frame.around(*tensors)  # type: ignore[arg-type]
        query, key = lookup.query, lookup.key
        out, lse = query.new_zeros(*query.shape[:3], value.shape[3]), _zero_lse(query)
        for rows, low, high in _blocks(lookup):
            mask, _ = _mask(lookup, rows, low, high)
            out[:, :, rows], lse[:, :, rows] = _forward(
                query[:, :, rows], key[:, :, low:high], value[:, :, low:high], mask, False, _scale(lookup), 0.0
            )
        ctx.save_for_backward(value, out, lse, *tensors)
        ctx.frame = frame
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, d_out: Tensor, _d_lse: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        value, out, lse, *tensors = ctx.saved_tensors
        lookup: Lookup = ctx.frame.around(*tensors)
        query, key = lookup.query, lookup.key
        d_query, d_key, d_value = (torch.zeros_like(x) for x in (query, key, value))
        for rows, low, high in _blocks(lookup):
            mask, _ = _mask(lookup, rows, low, high)
            d_query[:, :, rows], d_keys, d_values = _backward(
                d_out[:, :, rows],
                query[:, :, rows],
                key[:, :, low:high],
                value[:, :, low:high],
                out[:, :, rows],
                lse[:, :, rows],
                mask,
                _scale(lookup),
            )
            d_key[:, :, low:high] += d_keys
            d_value[:, :, low:high] += d_values
        return None, d_value, d_query, d_key, None, None, None


def _zero_lse(query: Tensor) -> Tensor:
    return query.new_zeros(query.shape[:3], dtype=torch.promote_types(query.dtype, torch.float32))


def _forward(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float, dropout: float
) -> tuple[Tensor, Tensor]:
    if q.device.type == "cpu":
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu.default(
            q, k, v, 0.0, causal, attn_mask=mask, scale=scale
        )
        return out, lse
    heads = q.shape[1]
    k, v = spread(k, heads), spread(v, heads)
    # Without a mask, the kernel that PyTorch itself would choose: 1 is flash, 3 is cuDNN.
    choice = torch._fused_sdp_choice(q, k, v, None, dropout, causal, scale=scale) if mask is None else None
    if choice == 3:
        out, lse, *_ = aten._scaled_dot_product_cudnn_attention.default(
            q, k, v, None, True, dropout, causal, scale=scale
        )
        return out, lse[..., 0]
    if choice == 1:
        out, lse, *_ = aten._scaled_dot_product_flash_attention.default(q, k, v, dropout, causal, scale=scale)
        return out, lse
    out, lse, *_ = aten._scaled_dot_product_efficient_attention.default(
        q, k, v, _aligned(mask, q, k), True, dropout, causal, scale=scale
    )
    lse = lse[:, :, : q.shape[2]]  # the kernel rounds the rows up to a multiple of 32
    return out, lse.masked_fill(lse.isinf(), 0.0)


def _backward(
    d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    if q.device.type == "cpu":
        d_q, d_k, d_v = aten._scaled_dot_product_flash_attention_for_cpu_backward.default(
            d_out, q, k, v, out, lse, 0.0, False, attn_mask=mask, scale=scale
        )
        return d_q, d_k, d_v
    heads, group = q.shape[1], q.shape[1] // k.shape[1]
    none = torch.empty((), dtype=torch.int64, device=q.device)  # no dropout, so no random state
    padded = F.pad(lse, (0, -lse.shape[-1] % 32))
    d_q, d_k, d_v, _ = aten._scaled_dot_product_efficient_attention_backward.default(
        d_out.contiguous(), q, spread(k, heads), spread(v, heads), _aligned(mask, q, k), out.contiguous(), padded,
        none, none, 0.0, [True, True, True, False], False, scale=scale,
    )  # fmt: skip
    return d_q, d_k.unflatten(1, (-1, group)).sum(2), d_v.unflatten(1, (-1, group)).sum(2)


def _aligned(mask: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """The mask as the memory-efficient kernel wants it: every axis at full size, rows that start on 16 bytes."""
    if mask is None:
        return None
    m = k.shape[2]
    return F.pad(mask, (0, -m % 16))[..., :m].expand(q.shape[0], q.shape[1], q.shape[2], m)
