"""Triton kernels of additive attention, launched by `additive`.

An item is one head of one sequence, numbered through the batch; item // group is the key head that it uses.
"""

import triton.language as tl

from regard.kernels.attention.mask_triton import visible
from regard.kernels.jit_triton import jit


@jit
def dropout_factors(seed, item, rows, keys, dropped):
    """Inverted-dropout factors of a tile of weights. They depend on seed and position only, as in the backward pass."""
    zero = rows[:, None] * 0 + keys[None, :] * 0
    bits, _, _, _ = tl.philox(
        tl.load(seed), zero + keys[None, :], zero + rows[:, None], zero + item.to(tl.int32), zero
    )
    return tl.where((bits & 0xFFFF).to(tl.int32) >= dropped, 65536.0 / (65536 - dropped), 0.0)


@jit
def tanh(x, FAST: tl.constexpr):
    """Tanh to float32 rounding in absolute terms; FAST: the hardware instruction, with an error up to 2^-11."""
    if FAST:
        return tl.inline_asm_elementwise(
            "tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )  # fmt: skip
    else:  # noqa: RET505  without `else` Triton compiles both
        return 1 - 2 / (1 + tl.exp(2 * x))


@jit
def additive_scores(
    query, key, weight, scores, from_item, from_row, count, n, m, n_padded, m_padded, dim, group,
    weight_heads,
    behind, ahead,
    BANDED: tl.constexpr, FAST: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
    UNROLL: tl.constexpr,
):  # fmt: skip
    """One tile of additive scores, w · tanh(q + k), of `count` rows of an item. Tiles outside the band are not written.

    Queries and keys are stored column by column: a thread reads few numbers and adds many pairs.
    """
    tall = tl.cdiv(count, R)
    wide = tl.cdiv(m, C)
    local = (tl.program_id(0) // (tall * wide)).to(tl.int64)
    item = local + from_item
    top = (tl.program_id(0) // wide % tall) * R
    left = (tl.program_id(0) % wide) * C
    local_rows = top + tl.arange(0, R)
    keys = left + tl.arange(0, C)
    rows = from_row + local_rows
    near = True
    if BANDED:
        position = from_row + top + m - n
        near = (left <= position + R - 1 + ahead) & (left + C > position - behind)
    if near:
        query += item * dim * n_padded
        key += (item // group) * dim * m_padded
        weight += (item % weight_heads) * dim
        total = tl.zeros((R, C), tl.float32)
        for column in tl.range(0, dim, loop_unroll_factor=UNROLL):
            q = tl.load(query + column * n_padded + rows).to(tl.float32)
            k = tl.load(key + column * m_padded + keys).to(tl.float32)
            total += tl.load(weight + column) * tanh(q[:, None] + k[None, :], FAST)
        in_range = (local_rows < count)[:, None] & (keys < m)[None, :]
        tl.store(
            scores + (local * count + local_rows)[:, None] * m + keys[None, :], total, mask=in_range
        )


@jit
def weighted_values(
    scores, value, out, lse, seed, dropped, allowed, b_step, h_step, n_step, m_step, behind, ahead,
    from_item, from_row, count, n, m, dim, heads, value_group,
    MASKED: tl.constexpr, BANDED: tl.constexpr, DROPPED: tl.constexpr,
    R: tl.constexpr, C: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """E columns of the outputs of R rows, from their scores, with an online softmax over blocks of keys."""
    blocks = tl.cdiv(count, R)
    local = (tl.program_id(0) // blocks).to(tl.int64)
    item = local + from_item
    top = (tl.program_id(0) % blocks) * R
    local_rows = top + tl.arange(0, R)
    columns = tl.program_id(1) * E + tl.arange(0, E)
    rows = from_row + local_rows
    row_ok = local_rows < count
    value += (item // value_group) * m * dim
    low = 0
    high = m
    if BANDED:
        low = tl.maximum(0, from_row + top + m - n - behind)
        high = tl.minimum(m, from_row + top + R + m - n + ahead)
    peak = tl.full((R,), float("-inf"), tl.float32)
    total = tl.zeros((R,), tl.float32)
    accumulated = tl.zeros((R, E), tl.float32)
    for start in range(low // C * C, high, C):
        keys = start + tl.arange(0, C)
        key_ok = keys < m
        s = tl.load(
            scores + (local * count + local_rows)[:, None] * m + keys[None, :],
            mask=row_ok[:, None] & key_ok[None, :], other=0.0,
        )  # fmt: skip
        may = visible(
            allowed, b_step, h_step, n_step, m_step, item, heads, rows, keys, n, m, behind, ahead,
            MASKED, BANDED
        )  # fmt: skip
        s = tl.where(may, s, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(s, 1))
        base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        weights = tl.exp(s - base[:, None])
        decay = tl.exp(peak - base)
        total = total * decay + tl.sum(weights, 1)
        if DROPPED:
            weights *= dropout_factors(seed, item, rows, keys, dropped)
        v = tl.load(
            value + keys[:, None] * dim + columns[None, :],
            mask=key_ok[:, None] & (columns < dim)[None, :], other=0.0,
        )  # fmt: skip
        accumulated = accumulated * decay[:, None] + tl.dot(
            weights.to(v.dtype), v, input_precision="ieee"
        )
        peak = new_peak
    empty = total == 0
    accumulated = accumulated / tl.where(empty, 1.0, total)[:, None]
    at = (item * n + rows)[:, None] * dim + columns[None, :]
    tl.store(
        out + at,
        accumulated.to(out.dtype.element_ty),
        mask=row_ok[:, None] & (columns < dim)[None, :],
    )
    if tl.program_id(1) == 0:
        tl.store(
            lse + item * n + rows,
            tl.where(empty, 0.0, peak + tl.log(tl.where(empty, 1.0, total))),
            mask=row_ok,
        )


@jit
def d_weighted_values(
    scores, d_scores, weights_out, value, out, d_out, lse,
    seed, dropped, allowed, b_step, h_step, n_step, m_step, behind, ahead,
    from_item, from_row, count, n, m, dim, heads, value_group,
    MASKED: tl.constexpr, BANDED: tl.constexpr, DROPPED: tl.constexpr,
    R: tl.constexpr, C: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """The weights after dropout of one tile, and the gradient of its scores, which may overwrite the scores."""
    tall = tl.cdiv(count, R)
    wide = tl.cdiv(m, C)
    local = (tl.program_id(0) // (tall * wide)).to(tl.int64)
    item = local + from_item
    local_rows = (tl.program_id(0) // wide % tall) * R + tl.arange(0, R)
    keys = (tl.program_id(0) % wide) * C + tl.arange(0, C)
    rows = from_row + local_rows
    row_ok = local_rows < count
    key_ok = keys < m
    value += (item // value_group) * m * dim
    d_weights = tl.zeros((R, C), tl.float32)
    average = tl.zeros((R,), tl.float32)
    for column in range(0, dim, E):
        columns = column + tl.arange(0, E)
        at = (item * n + rows)[:, None] * dim + columns[None, :]
        mask = row_ok[:, None] & (columns < dim)[None, :]
        d_rows = tl.load(d_out + at, mask=mask, other=0.0)
        v = tl.load(
            value + columns[:, None] + keys[None, :] * dim,
            mask=(columns < dim)[:, None] & key_ok[None, :], other=0.0,
        )  # fmt: skip
        d_weights += tl.dot(d_rows, v, input_precision="ieee")
        average += tl.sum(
            d_rows.to(tl.float32) * tl.load(out + at, mask=mask, other=0.0).to(tl.float32), 1
        )
    may = visible(
        allowed, b_step, h_step, n_step, m_step, item, heads, rows, keys, n, m, behind, ahead,
        MASKED, BANDED
    )  # fmt: skip
    at = (local * count + local_rows)[:, None] * m + keys[None, :]
    mask = row_ok[:, None] & key_ok[None, :]
    s = tl.where(may, tl.load(scores + at, mask=mask, other=0.0), float("-inf"))
    weights = tl.exp(s - tl.load(lse + item * n + rows, mask=row_ok, other=0.0)[:, None])
    live = weights
    if DROPPED:
        scale = dropout_factors(seed, item, rows, keys, dropped)
        live = weights * scale
        d_weights *= scale
    tl.store(weights_out + at, live.to(weights_out.dtype.element_ty), mask=mask)
    # Backward of softmax: subtract each row's mean gradient, weighted by its weights.
    tl.store(d_scores + at, weights * (d_weights - average[:, None]), mask=mask)


@jit
def additive_gradient(
    own, own_step, from_own, own_count, own_length, own_group,
    others, other_step, from_other, other_count, other_length, other_group,
    weight, d_scores, from_item, item_step, dim, weight_heads, d_own, d_weight, shift, behind,
    ahead,
    BANDED: tl.constexpr, ADD: tl.constexpr, WEIGHT: tl.constexpr, FAST: tl.constexpr,
    R: tl.constexpr, D: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """D columns of the gradient of one side, query or key: Σ d_score · w · (1 − tanh²) over the other side.

    With WEIGHT, Σ d_score · tanh goes to `d_weight`, per block of rows; with ADD, both are added to what is stored.
    """
    blocks = tl.cdiv(own_count, R)
    local = (tl.program_id(0) // blocks).to(tl.int64)
    block = tl.program_id(0) % blocks
    item = local + from_item
    rows = block * R + tl.arange(0, R)
    columns = tl.program_id(1) * D + tl.arange(0, D)
    row_ok = rows < own_count
    column_ok = columns < dim
    both = row_ok[:, None] & column_ok[None, :]
    own += (item // own_group * own_length + from_own) * dim
    others += (item // other_group * other_length + from_other) * dim
    d_scores += local * item_step
    own_tile = tl.load(own + rows[:, None] * dim + columns[None, :], mask=both, other=0.0).to(
        tl.float32
    )
    low = 0
    high = other_count
    if BANDED:
        low = tl.maximum(0, block * R + shift - behind)
        high = tl.minimum(other_count, block * R + R + shift + ahead)
    d_tile = tl.zeros((R, D), tl.float32)
    d_weight_tile = tl.zeros((R, D), tl.float32)
    for other in tl.range(low, high, loop_unroll_factor=UNROLL):
        other_row = tl.load(others + other * dim + columns, mask=column_ok, other=0.0).to(
            tl.float32
        )
        d = tl.load(d_scores + other * other_step + rows * own_step, mask=row_ok, other=0.0)[
            :, None
        ]
        t = tanh(own_tile + other_row[None, :], FAST)
        d_tile += d * (1 - t * t)
        if WEIGHT:
            d_weight_tile += d * t
    weight += (item % weight_heads) * dim
    d_own += (item * own_length + from_own + rows)[:, None] * dim + columns[None, :]
    d_weight += (item * blocks + block) * dim + columns
    d_tile *= tl.load(weight + columns, mask=column_ok, other=0.0)[None, :]
    d_weight_sum = tl.sum(d_weight_tile, 0)
    if ADD:
        d_tile += tl.load(d_own, mask=both, other=0.0)
    tl.store(d_own, d_tile.to(d_own.dtype.element_ty), mask=both)
    if WEIGHT:
        if ADD:
            d_weight_sum += tl.load(d_weight, mask=column_ok, other=0.0)
        tl.store(d_weight, d_weight_sum, mask=column_ok)
