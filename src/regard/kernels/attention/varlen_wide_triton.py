"""What Triton compiles for heads that are too wide to be held whole; `packed` launches it.

As `look` and `d_look` of `training_gpu`, but a program walks the width, D numbers at a time, and no two heads share
keys: `group` is 1.
"""

from typing import no_type_check

import triton
import triton.language as tl

from regard.kernels.attention.varlen_triton import tile_of, weights_of


@triton.jit
@no_type_check
def part_of(start, step, first, size, head, width, begin, S: tl.constexpr, D: tl.constexpr):
    """Where S positions of one head lie, of whose numbers D from the one at `begin`; and which of these are there."""
    return tile_of(start + head * width + begin, step, first, size, 0, width - begin, S, D)


@triton.jit
@no_type_check
def products_of(
    x, y, x_step, y_step, first, start, n, m, head, width, R: tl.constexpr, C: tl.constexpr, D: tl.constexpr
):  # fmt: skip
    """Of each of R rows with each of C, all there are."""
    total = tl.zeros((R, C), tl.float32)
    for begin in range(0, width, D):
        at, there = part_of(x, x_step, first, n, head, width, begin, R, D)
        a = tl.load(at, mask=there, other=0.0)
        at, there = part_of(y, y_step, start, m, head, width, begin, C, D)
        b = tl.load(at, mask=there, other=0.0)
        total += tl.dot(a, tl.trans(b), input_precision="ieee")
    return total


@triton.jit
@no_type_check
def wide_look(
    query, key, value, out, ends, source_ends, seed, query_step, source_step, out_step, factor, dropped, heads, group,
    width, beyond,
    CAUSAL: tl.constexpr, DROP: tl.constexpr, R: tl.constexpr, C: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Attention of one head of one sequence, all of it, to the same or to another that belongs to it."""
    row, head = tl.program_id(0), tl.program_id(1)
    first, start = tl.load(ends + row), tl.load(source_ends + row)
    n, m = tl.load(ends + row + 1) - first, tl.load(source_ends + row + 1) - start
    if (n > 0) & (tl.maximum(n, m) > beyond) & (n <= R) & (m <= C):
        scores = products_of(query, key, query_step, source_step, first, start, n, m, head, width, R, C, D)
        _, left = weights_of(scores, n, m, factor, seed, row * heads + head, dropped, CAUSAL, DROP, R, C)
        left = left.to(value.dtype.element_ty)
        for begin in range(0, width, D):
            at, there = part_of(value, source_step, start, m, head, width, begin, C, D)
            seen = tl.dot(left, tl.load(at, mask=there, other=0.0), input_precision="ieee")
            at, there = part_of(out, out_step, first, n, head, width, begin, R, D)
            tl.store(at, seen.to(out.dtype.element_ty), mask=there)


@triton.jit
@no_type_check
def d_wide_look(
    query, key, value, d_out, d_query, d_key, d_value, ends, source_ends, seed, query_step, source_step, out_step,
    factor, dropped, heads, group, width, beyond,
    CAUSAL: tl.constexpr, DROP: tl.constexpr, R: tl.constexpr, C: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Its gradients, weights computed again."""
    row, head = tl.program_id(0), tl.program_id(1)
    first, start = tl.load(ends + row), tl.load(source_ends + row)
    n, m = tl.load(ends + row + 1) - first, tl.load(source_ends + row + 1) - start
    if (tl.maximum(n, m) > beyond) & (n <= R) & (m <= C):
        scores = products_of(query, key, query_step, source_step, first, start, n, m, head, width, R, C, D)
        weights, left = weights_of(scores, n, m, factor, seed, row * heads + head, dropped, CAUSAL, DROP, R, C)
        moved = left * products_of(d_out, value, out_step, source_step, first, start, n, m, head, width, R, C, D)
        d_scores = ((moved - weights * tl.sum(moved, 1)[:, None]) * factor).to(key.dtype.element_ty)
        left = left.to(d_out.dtype.element_ty)
        for begin in range(0, width, D):
            at, there = part_of(key, source_step, start, m, head, width, begin, C, D)
            change = tl.dot(d_scores, tl.load(at, mask=there, other=0.0), input_precision="ieee")
            at, there = part_of(d_query, query_step, first, n, head, width, begin, R, D)
            tl.store(at, change.to(d_query.dtype.element_ty), mask=there)
        for begin in range(0, width, D):
            at, there = part_of(query, query_step, first, n, head, width, begin, R, D)
            change = tl.dot(tl.trans(d_scores), tl.load(at, mask=there, other=0.0), input_precision="ieee")
            at, there = part_of(d_key, source_step, start, m, head, width, begin, C, D)
            tl.store(at, change.to(d_key.dtype.element_ty), mask=there)
        for begin in range(0, width, D):
            at, there = part_of(d_out, out_step, first, n, head, width, begin, R, D)
            change = tl.dot(tl.trans(left), tl.load(at, mask=there, other=0.0), input_precision="ieee")
            at, there = part_of(d_value, source_step, start, m, head, width, begin, C, D)
            tl.store(at, change.to(d_value.dtype.element_ty), mask=there)
