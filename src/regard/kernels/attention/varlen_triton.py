"""Triton kernels of `varlen`: attention of packed sequences that fit into one tile, and its gradients."""

from typing import no_type_check

import triton
import triton.language as tl

from regard.kernels.layers.dropout_triton import keep_mask

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
@no_type_check
def weights_of(
    scores, n, m, factor, seed, item, dropped,
    CAUSAL: tl.constexpr, DROP: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """The weights of R queries over C keys, all there are; and the same under dropout."""
    rows, keys = tl.arange(0, R)[:, None], tl.arange(0, C)[None, :]
    seen = (rows < n) & (keys < m)
    if CAUSAL:
        seen = seen & (keys <= rows)
    scores = tl.where(seen, scores * (factor * LOG2E), float("-inf"))
    peak = tl.max(scores, 1)
    weights = tl.exp2(scores - tl.where(peak == float("-inf"), 0.0, peak)[:, None])
    total = tl.sum(weights, 1)
    weights = weights / tl.where(total == 0, 1.0, total)[:, None]
    left = weights
    if DROP:
        left = tl.where(
            keep_mask(seed, (item * R + rows) * C + keys, dropped), weights * (65536.0 / (65536 - dropped)), 0.0
        )
    return weights, left


@triton.jit
@no_type_check
def tile_of(start, step, first, size, head, width, S: tl.constexpr, D: tl.constexpr):
    """Where S positions of one head lie, and which of these numbers are there."""
    positions, columns = tl.arange(0, S), tl.arange(0, D)
    at = start + (first + positions).to(tl.int64)[:, None] * step + (head * width + columns)[None, :]
    return at, (positions < size)[:, None] & (columns < width)[None, :]


@triton.jit
@no_type_check
def look(
    query, key, value, out, ends, source_ends, seed, query_step, source_step, out_step, factor, dropped, heads, group,
    width, beyond,
    CAUSAL: tl.constexpr, DROP: tl.constexpr, R: tl.constexpr, C: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Attention of one head of one sequence, all of it, to the same or to another that belongs to it.

    Pairs of which neither is longer than `beyond` are left to another launch.
    """
    row, head = tl.program_id(0), tl.program_id(1)
    first, start = tl.load(ends + row), tl.load(source_ends + row)
    n, m = tl.load(ends + row + 1) - first, tl.load(source_ends + row + 1) - start
    if (n > 0) & (tl.maximum(n, m) > beyond) & (n <= R) & (m <= C):
        at, there = tile_of(query, query_step, first, n, head, width, R, D)
        q = tl.load(at, mask=there, other=0.0)
        at, there = tile_of(key, source_step, start, m, head // group, width, C, D)
        k = tl.load(at, mask=there, other=0.0)
        at, there = tile_of(value, source_step, start, m, head // group, width, C, D)
        v = tl.load(at, mask=there, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        _, left = weights_of(scores, n, m, factor, seed, row * heads + head, dropped, CAUSAL, DROP, R, C)
        seen = tl.dot(left.to(v.dtype), v, input_precision="ieee")
        at, there = tile_of(out, out_step, first, n, head, width, R, D)
        tl.store(at, seen.to(out.dtype.element_ty), mask=there)


@triton.jit
@no_type_check
def d_look(
    query, key, value, d_out, d_query, d_key, d_value, ends, source_ends, seed, query_step, source_step, out_step,
    factor, dropped, heads, group, width, beyond,
    CAUSAL: tl.constexpr, DROP: tl.constexpr, R: tl.constexpr, C: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Its gradients, weights computed again: of one head of keys and values, and of all heads that ask it."""
    row, shared = tl.program_id(0), tl.program_id(1)
    first, start = tl.load(ends + row), tl.load(source_ends + row)
    n, m = tl.load(ends + row + 1) - first, tl.load(source_ends + row + 1) - start
    if (tl.maximum(n, m) > beyond) & (n <= R) & (m <= C):
        at, keys_there = tile_of(key, source_step, start, m, shared, width, C, D)
        k = tl.load(at, mask=keys_there, other=0.0)
        at, _ = tile_of(value, source_step, start, m, shared, width, C, D)
        v = tl.load(at, mask=keys_there, other=0.0)
        to_key, to_value = tl.zeros((C, D), tl.float32), tl.zeros((C, D), tl.float32)
        for head in range(shared * group, (shared + 1) * group):
            at, there = tile_of(query, query_step, first, n, head, width, R, D)
            q = tl.load(at, mask=there, other=0.0)
            at, _ = tile_of(d_out, out_step, first, n, head, width, R, D)
            given = tl.load(at, mask=there, other=0.0)
            scores = tl.dot(q, tl.trans(k), input_precision="ieee")
            weights, left = weights_of(scores, n, m, factor, seed, row * heads + head, dropped, CAUSAL, DROP, R, C)
            to_value += tl.dot(tl.trans(left.to(given.dtype)), given, input_precision="ieee")
            moved = left * tl.dot(given, tl.trans(v), input_precision="ieee")
            d_scores = ((moved - weights * tl.sum(moved, 1)[:, None]) * factor).to(k.dtype)
            to_key += tl.dot(tl.trans(d_scores), q, input_precision="ieee")
            at, _ = tile_of(d_query, query_step, first, n, head, width, R, D)
            tl.store(at, tl.dot(d_scores, k, input_precision="ieee").to(d_query.dtype.element_ty), mask=there)
        at, _ = tile_of(d_key, source_step, start, m, shared, width, C, D)
        tl.store(at, to_key.to(d_key.dtype.element_ty), mask=keys_there)
        at, _ = tile_of(d_value, source_step, start, m, shared, width, C, D)
        tl.store(at, to_value.to(d_value.dtype.element_ty), mask=keys_there)
