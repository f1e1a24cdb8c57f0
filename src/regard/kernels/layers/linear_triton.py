"""Triton kernel of `linear`: the gradient of an activation and the sum over rows that is the gradient of the bias."""

import triton.language as tl

from regard.kernels.jit_triton import jit


@jit
def activation_backward(
    d_out, preactivation, d_preactivation, sums, maxima, count, width, each,
    KIND: tl.constexpr, MAGNITUDE: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
    UNROLL: tl.constexpr,
):  # fmt: skip
    """The gradient before an activation, and its partial sums over `each` rows per program.

    MAGNITUDE: also its largest magnitude, one for each program.

    KIND: 0 none, 1 ReLU (whose output serves as its input), 2 GELU, 3 GELU with tanh.
    """
    columns = tl.program_id(0) * C + tl.arange(0, C)
    first = tl.program_id(1).to(tl.int64) * each
    total = tl.zeros((R, C), tl.float32)
    largest = tl.zeros((R, C), tl.float32)
    for top in tl.range(0, each, R, loop_unroll_factor=UNROLL):
        rows = first + top + tl.arange(0, R)
        there = (rows < count)[:, None] & (columns < width)[None, :]
        at = rows[:, None] * width + columns[None, :]
        change = tl.load(d_out + at, mask=there, other=0.0).to(tl.float32)
        if KIND > 0:
            x = tl.load(preactivation + at, mask=there, other=0.0).to(tl.float32)
            if KIND == 1:
                change = tl.where(x > 0, change, 0.0)
            elif KIND == 2:
                cdf = 0.5 * (1 + tl.erf(x * 0.7071067811865476))
                change *= cdf + x * tl.exp(-0.5 * x * x) * 0.3989422804014327
            else:
                inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
                tanh = 1 - 2 / (1 + tl.exp(2 * inner))
                slope = 0.7978845608028654 * (1 + 0.134145 * x * x)
                change *= 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh * tanh) * slope
            tl.store(d_preactivation + at, change.to(d_preactivation.dtype.element_ty), mask=there)
        total += change
        if MAGNITUDE:
            largest = tl.maximum(largest, tl.abs(change))
    tl.store(
        sums + tl.program_id(1).to(tl.int64) * width + columns,
        tl.sum(total, 0),
        mask=columns < width,
    )
    if MAGNITUDE:
        tl.store(
            maxima + tl.program_id(0) * tl.num_programs(1) + tl.program_id(1),
            tl.max(tl.max(largest, 1), 0),
        )
