"""Triton kernels of attention within short packed sequences for wide heads, launched by `varlen`.

As `varlen_triton`, but a program loops over the head dimension, D numbers at a time; `group` is 1.
"""

from typing import no_type_check

import triton
import triton.language as tl

from regard.kernels.attention.varlen_triton import head_tile, softmax_weights


@triton.jit
@no_type_check
def head_part(start, step, first, size, head, dim, begin, S: tl.constexpr, D: tl.constexpr):
    """Pointers to S positions of one head, D of its dimensions from `begin`; and which of them are in range."""
    return head_tile(start + head * dim + begin, step, first, size, 0, dim - begin, S, D)


@triton.jit
@no_type_check
def dot_products(
    x, y, x_step, y_step, first, start, n, m, head, dim, R: tl.constexpr, C: tl.constexpr, D: tl.constexpr
):  # fmt: skip
    """Dot products of R rows of x with C rows of y, over the whole head dimension."""
    total = tl.zeros((R, C), tl.float32)
    for begin in range(0, dim, D):
        at, in_range = head_part(x, x_step, first, n, head, dim, begin, R, D)
        a = tl.load(at, mask=in_range, other=0.0)
        at, in_range = head_part(y, y_step, start, m, head, dim, begin, C, D)
        b = tl.load(at, mask=in_range, other=0.0)
        total += tl.dot(a, tl.trans(b), input_precision="ieee")
    return total


@triton.jit
@no_type_check
def wide_attention(
    query, key, value, out, cu_seqlens, kv_cu_seqlens, seed, query_stride, kv_stride, out_stride,
    scale, dropped, heads, group, dim, min_length,
    CAUSAL: tl.constexpr, DROP: tl.constexpr, R: tl.constexpr, C: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """As `short_attention`."""
    row, head = tl.program_id(0), tl.program_id(1)
    first, start = tl.load(cu_seqlens + row), tl.load(kv_cu_seqlens + row)
    n, m = tl.load(cu_seqlens + row + 1) - first, tl.load(kv_cu_seqlens + row + 1) - start
    if (n > 0) & (tl.maximum(n, m) > min_length) & (n <= R) & (m <= C):
        scores = dot_products(query, key, query_stride, kv_stride, first, start, n, m, head, dim, R, C, D)
        _, kept = softmax_weights(scores, n, m, scale, seed, row * heads + head, dropped, CAUSAL, DROP, R, C)
        kept = kept.to(value.dtype.element_ty)
        for begin in range(0, dim, D):
            at, in_range = head_part(value, kv_stride, start, m, head, dim, begin, C, D)
            rows = tl.dot(kept, tl.load(at, mask=in_range, other=0.0), input_precision="ieee")
            at, in_range = head_part(out, out_stride, first, n, head, dim, begin, R, D)
            tl.store(at, rows.to(out.dtype.element_ty), mask=in_range)


@triton.jit
@no_type_check
def d_wide_attention(
    query, key, value, d_out, d_query, d_key, d_value, cu_seqlens, kv_cu_seqlens, seed,
    query_stride, kv_stride, out_stride, scale, dropped, heads, group, dim, min_length,
    CAUSAL: tl.constexpr, DROP: tl.constexpr, R: tl.constexpr, C: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """As `d_short_attention`, for heads that do not share keys."""
    row, head = tl.program_id(0), tl.program_id(1)
    first, start = tl.load(cu_seqlens + row), tl.load(kv_cu_seqlens + row)
    n, m = tl.load(cu_seqlens + row + 1) - first, tl.load(kv_cu_seqlens + row + 1) - start
    if (tl.maximum(n, m) > min_length) & (n <= R) & (m <= C):
        scores = dot_products(query, key, query_stride, kv_stride, first, start, n, m, head, dim, R, C, D)
        weights, kept = softmax_weights(scores, n, m, scale, seed, row * heads + head, dropped, CAUSAL, DROP, R, C)
        d_weights = kept * dot_products(d_out, value, out_stride, kv_stride, first, start, n, m, head, dim, R, C, D)
        d_scores = ((d_weights - weights * tl.sum(d_weights, 1)[:, None]) * scale).to(key.dtype.element_ty)
        kept = kept.to(d_out.dtype.element_ty)
        for begin in range(0, dim, D):
            at, in_range = head_part(key, kv_stride, start, m, head, dim, begin, C, D)
            tile = tl.dot(d_scores, tl.load(at, mask=in_range, other=0.0), input_precision="ieee")
            at, in_range = head_part(d_query, query_stride, first, n, head, dim, begin, R, D)
            tl.store(at, tile.to(d_query.dtype.element_ty), mask=in_range)
        for begin in range(0, dim, D):
            at, in_range = head_part(query, query_stride, first, n, head, dim, begin, R, D)
            tile = tl.dot(tl.trans(d_scores), tl.load(at, mask=in_range, other=0.0), input_precision="ieee")
            at, in_range = head_part(d_key, kv_stride, start, m, head, dim, begin, C, D)
            tl.store(at, tile.to(d_key.dtype.element_ty), mask=in_range)
        for begin in range(0, dim, D):
            at, in_range = head_part(d_out, out_stride, first, n, head, dim, begin, R, D)
            tile = tl.dot(tl.trans(kept), tl.load(at, mask=in_range, other=0.0), input_precision="ieee")
            at, in_range = head_part(d_value, kv_stride, start, m, head, dim, begin, C, D)
            tl.store(at, tile.to(d_value.dtype.element_ty), mask=in_range)
