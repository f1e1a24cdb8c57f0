"""Triton kernels of attention within short packed sequences, launched by `varlen`: one program per head and sequence.

Imported only when a kernel is launched. Every output element is written by one program and sums have a fixed order, so
results are bit-identical from run to run. With TRITON_INTERPRET=1 Triton's interpreter runs the kernels on a CPU.
"""

from typing import no_type_check

import triton
import triton.language as tl

from regard.kernels.layers.dropout_triton import keep_mask

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
@no_type_check
def softmax_weights(
    scores, n, m, scale, seed, item, dropped,
    CAUSAL: tl.constexpr, DROP: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Softmax weights of R queries over C keys, the whole sequence; and the same after dropout."""
    rows, keys = tl.arange(0, R)[:, None], tl.arange(0, C)[None, :]
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
            keep_mask(seed, (item * R + rows) * C + keys, dropped), weights * (65536.0 / (65536 - dropped)), 0.0
        )
    return weights, kept


@triton.jit
@no_type_check
def head_tile(start, step, first, size, head, dim, S: tl.constexpr, D: tl.constexpr):
    """Pointers to S positions of one head, and which of them are in range."""
    positions, columns = tl.arange(0, S), tl.arange(0, D)
    at = start + (first + positions).to(tl.int64)[:, None] * step + (head * dim + columns)[None, :]
    return at, (positions < size)[:, None] & (columns < dim)[None, :]


@triton.jit
@no_type_check
def short_attention(
    query, key, value, out, cu_seqlens, kv_cu_seqlens, seed, query_stride, kv_stride, out_stride,
    scale, dropped, heads, group, dim, min_length,
    CAUSAL: tl.constexpr, DROP: tl.constexpr, R: tl.constexpr, C: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Attention of one head of one sequence to the same sequence, or to the key sequence of the same index.

    Only pairs of sequences longer than `min_length` and at most R, C; other launches take the rest.
    """
    row, head = tl.program_id(0), tl.program_id(1)
    first, start = tl.load(cu_seqlens + row), tl.load(kv_cu_seqlens + row)
    n, m = tl.load(cu_seqlens + row + 1) - first, tl.load(kv_cu_seqlens + row + 1) - start
    if (n > 0) & (tl.maximum(n, m) > min_length) & (n <= R) & (m <= C):
        at, in_range = head_tile(query, query_stride, first, n, head, dim, R, D)
        q = tl.load(at, mask=in_range, other=0.0)
        at, in_range = head_tile(key, kv_stride, start, m, head // group, dim, C, D)
        k = tl.load(at, mask=in_range, other=0.0)
        at, in_range = head_tile(value, kv_stride, start, m, head // group, dim, C, D)
        v = tl.load(at, mask=in_range, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        _, kept = softmax_weights(scores, n, m, scale, seed, row * heads + head, dropped, CAUSAL, DROP, R, C)
        rows = tl.dot(kept.to(v.dtype), v, input_precision="ieee")
        at, in_range = head_tile(out, out_stride, first, n, head, dim, R, D)
        tl.store(at, rows.to(out.dtype.element_ty), mask=in_range)


@triton.jit
@no_type_check
def d_short_attention(
    query, key, value, d_out, d_query, d_key, d_value, cu_seqlens, kv_cu_seqlens, seed,
    query_stride, kv_stride, out_stride, scale, dropped, heads, group, dim, min_length,
    CAUSAL: tl.constexpr, DROP: tl.constexpr, R: tl.constexpr, C: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Backward pass of one key/value head and all query heads of its group, recomputing the weights."""
    row, kv_head = tl.program_id(0), tl.program_id(1)
    first, start = tl.load(cu_seqlens + row), tl.load(kv_cu_seqlens + row)
    n, m = tl.load(cu_seqlens + row + 1) - first, tl.load(kv_cu_seqlens + row + 1) - start
    if (tl.maximum(n, m) > min_length) & (n <= R) & (m <= C):
        at, key_ok = head_tile(key, kv_stride, start, m, kv_head, dim, C, D)
        k = tl.load(at, mask=key_ok, other=0.0)
        at, _ = head_tile(value, kv_stride, start, m, kv_head, dim, C, D)
        v = tl.load(at, mask=key_ok, other=0.0)
        d_k, d_v = tl.zeros((C, D), tl.float32), tl.zeros((C, D), tl.float32)
        for head in range(kv_head * group, (kv_head + 1) * group):
            at, in_range = head_tile(query, query_stride, first, n, head, dim, R, D)
            q = tl.load(at, mask=in_range, other=0.0)
            at, _ = head_tile(d_out, out_stride, first, n, head, dim, R, D)
            d_rows = tl.load(at, mask=in_range, other=0.0)
            scores = tl.dot(q, tl.trans(k), input_precision="ieee")
            weights, kept = softmax_weights(scores, n, m, scale, seed, row * heads + head, dropped, CAUSAL, DROP, R, C)
            d_v += tl.dot(tl.trans(kept.to(d_rows.dtype)), d_rows, input_precision="ieee")
            d_weights = kept * tl.dot(d_rows, tl.trans(v), input_precision="ieee")
            d_scores = ((d_weights - weights * tl.sum(d_weights, 1)[:, None]) * scale).to(k.dtype)
            d_k += tl.dot(tl.trans(d_scores), q, input_precision="ieee")
            at, _ = head_tile(d_query, query_stride, first, n, head, dim, R, D)
            tl.store(at, tl.dot(d_scores, k, input_precision="ieee").to(d_query.dtype.element_ty), mask=in_range)
        at, _ = head_tile(d_key, kv_stride, start, m, kv_head, dim, C, D)
        tl.store(at, d_k.to(d_key.dtype.element_ty), mask=key_ok)
        at, _ = head_tile(d_value, kv_stride, start, m, kv_head, dim, C, D)
        tl.store(at, d_v.to(d_value.dtype.element_ty), mask=key_ok)
