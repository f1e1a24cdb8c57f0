"""Triton kernels of `residual_norm`: residual addition with dropout and the norm that follows, and the gradient."""

import triton.language as tl

from regard.kernels.jit_triton import jit
from regard.kernels.layers.dropout_triton import keep_mask


@jit
def add_norm(
    x, residual, weight, bias, seed, total, normed, mean, rstd, eps, dropped, count, width,
    ADD: tl.constexpr, DROP: tl.constexpr, LAYER: tl.constexpr, R: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """Total = x + dropout(residual) and its LayerNorm (LAYER) or RMSNorm. R rows of W columns per program."""
    rows = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    columns = tl.arange(0, W)
    there = (rows < count)[:, None] & (columns < width)[None, :]
    at = rows[:, None] * width + columns[None, :]
    sums = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
    if ADD:
        more = tl.load(residual + at, mask=there, other=0.0).to(tl.float32)
        if DROP:
            more = tl.where(keep_mask(seed, at, dropped), more * (65536.0 / (65536 - dropped)), 0.0)
        sums += more
        tl.store(total + at, sums.to(total.dtype.element_ty), mask=there)
    centered = sums
    if LAYER:
        average = tl.sum(sums, 1) / width
        tl.store(mean + rows, average, mask=rows < count)
        centered = tl.where(there, sums - average[:, None], 0.0)
    inverse = 1 / tl.sqrt(tl.sum(centered * centered, 1) / width + eps)
    tl.store(rstd + rows, inverse, mask=rows < count)
    out = (
        centered
        * inverse[:, None]
        * tl.load(weight + columns, mask=columns < width, other=0.0).to(tl.float32)[None, :]
    )
    if LAYER:
        out += tl.load(bias + columns, mask=columns < width, other=0.0).to(tl.float32)[None, :]
    tl.store(normed + at, out.to(normed.dtype.element_ty), mask=there)


@jit
def add_norm_backward(
    d_normed, d_total, total, weight, mean, rstd, seed, d_x, d_residual, d_weight, d_bias,
    dropped, count, width, each,
    ADD: tl.constexpr, DROP: tl.constexpr, LAYER: tl.constexpr, TOTAL: tl.constexpr,
    R: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """Gradients of x and of the residual; of the norm's weight and bias, one partial sum per program.

    TOTAL: the total was used besides its norm, and d_total is the gradient of that use. `each` rows per program.
    """
    columns = tl.arange(0, W)
    scale = tl.load(weight + columns, mask=columns < width, other=0.0).to(tl.float32)[None, :]
    sum_weight = tl.zeros((R, W), tl.float32)
    sum_bias = tl.zeros((R, W), tl.float32)
    first = tl.program_id(0).to(tl.int64) * each
    for top in range(0, each, R):
        rows = first + top + tl.arange(0, R)
        here = (rows < count) & (top + tl.arange(0, R) < each)
        there = here[:, None] & (columns < width)[None, :]
        at = rows[:, None] * width + columns[None, :]
        grad = tl.load(d_normed + at, mask=there, other=0.0).to(tl.float32)
        unit = tl.load(total + at, mask=there, other=0.0).to(tl.float32)
        inverse = tl.load(rstd + rows, mask=here, other=0.0)[:, None]
        if LAYER:
            unit = tl.where(there, unit - tl.load(mean + rows, mask=here, other=0.0)[:, None], 0.0)
            sum_bias += grad
        unit *= inverse
        sum_weight += grad * unit
        grad *= scale
        change = grad - unit * (tl.sum(grad * unit, 1) / width)[:, None]
        if LAYER:
            change -= (tl.sum(grad, 1) / width)[:, None]
        change *= inverse
        if TOTAL:
            change += tl.load(d_total + at, mask=there, other=0.0).to(tl.float32)
        tl.store(d_x + at, change.to(d_x.dtype.element_ty), mask=there)
        if ADD:
            if DROP:
                change = tl.where(
                    keep_mask(seed, at, dropped), change * (65536.0 / (65536 - dropped)), 0.0
                )
            tl.store(d_residual + at, change.to(d_residual.dtype.element_ty), mask=there)
    mine = tl.program_id(0).to(tl.int64) * width + columns
    tl.store(d_weight + mine, tl.sum(sum_weight, 0), mask=columns < width)
    if LAYER:
        tl.store(d_bias + mine, tl.sum(sum_bias, 0), mask=columns < width)
