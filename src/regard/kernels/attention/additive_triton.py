"""What Triton compiles for a GPU. Nothing imports this before a kernel is launched; `additive` and `dots` launch them.

An item is one head of one sentence, numbered through the batch; (item // group) is the head of keys that it shares.
Whatever is written is written by one program, and sums are taken in one order, so that the same input gives the same
bits. With TRITON_INTERPRET=1, Triton's interpreter runs all of this on a CPU, but for the fast tanh.
"""

from typing import no_type_check

import triton
import triton.language as tl

FAR = tl.constexpr(2**30)  # more than any place of a key
LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
@no_type_check
def seen(
    allowed, b_step, h_step, n_step, m_step, item, heads, rows, keys, n, m, behind, ahead,
    MASKED: tl.constexpr, BANDED: tl.constexpr,
):  # fmt: skip
    """Which of these rows (R,) may see which of these keys (C,): `Visibility.tile`."""
    row, key = rows[:, None], keys[None, :]
    sees = (row < n) & (key < m)
    if BANDED:
        place = row + (m - n)
        sees = sees & (key >= place - behind) & (key <= place + ahead)
    if MASKED:
        start = allowed + (item // heads) * b_step + (item % heads) * h_step
        sees = sees & (tl.load(start + row.to(tl.int64) * n_step + key * m_step, mask=sees, other=0) != 0)
    return sees


@triton.jit
@no_type_check
def lives(seed, item, rows, keys, dropped):
    """What dropout multiplies each weight by. A function of seed and place, so that the backward draws the same."""
    zero = rows[:, None] * 0 + keys[None, :] * 0
    bits, _, _, _ = tl.philox(tl.load(seed), zero + keys[None, :], zero + rows[:, None], zero + item.to(tl.int32), zero)
    return tl.where((bits & 0xFFFF).to(tl.int32) >= dropped, 65536.0 / (65536 - dropped), 0.0)


@triton.jit
@no_type_check
def tanh(x, FAST: tl.constexpr):
    """To the last digits of float32 in absolute terms; FAST: by the unit that a GPU has for it, right to 2^-11."""
    if FAST:
        return tl.inline_asm_elementwise(
            "tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )  # fmt: skip
    else:  # noqa: RET505  Triton would compile both
        return 1 - 2 / (1 + tl.exp(2 * x))


@triton.jit
@no_type_check
def additive_scores(
    query, key, weight, scores, from_item, from_row, some, n, m, n_padded, m_padded, depth, group, weight_heads,
    behind, ahead,
    BANDED: tl.constexpr, FAST: tl.constexpr, R: tl.constexpr, C: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Scores, w · tanh(q + k), of one tile of `some` rows of some items. Tiles that nobody sees are left as they are.

    One column of all queries, or keys, lies side by side, and then the next: a thread reads few, and adds many pairs.
    """
    tall, wide = tl.cdiv(some, R), tl.cdiv(m, C)
    local = (tl.program_id(0) // (tall * wide)).to(tl.int64)
    item = local + from_item
    top, left = (tl.program_id(0) // wide % tall) * R, (tl.program_id(0) % wide) * C
    inside, keys = top + tl.arange(0, R), left + tl.arange(0, C)
    rows = from_row + inside
    near = True
    if BANDED:
        place = from_row + top + m - n
        near = (left <= place + R - 1 + ahead) & (left + C > place - behind)
    if near:
        query += item * depth * n_padded
        key += (item // group) * depth * m_padded
        weight += (item % weight_heads) * depth
        found = tl.zeros((R, C), tl.float32)
        for column in tl.range(0, depth, loop_unroll_factor=UNROLL):
            q = tl.load(query + column * n_padded + rows).to(tl.float32)
            k = tl.load(key + column * m_padded + keys).to(tl.float32)
            found += tl.load(weight + column) * tanh(q[:, None] + k[None, :], FAST)
        there = (inside < some)[:, None] & (keys < m)[None, :]
        tl.store(scores + (local * some + inside)[:, None] * m + keys[None, :], found, mask=there)


@triton.jit
@no_type_check
def weigh(
    scores, value, out, lse, seed, dropped, allowed, b_step, h_step, n_step, m_step, behind, ahead,
    from_item, from_row, some, n, m, width, heads, value_group,
    MASKED: tl.constexpr, BANDED: tl.constexpr, DROPPED: tl.constexpr,
    R: tl.constexpr, C: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """E columns of the output of R rows, from their scores, with a softmax that is corrected as keys go by."""
    blocks = tl.cdiv(some, R)
    local = (tl.program_id(0) // blocks).to(tl.int64)
    item = local + from_item
    top = (tl.program_id(0) % blocks) * R
    inside, columns = top + tl.arange(0, R), tl.program_id(1) * E + tl.arange(0, E)
    rows, here = from_row + inside, inside < some
    value += (item // value_group) * m * width
    low, high = 0, m
    if BANDED:
        low = tl.maximum(0, from_row + top + m - n - behind)
        high = tl.minimum(m, from_row + top + R + m - n + ahead)
    peak, total = tl.full((R,), float("-inf"), tl.float32), tl.zeros((R,), tl.float32)
    summed = tl.zeros((R, E), tl.float32)
    for start in range(low // C * C, high, C):
        keys = start + tl.arange(0, C)
        there = keys < m
        s = tl.load(
            scores + (local * some + inside)[:, None] * m + keys[None, :],
            mask=here[:, None] & there[None, :], other=0.0,
        )  # fmt: skip
        sees = seen(
            allowed, b_step, h_step, n_step, m_step, item, heads, rows, keys, n, m, behind, ahead, MASKED, BANDED
        )  # fmt: skip
        s = tl.where(sees, s, float("-inf"))
        higher = tl.maximum(peak, tl.max(s, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp(s - base[:, None])
        decay = tl.exp(peak - base)
        total = total * decay + tl.sum(weights, 1)
        if DROPPED:
            weights *= lives(seed, item, rows, keys, dropped)
        v = tl.load(
            value + keys[:, None] * width + columns[None, :],
            mask=there[:, None] & (columns < width)[None, :], other=0.0,
        )  # fmt: skip
        summed = summed * decay[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        peak = higher
    blind = total == 0
    summed = summed / tl.where(blind, 1.0, total)[:, None]
    at = (item * n + rows)[:, None] * width + columns[None, :]
    tl.store(out + at, summed.to(out.dtype.element_ty), mask=here[:, None] & (columns < width)[None, :])
    if tl.program_id(1) == 0:
        tl.store(lse + item * n + rows, tl.where(blind, 0.0, peak + tl.log(tl.where(blind, 1.0, total))), mask=here)


@triton.jit
@no_type_check
def d_weigh(
    scores, d_scores, kept, value, out, d_out, lse,
    seed, dropped, allowed, b_step, h_step, n_step, m_step, behind, ahead,
    from_item, from_row, some, n, m, width, heads, value_group,
    MASKED: tl.constexpr, BANDED: tl.constexpr, DROPPED: tl.constexpr,
    R: tl.constexpr, C: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """The weights after dropout, and the gradient of one tile of scores, which may take their place."""
    tall, wide = tl.cdiv(some, R), tl.cdiv(m, C)
    local = (tl.program_id(0) // (tall * wide)).to(tl.int64)
    item = local + from_item
    inside, keys = (
        (tl.program_id(0) // wide % tall) * R + tl.arange(0, R),
        (tl.program_id(0) % wide) * C + tl.arange(0, C),
    )
    rows, here, there = from_row + inside, inside < some, keys < m
    value += (item // value_group) * m * width
    gained, average = tl.zeros((R, C), tl.float32), tl.zeros((R,), tl.float32)
    for column in range(0, width, E):
        columns = column + tl.arange(0, E)
        at = (item * n + rows)[:, None] * width + columns[None, :]
        mask = here[:, None] & (columns < width)[None, :]
        d_rows = tl.load(d_out + at, mask=mask, other=0.0)
        v = tl.load(
            value + columns[:, None] + keys[None, :] * width,
            mask=(columns < width)[:, None] & there[None, :], other=0.0,
        )  # fmt: skip
        gained += tl.dot(d_rows, v, input_precision="ieee")
        average += tl.sum(d_rows.to(tl.float32) * tl.load(out + at, mask=mask, other=0.0).to(tl.float32), 1)
    sees = seen(
        allowed, b_step, h_step, n_step, m_step, item, heads, rows, keys, n, m, behind, ahead, MASKED, BANDED
    )  # fmt: skip
    at = (local * some + inside)[:, None] * m + keys[None, :]
    mask = here[:, None] & there[None, :]
    s = tl.where(sees, tl.load(scores + at, mask=mask, other=0.0), float("-inf"))
    weights = tl.exp(s - tl.load(lse + item * n + rows, mask=here, other=0.0)[:, None])
    live = weights
    if DROPPED:
        scale = lives(seed, item, rows, keys, dropped)
        live = weights * scale
        gained *= scale
    tl.store(kept + at, live.to(kept.dtype.element_ty), mask=mask)
    # The softmax's own gradient: what each row would gain on average is no gain at all.
    tl.store(d_scores + at, weights * (gained - average[:, None]), mask=mask)


@triton.jit
@no_type_check
def additive_gradient(
    own, others, weight, d_scores, d_own, d_weight, from_item, item_step, own_step, other_step,
    from_own, from_other, own_many, other_many, own_all, other_all, depth,
    own_group, other_group, weight_heads, shift, behind, ahead,
    BANDED: tl.constexpr, ADD: tl.constexpr, WEIGHT: tl.constexpr, FAST: tl.constexpr,
    R: tl.constexpr, D: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """The gradient of one side, query or key: Σ d_score · w · (1 − tanh²) over all of the other side, in D columns.

    With WEIGHT, Σ d_score · tanh goes to `d_weight`, for each block of rows; with ADD, both are added to what is there.
    """
    blocks = tl.cdiv(own_many, R)
    local = (tl.program_id(0) // blocks).to(tl.int64)
    block, item = tl.program_id(0) % blocks, local + from_item
    rows, columns = block * R + tl.arange(0, R), tl.program_id(1) * D + tl.arange(0, D)
    here, there = rows < own_many, columns < depth
    both = here[:, None] & there[None, :]
    own += (item // own_group * own_all + from_own) * depth
    others += (item // other_group * other_all + from_other) * depth
    d_scores += local * item_step
    mine = tl.load(own + rows[:, None] * depth + columns[None, :], mask=both, other=0.0).to(tl.float32)
    low, high = 0, other_many
    if BANDED:
        low = tl.maximum(0, block * R + shift - behind)
        high = tl.minimum(other_many, block * R + R + shift + ahead)
    slopes, heights = tl.zeros((R, D), tl.float32), tl.zeros((R, D), tl.float32)
    for other in tl.range(low, high, loop_unroll_factor=UNROLL):
        theirs = tl.load(others + other * depth + columns, mask=there, other=0.0).to(tl.float32)
        d = tl.load(d_scores + other * other_step + rows * own_step, mask=here, other=0.0)[:, None]
        t = tanh(mine + theirs[None, :], FAST)
        slopes += d * (1 - t * t)
        if WEIGHT:
            heights += d * t
    weight += (item % weight_heads) * depth
    d_own += (item * own_all + from_own + rows)[:, None] * depth + columns[None, :]
    d_weight += (item * blocks + block) * depth + columns
    slopes *= tl.load(weight + columns, mask=there, other=0.0)[None, :]
    height = tl.sum(heights, 0)
    if ADD:
        slopes += tl.load(d_own, mask=both, other=0.0)
    tl.store(d_own, slopes.to(d_own.dtype.element_ty), mask=both)
    if WEIGHT:
        if ADD:
            height += tl.load(d_weight, mask=there, other=0.0)
        tl.store(d_weight, height, mask=there)


@triton.jit
@no_type_check
def dot_rows(
    query, q_batch, q_head, q_row, key, k_batch, k_head, k_row, lse, picks, weights,
    allowed, b_step, h_step, n_step, m_step, behind, ahead, scale, some, n, m, width, heads, group,
    MASKED: tl.constexpr, BANDED: tl.constexpr, R: tl.constexpr, C: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Weights of the picked rows with a tile of keys."""
    blocks = tl.cdiv(some, R)
    item = (tl.program_id(0) // blocks).to(tl.int64)
    inside = (tl.program_id(0) % blocks) * R + tl.arange(0, R)
    keys, columns = tl.program_id(1) * C + tl.arange(0, C), tl.arange(0, D)
    here = inside < some
    rows = tl.load(picks + inside, mask=here, other=0).to(tl.int32)
    q_at = query + (item // heads) * q_batch + (item % heads) * q_head + rows.to(tl.int64)[:, None] * q_row
    k_at = key + (item // heads) * k_batch + (item % heads // group) * k_head + keys.to(tl.int64)[None, :] * k_row
    q = tl.load(q_at + columns[None, :], mask=here[:, None] & (columns < width)[None, :], other=0.0)
    k = tl.load(k_at + columns[:, None], mask=(columns < width)[:, None] & (keys < m)[None, :], other=0.0)
    scores = tl.dot(q, k, input_precision="ieee") * scale
    found = tl.exp(scores - tl.load(lse + item * n + rows, mask=here, other=0.0)[:, None])
    if MASKED or BANDED:
        sees = seen(
            allowed, b_step, h_step, n_step, m_step, item, heads, rows, keys, n, m, behind, ahead, MASKED, BANDED
        )  # fmt: skip
        found = tl.where(sees, found, 0.0)
    at = (item * some + inside)[:, None] * m + keys[None, :]
    tl.store(weights + at, found, mask=here[:, None] & (keys < m)[None, :])


@triton.jit
@no_type_check
def dot_summary(
    query, q_batch, q_head, q_row, key, k_batch, k_head, k_row, lse, on,
    entropy, distance, mass, top_weights, top_keys,
    allowed, b_step, h_step, n_step, m_step, behind, ahead, scale, top, n, m, width, heads, group,
    MASKED: tl.constexpr, BANDED: tl.constexpr, WHOLE: tl.constexpr, ON: tl.constexpr, TOP: tl.constexpr,
    R: tl.constexpr, C: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Summaries of R rows. WHOLE: every tile of keys is seen whole; TOP: a power of two from `top` on, or 0 for none.

    The largest weights so far stand in no order. A tile's largest takes the place of the smallest of them as long as
    it is larger; of equals, the first key counts as the largest.
    """
    blocks = tl.cdiv(n, R)
    item = (tl.program_id(0) // blocks).to(tl.int64)
    first = (tl.program_id(0) % blocks) * R
    rows, columns = first + tl.arange(0, R), tl.arange(0, D)
    here = rows < n
    q_at = query + (item // heads) * q_batch + (item % heads) * q_head + rows.to(tl.int64)[:, None] * q_row
    k_at = key + (item // heads) * k_batch + (item % heads // group) * k_head
    q = tl.load(q_at + columns[None, :], mask=here[:, None] & (columns < width)[None, :], other=0.0)
    scale *= LOG2E
    base = tl.load(lse + item * n + rows, mask=here, other=0.0)[:, None] * LOG2E
    place = (rows + (m - n)).to(tl.float32)[:, None]
    low, high = 0, m
    if BANDED:
        low = tl.maximum(0, first + m - n - behind)
        high = tl.minimum(m, first + R + m - n + ahead)
    low = low // C * C
    bits, far, share = tl.zeros((R,), tl.float32), tl.zeros((R,), tl.float32), tl.zeros((R,), tl.float32)
    if TOP:
        values = tl.full((R, TOP), float("-inf"), tl.float32)
        places = tl.zeros((R, TOP), tl.int32) - 2 - tl.arange(0, TOP)[None, :]  # each its own, before any key
    keys = low + tl.arange(0, C)
    there = (columns < width)[:, None] & (keys < m)[None, :]
    k = tl.load(k_at + columns[:, None] + keys.to(tl.int64)[None, :] * k_row, mask=there, other=0.0)
    for start in range(low, high, C):
        keys = start + C + tl.arange(0, C)  # the next tile is on its way while this one is worked on
        there = (columns < width)[:, None] & (keys < m)[None, :]
        coming = tl.load(k_at + columns[:, None] + keys.to(tl.int64)[None, :] * k_row, mask=there, other=0.0)
        x = tl.dot(q, k, input_precision="ieee") * scale - base  # the weight's binary logarithm
        keys = start + tl.arange(0, C)
        if not WHOLE:
            sees = seen(
                allowed, b_step, h_step, n_step, m_step, item, heads, rows, keys, n, m, behind, ahead, MASKED, BANDED
            )  # fmt: skip
            x = tl.where(sees, x, float("-inf"))
        weights = tl.exp2(x)
        bits += tl.sum(weights * (x if WHOLE else tl.where(sees, x, 0.0)), 1)
        far += tl.sum(weights * tl.abs(keys.to(tl.float32)[None, :] - place), 1)
        if ON:
            share += tl.sum(weights * tl.load(on + keys, mask=keys < m, other=0.0)[None, :], 1)
        if TOP:
            best, least = tl.max(x, 1), tl.min(values, 1)
            while tl.max((best > least).to(tl.int32), 0) > 0:
                column = tl.min(tl.where(x == best[:, None], keys[None, :], FAR), 1)
                last = tl.max(tl.where(values == least[:, None], places, -FAR), 1)
                slot = (places == last[:, None]) & (best > least)[:, None]
                values = tl.where(slot, best[:, None], values)
                places = tl.where(slot, column[:, None], places)
                # A row that takes nothing more loses nothing by this: its best was too small already.
                x = tl.where(keys[None, :] == column[:, None], float("-inf"), x)
                best, least = tl.max(x, 1), tl.min(values, 1)
        k = coming
    at = item * n + rows
    tl.store(entropy + at, bits / -LOG2E, mask=here)
    tl.store(distance + at, far, mask=here)
    if ON:
        tl.store(mass + at, share, mask=here)
    if TOP:
        for rank in range(0, top):
            best = tl.max(values, 1)
            column = tl.min(tl.where(values == best[:, None], places, FAR), 1)
            weight = tl.exp2(best)
            tl.store(top_weights + at * top + rank, weight, mask=here)
            tl.store(top_keys + at * top + rank, tl.where(weight > 0, column, -1), mask=here)
            gone = places == column[:, None]
            values, places = tl.where(gone, float("-inf"), values), tl.where(gone, FAR, places)
