"""What Triton compiles for `windows`, which launches it: rows that lie around each, and the sums of their gradients.

Whatever is written is written by one program, and sums are taken in one order, so that the same input gives the same
bits.
"""

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def program_tile(before, after, count, width, R: tl.constexpr, C: tl.constexpr):
    """The rows and columns of a program; which are there; how much of its own sequence lies on either side of a row."""
    rows, columns = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R), tl.program_id(1) * C + tl.arange(0, C)
    here, wide = rows < count, columns < width
    return rows, columns, here, wide, tl.load(before + rows, mask=here), tl.load(after + rows, mask=here)


@triton.jit
@no_type_check
def gather(
    x, before, after, out, first, step, count, width, TAPS: tl.constexpr, R: tl.constexpr, C: tl.constexpr
):  # fmt: skip
    """Side by side, the rows that lie first, first + step, … from each, of its own sequence."""
    rows, columns, here, wide, behind, ahead = program_tile(before, after, count, width, R, C)
    for tap in tl.static_range(TAPS):
        shift = first + tap * step
        there = here & (shift >= -behind) & (shift <= ahead)
        seen = tl.load(
            x + (rows + shift)[:, None] * width + columns[None, :], mask=there[:, None] & wide[None, :], other=0.0
        )
        at = out + (rows * TAPS + tap)[:, None] * width + columns[None, :]
        tl.store(at, seen, mask=here[:, None] & wide[None, :])


@triton.jit
@no_type_check
def d_gather(
    d_out, before, after, d_x, first, step, count, width, TAPS: tl.constexpr, R: tl.constexpr, C: tl.constexpr
):  # fmt: skip
    """Of each row, the sum of what came back to all that saw it."""
    rows, columns, here, wide, behind, ahead = program_tile(before, after, count, width, R, C)
    total = tl.zeros((R, C), tl.float32)
    for tap in tl.static_range(TAPS):
        shift = first + tap * step
        there = here & (shift <= behind) & (shift >= -ahead)  # it was seen by the row that lies `shift` before it
        at = d_out + ((rows - shift) * TAPS + tap)[:, None] * width + columns[None, :]
        total += tl.load(at, mask=there[:, None] & wide[None, :], other=0.0).to(tl.float32)
    at = d_x + rows[:, None] * width + columns[None, :]
    tl.store(at, total.to(d_x.dtype.element_ty), mask=here[:, None] & wide[None, :])
