"""Triton kernels of exact attention weights and summaries for dot-product scores, launched by `weights`."""

import triton.language as tl

from regard.kernels.attention.mask_triton import visible
from regard.kernels.jit_triton import jit

FAR = tl.constexpr(2**30)  # beyond any key index
LOG2E = tl.constexpr(1.4426950408889634)


@jit
def dot_weights(
    query, q_batch, q_head, q_row, key, k_batch, k_head, k_row, lse, picks, weights,
    allowed, b_step, h_step, n_step, m_step, behind, ahead, scale, count, n, m, dim, heads, group,
    MASKED: tl.constexpr, BANDED: tl.constexpr, R: tl.constexpr, C: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Weights of the selected rows `picks` with one tile of keys."""
    blocks = tl.cdiv(count, R)
    item = (tl.program_id(0) // blocks).to(tl.int64)
    local_rows = (tl.program_id(0) % blocks) * R + tl.arange(0, R)
    keys = tl.program_id(1) * C + tl.arange(0, C)
    columns = tl.arange(0, D)
    row_ok = local_rows < count
    rows = tl.load(picks + local_rows, mask=row_ok, other=0).to(tl.int32)
    q_at = (
        query
        + (item // heads) * q_batch
        + (item % heads) * q_head
        + rows.to(tl.int64)[:, None] * q_row
    )
    k_at = (
        key
        + (item // heads) * k_batch
        + (item % heads // group) * k_head
        + keys.to(tl.int64)[None, :] * k_row
    )
    q = tl.load(q_at + columns[None, :], mask=row_ok[:, None] & (columns < dim)[None, :], other=0.0)
    k = tl.load(
        k_at + columns[:, None], mask=(columns < dim)[:, None] & (keys < m)[None, :], other=0.0
    )
    scores = tl.dot(q, k, input_precision="ieee") * scale
    tile = tl.exp(scores - tl.load(lse + item * n + rows, mask=row_ok, other=0.0)[:, None])
    if MASKED or BANDED:
        may = visible(
            allowed, b_step, h_step, n_step, m_step, item, heads, rows, keys, n, m, behind, ahead,
            MASKED, BANDED
        )  # fmt: skip
        tile = tl.where(may, tile, 0.0)
    at = (item * count + local_rows)[:, None] * m + keys[None, :]
    tl.store(weights + at, tile, mask=row_ok[:, None] & (keys < m)[None, :])


@jit
def dot_summary(
    query, q_batch, q_head, q_row, key, k_batch, k_head, k_row, lse, on,
    entropy, distance, mass, top_weights, top_keys,
    allowed, b_step, h_step, n_step, m_step, behind, ahead, scale, top, n, m, dim, heads, group,
    MASKED: tl.constexpr, BANDED: tl.constexpr, WHOLE: tl.constexpr, ON: tl.constexpr,
    TOP: tl.constexpr,
    R: tl.constexpr, C: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Summaries of R rows. WHOLE: no tile is masked; TOP: a power of two of at least `top`, or 0 for none.

    The largest weights so far are not sorted. The largest of a tile replaces the smallest of them while it is larger;
    of equal weights the first key counts as the largest.
    """
    blocks = tl.cdiv(n, R)
    item = (tl.program_id(0) // blocks).to(tl.int64)
    first = (tl.program_id(0) % blocks) * R
    rows = first + tl.arange(0, R)
    columns = tl.arange(0, D)
    row_ok = rows < n
    q_at = (
        query
        + (item // heads) * q_batch
        + (item % heads) * q_head
        + rows.to(tl.int64)[:, None] * q_row
    )
    k_at = key + (item // heads) * k_batch + (item % heads // group) * k_head
    q = tl.load(q_at + columns[None, :], mask=row_ok[:, None] & (columns < dim)[None, :], other=0.0)
    scale *= LOG2E
    base = tl.load(lse + item * n + rows, mask=row_ok, other=0.0)[:, None] * LOG2E
    position = (rows + (m - n)).to(tl.float32)[:, None]
    low = 0
    high = m
    if BANDED:
        low = tl.maximum(0, first + m - n - behind)
        high = tl.minimum(m, first + R + m - n + ahead)
    low = low // C * C
    negentropy = tl.zeros((R,), tl.float32)
    mean_distance = tl.zeros((R,), tl.float32)
    on_mass = tl.zeros((R,), tl.float32)
    if TOP:
        top_values = tl.full((R, TOP), float("-inf"), tl.float32)
        top_index = (
            tl.zeros((R, TOP), tl.int32) - 2 - tl.arange(0, TOP)[None, :]
        )  # distinct, below any key
    keys = low + tl.arange(0, C)
    in_range = (columns < dim)[:, None] & (keys < m)[None, :]
    k = tl.load(
        k_at + columns[:, None] + keys.to(tl.int64)[None, :] * k_row, mask=in_range, other=0.0
    )
    for start in range(low, high, C):
        keys = start + C + tl.arange(0, C)  # load the next tile while this one is computed
        in_range = (columns < dim)[:, None] & (keys < m)[None, :]
        next_k = tl.load(
            k_at + columns[:, None] + keys.to(tl.int64)[None, :] * k_row, mask=in_range, other=0.0
        )
        x = tl.dot(q, k, input_precision="ieee") * scale - base  # log2 of the weight
        keys = start + tl.arange(0, C)
        if not WHOLE:
            may = visible(
                allowed, b_step, h_step, n_step, m_step, item, heads, rows, keys, n, m, behind,
                ahead, MASKED, BANDED
            )  # fmt: skip
            x = tl.where(may, x, float("-inf"))
        weights = tl.exp2(x)
        negentropy += tl.sum(weights * (x if WHOLE else tl.where(may, x, 0.0)), 1)
        mean_distance += tl.sum(weights * tl.abs(keys.to(tl.float32)[None, :] - position), 1)
        if ON:
            on_mass += tl.sum(weights * tl.load(on + keys, mask=keys < m, other=0.0)[None, :], 1)
        if TOP:
            best = tl.max(x, 1)
            least = tl.min(top_values, 1)
            while tl.max((best > least).to(tl.int32), 0) > 0:
                column = tl.min(tl.where(x == best[:, None], keys[None, :], FAR), 1)
                last = tl.max(tl.where(top_values == least[:, None], top_index, -FAR), 1)
                slot = (top_index == last[:, None]) & (best > least)[:, None]
                top_values = tl.where(slot, best[:, None], top_values)
                top_index = tl.where(slot, column[:, None], top_index)
                # Harmless for a row that took nothing: its best was too small already.
                x = tl.where(keys[None, :] == column[:, None], float("-inf"), x)
                best = tl.max(x, 1)
                least = tl.min(top_values, 1)
        k = next_k
    at = item * n + rows
    tl.store(entropy + at, negentropy / -LOG2E, mask=row_ok)
    tl.store(distance + at, mean_distance, mask=row_ok)
    if ON:
        tl.store(mass + at, on_mass, mask=row_ok)
    if TOP:
        for rank in range(0, top):
            best = tl.max(top_values, 1)
            column = tl.min(tl.where(top_values == best[:, None], top_index, FAR), 1)
            weight = tl.exp2(best)
            tl.store(top_weights + at * top + rank, weight, mask=row_ok)
            tl.store(top_keys + at * top + rank, tl.where(weight > 0, column, -1), mask=row_ok)
            taken = top_index == column[:, None]
            top_values = tl.where(taken, float("-inf"), top_values)
            top_index = tl.where(taken, FAR, top_index)
