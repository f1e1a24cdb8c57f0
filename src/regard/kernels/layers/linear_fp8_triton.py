"""Triton kernels of `linear_fp8`: the largest magnitude of a tensor, and its float8 copies in both orders of memory."""

import triton.language as tl

from regard.kernels.jit_triton import jit


@jit
def largest_magnitude(x, maxima, count, each, BLOCK: tl.constexpr):
    """The largest magnitude of `each` numbers for each program. NaNs do not count: they are cast to NaNs later."""
    first = tl.program_id(0).to(tl.int64) * each
    found = tl.zeros((BLOCK,), tl.float32)
    for start in tl.range(0, each, BLOCK, loop_unroll_factor=4):
        at = first + start + tl.arange(0, BLOCK)
        found = tl.maximum(
            found, tl.abs(tl.load(x + at, mask=at < count, other=0.0).to(tl.float32))
        )
    tl.store(maxima + tl.program_id(0), tl.max(found, 0))


@jit
def cast_transpose(
    x, largest, scale, out, transposed, count, width, padded, smallest, bound, TILE: tl.constexpr
):  # fmt: skip
    """Quantize a tile of x (count, width) and store it by rows and, padded with zeros to `padded` rows, by columns."""
    found = tl.maximum(tl.load(largest), smallest)
    if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
        tl.store(scale, found / bound)
    rows = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    there = (rows < count)[:, None] & (columns < width)[None, :]
    at = rows[:, None] * width + columns[None, :]
    tile = tl.load(x + at, mask=there, other=0.0)
    factor = bound / found
    tl.store(out + at, (tile.to(tl.float32) * factor).to(out.dtype.element_ty), mask=there)
    at = columns[:, None].to(tl.int64) * padded + rows[None, :]
    tile = (tl.trans(tile).to(tl.float32) * factor).to(out.dtype.element_ty)
    tl.store(transposed + at, tile, mask=(columns < width)[:, None] & (rows < padded)[None, :])
