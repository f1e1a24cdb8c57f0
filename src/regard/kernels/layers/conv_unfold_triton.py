"""Triton kernels of `conv_unfold`: gather the rows around each position, and sum their gradients."""

import triton.language as tl

from regard.kernels.jit_triton import jit


@jit
def program_tile(before, after, count, width, R: tl.constexpr, C: tl.constexpr):
    """Rows and columns of a program, their bounds masks, and the neighbors of each row in its own sequence."""
    rows = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    columns = tl.program_id(1) * C + tl.arange(0, C)
    here = rows < count
    wide = columns < width
    return (
        rows,
        columns,
        here,
        wide,
        tl.load(before + rows, mask=here),
        tl.load(after + rows, mask=here),
    )


@jit
def unfold(
    x, before, after, out, first, step, count, width, TAPS: tl.constexpr, R: tl.constexpr,
    C: tl.constexpr
):  # fmt: skip
    """Concatenate the rows at distances first, first + step, … from each, within its own sequence."""
    rows, columns, here, wide, behind, ahead = program_tile(before, after, count, width, R, C)
    for tap in tl.static_range(TAPS):
        shift = first + tap * step
        there = here & (shift >= -behind) & (shift <= ahead)
        seen = tl.load(
            x + (rows + shift)[:, None] * width + columns[None, :],
            mask=there[:, None] & wide[None, :],
            other=0.0,
        )
        at = out + (rows * TAPS + tap)[:, None] * width + columns[None, :]
        tl.store(at, seen, mask=here[:, None] & wide[None, :])


@jit
def unfold_backward(
    d_out, before, after, d_x, first, step, count, width, TAPS: tl.constexpr, R: tl.constexpr,
    C: tl.constexpr
):  # fmt: skip
    """The gradient of each row: the sum over the taps that read it."""
    rows, columns, here, wide, behind, ahead = program_tile(before, after, count, width, R, C)
    total = tl.zeros((R, C), tl.float32)
    for tap in tl.static_range(TAPS):
        shift = first + tap * step
        there = here & (shift <= behind) & (shift >= -ahead)  # the row `shift` before it read it
        at = d_out + ((rows - shift) * TAPS + tap)[:, None] * width + columns[None, :]
        total += tl.load(at, mask=there[:, None] & wide[None, :], other=0.0).to(tl.float32)
    at = d_x + rows[:, None] * width + columns[None, :]
    tl.store(at, total.to(d_x.dtype.element_ty), mask=here[:, None] & wide[None, :])
