"""Triton kernels of attention within short packed sequences, launched by `varlen`: one program per head and sequence.

A program holds a head of D dimensions or, with LOOPED, loops over it, D dimensions at a time; heads share no keys there
(`group` is 1).
"""

import triton.language as tl

from regard.kernels.jit_triton import jit
from regard.kernels.layers.dropout_triton import keep_mask

LOG2E = tl.constexpr(1.4426950408889634)


@jit
def softmax_weights(
    scores, n, m, scale, seed, item, dropped,
    CAUSAL: tl.constexpr, DROP: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Softmax weights of R queries over C keys, the whole sequence; and the same after dropout."""
    rows = tl.arange(0, R)[:, None]
    keys = tl.arange(0, C)[None, :]
    visible = (rows < n) & (keys < m)
    if CAUSAL:
        visible = visible & (keys <= rows)
    scores = tl.where(visible, scores * (scale * LOG2E), float("-inf"))
    peak = tl.max(scores, 1)
    weights = tl.exp2(scores - tl.where(peak == float("-inf"), 0.0, peak)[:, None])
    total = tl.sum(weights, 1)
    weights = weights / tl.where(total == 0, 1.0, total)[:, None]
    kept = weights
    if DROP:
        kept = tl.where(
            keep_mask(seed, (item * R + rows) * C + keys, dropped),
            weights * (65536.0 / (65536 - dropped)),
            0.0,
        )
    return weights, kept


@jit
def softmax_backward(weights, kept, d_kept, scale):
    """Gradients of the dot products, given those of the weights after dropout."""
    d_weights = kept * d_kept
    return (d_weights - weights * tl.sum(d_weights, 1)[:, None]) * scale


@jit
def head_tile(start, step, first, size, head, dim, S: tl.constexpr, D: tl.constexpr):
    """Pointers to S positions of one head, and which of them are in range."""
    positions = tl.arange(0, S)
    columns = tl.arange(0, D)
    at = start + (first + positions).to(tl.int64)[:, None] * step + (head * dim + columns)[None, :]
    return at, (positions < size)[:, None] & (columns < dim)[None, :]


@jit
def load_head(start, step, first, size, head, dim, S: tl.constexpr, D: tl.constexpr):
    """S positions of one head, zero out of range."""
    at, in_range = head_tile(start, step, first, size, head, dim, S, D)
    return tl.load(at, mask=in_range, other=0.0)


@jit
def store_head(tile, start, step, first, size, head, dim, S: tl.constexpr, D: tl.constexpr):
    """Store S positions of one head, in the dtype stored there."""
    at, in_range = head_tile(start, step, first, size, head, dim, S, D)
    tl.store(at, tile.to(start.dtype.element_ty), mask=in_range)


@jit
def dot_products(
    x, y, x_step, y_step, first, start, n, m, head, dim, R: tl.constexpr, C: tl.constexpr,
    D: tl.constexpr
):  # fmt: skip
    """Dot products of R rows of x with C rows of y, over the whole head dimension."""
    total = tl.zeros((R, C), tl.float32)
    for begin in range(0, dim, D):
        a = load_head(x + head * dim + begin, x_step, first, n, 0, dim - begin, R, D)
        b = load_head(y + head * dim + begin, y_step, start, m, 0, dim - begin, C, D)
        total += tl.dot(a, tl.trans(b), input_precision="ieee")
    return total


@jit
def multiply(
    left, x, x_step, x_first, x_size, out, out_step, out_first, out_size, head, dim,
    R: tl.constexpr, C: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Store left (R, C) times a head of x (C, dim)."""
    for begin in range(0, dim, D):
        right = load_head(x + head * dim + begin, x_step, x_first, x_size, 0, dim - begin, C, D)
        tile = tl.dot(left, right, input_precision="ieee")
        store_head(
            tile, out + head * dim + begin, out_step, out_first, out_size, 0, dim - begin, R, D
        )


@jit
def short_attention(
    query, key, value, out, cu_seqlens, kv_cu_seqlens, seed, query_stride, kv_stride, out_stride,
    scale, dropped, heads, group, dim, min_length,
    CAUSAL: tl.constexpr, DROP: tl.constexpr, LOOPED: tl.constexpr, R: tl.constexpr,
    C: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Attention of one head of one sequence to the same sequence, or to the key sequence of the same index.

    Only pairs of sequences longer than `min_length` and at most R, C; other launches take the rest.
    """
    row = tl.program_id(0)
    head = tl.program_id(1)
    first = tl.load(cu_seqlens + row)
    start = tl.load(kv_cu_seqlens + row)
    n = tl.load(cu_seqlens + row + 1) - first
    m = tl.load(kv_cu_seqlens + row + 1) - start
    if (n > 0) & (tl.maximum(n, m) > min_length) & (n <= R) & (m <= C):
        if LOOPED:
            scores = dot_products(
                query, key, query_stride, kv_stride, first, start, n, m, head, dim, R, C, D
            )
        else:
            q = load_head(query, query_stride, first, n, head, dim, R, D)
            k = load_head(key, kv_stride, start, m, head // group, dim, C, D)
            v = load_head(value, kv_stride, start, m, head // group, dim, C, D)
            scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        _, kept = softmax_weights(
            scores, n, m, scale, seed, row * heads + head, dropped, CAUSAL, DROP, R, C
        )
        kept = kept.to(value.dtype.element_ty)
        if LOOPED:
            multiply(
                kept, value, kv_stride, start, m, out, out_stride, first, n, head, dim, R, C, D
            )
        else:
            rows = tl.dot(kept, v, input_precision="ieee")
            store_head(rows, out, out_stride, first, n, head, dim, R, D)


@jit
def d_short_attention(
    query, key, value, d_out, d_query, d_key, d_value, cu_seqlens, kv_cu_seqlens, seed,
    query_stride, kv_stride, out_stride, scale, dropped, heads, group, dim, min_length,
    CAUSAL: tl.constexpr, DROP: tl.constexpr, LOOPED: tl.constexpr, R: tl.constexpr,
    C: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Backward pass of one key/value head and all query heads of its group, recomputing the weights."""
    row = tl.program_id(0)
    kv_head = tl.program_id(1)
    first = tl.load(cu_seqlens + row)
    start = tl.load(kv_cu_seqlens + row)
    n = tl.load(cu_seqlens + row + 1) - first
    m = tl.load(kv_cu_seqlens + row + 1) - start
    if (tl.maximum(n, m) > min_length) & (n <= R) & (m <= C):
        if LOOPED:
            head = kv_head
            item = row * heads + kv_head
            scores = dot_products(
                query, key, query_stride, kv_stride, first, start, n, m, head, dim, R, C, D
            )
            weights, kept = softmax_weights(
                scores, n, m, scale, seed, item, dropped, CAUSAL, DROP, R, C
            )
            d_kept = dot_products(
                d_out, value, out_stride, kv_stride, first, start, n, m, head, dim, R, C, D
            )
            d_scores = softmax_backward(weights, kept, d_kept, scale).to(key.dtype.element_ty)
            kept = kept.to(d_out.dtype.element_ty)
            multiply(
                d_scores,
                key,
                kv_stride,
                start,
                m,
                d_query,
                query_stride,
                first,
                n,
                head,
                dim,
                R,
                C,
                D,
            )
            multiply(
                tl.trans(d_scores),
                query,
                query_stride,
                first,
                n,
                d_key,
                kv_stride,
                start,
                m,
                head,
                dim,
                C,
                R,
                D,
            )
            multiply(
                tl.trans(kept),
                d_out,
                out_stride,
                first,
                n,
                d_value,
                kv_stride,
                start,
                m,
                head,
                dim,
                C,
                R,
                D,
            )
        else:
            k = load_head(key, kv_stride, start, m, kv_head, dim, C, D)
            v = load_head(value, kv_stride, start, m, kv_head, dim, C, D)
            d_k = tl.zeros((C, D), tl.float32)
            d_v = tl.zeros((C, D), tl.float32)
            for head in range(kv_head * group, (kv_head + 1) * group):
                q = load_head(query, query_stride, first, n, head, dim, R, D)
                d_rows = load_head(d_out, out_stride, first, n, head, dim, R, D)
                scores = tl.dot(q, tl.trans(k), input_precision="ieee")
                item = row * heads + head
                weights, kept = softmax_weights(
                    scores, n, m, scale, seed, item, dropped, CAUSAL, DROP, R, C
                )
                d_v += tl.dot(tl.trans(kept.to(d_rows.dtype)), d_rows, input_precision="ieee")
                d_kept = tl.dot(d_rows, tl.trans(v), input_precision="ieee")
                d_scores = softmax_backward(weights, kept, d_kept, scale).to(k.dtype)
                d_k += tl.dot(tl.trans(d_scores), q, input_precision="ieee")
                d_q = tl.dot(d_scores, k, input_precision="ieee")
                store_head(d_q, d_query, query_stride, first, n, head, dim, R, D)
            store_head(d_k, d_key, kv_stride, start, m, kv_head, dim, C, D)
            store_head(d_v, d_value, kv_stride, start, m, kv_head, dim, C, D)
