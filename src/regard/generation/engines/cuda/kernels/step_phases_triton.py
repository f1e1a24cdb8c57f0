"""The phases of a decoding step in one kernel (`persistent_step_triton`): products and attentions of one row.

In each phase a program loads its weights, receives the numbers that it needs from other programs, and sends its own.
Accumulation is in float32.
"""

import triton.language as tl

from regard.generation.engines.cuda.kernels.messages_triton import (
    receive,
    receive_one,
    receive_sum,
    receive_three,
    receive_two,
    send,
)
from regard.kernels.jit_triton import jit

CHOSEN, ENDS = (
    tl.constexpr(1),
    tl.constexpr(2),
)  # bits of the kind of a token: may be chosen, ends an output


@jit
def _load_columns(weight, column, k, outputs, INPUTS: tl.constexpr):
    """A tile of a linear layer: all weights of some outputs."""
    inside = (column < outputs)[:, None] & (k < INPUTS)[None, :]
    return tl.load(
        weight + column[:, None].to(tl.int64) * INPUTS + k[None, :], mask=inside, other=0.0
    )


@jit
def _multiply(x, weight):
    """The product of weights and x, rounded to their dtype, in float32."""
    return tl.sum(weight.to(tl.float32) * x.to(weight.dtype).to(tl.float32)[None, :], 1)


@jit
def _activate(x, ACTIVATION: tl.constexpr):
    if ACTIVATION == 1:  # ReLU
        x = tl.maximum(x, 0.0)
    if ACTIVATION == 2:  # GELU
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    if ACTIVATION == 3:  # its approximation by tanh
        x = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    if ACTIVATION == 4:  # SiLU
        x = x * tl.sigmoid(x)
    return x


@jit
def _add_pairs(a, b, c, d):
    return a + c, b + d


@jit
def _larger(a, b, c, d):
    """Of two pairs, that of the larger number; of equal ones, that of the first column."""
    first = (a > c) | ((a == c) & (b < d))
    return tl.where(first, a, c), tl.where(first, b, d)


@jit
def _norm(x, gain, shift, eps, WIDTH: tl.constexpr, KIND: tl.constexpr):
    """The normalized residual stream; numbers beyond the width stay zero."""
    total, squares = tl.reduce(
        (x, x * x), 0, _add_pairs
    )  # at once: each reduction waits for all warps
    mean = total / WIDTH if KIND == 2 else 0.0
    return (x - mean) * tl.rsqrt(
        tl.maximum(squares / WIDTH - mean * mean, 0.0) + eps
    ) * gain + shift


@jit
def _add_norm(
    x, added, added_bias, pending, norm_weight, norm_bias, eps, WIDTH: tl.constexpr, WIDTH_2: tl.constexpr,
    KIND: tl.constexpr, PARTS: tl.constexpr, ASM: tl.constexpr, GROUP: tl.constexpr, PACK: tl.constexpr,
    PROGRAMS: tl.constexpr,
):  # fmt: skip
    """The sum of x and what was sent to `added`, if that is pending; and its norm."""
    d = tl.arange(0, WIDTH_2)
    gain = tl.load(norm_weight + d, mask=d < WIDTH, other=0.0)
    shift = tl.zeros([WIDTH_2], dtype=tl.float32)
    if KIND == 2:
        shift = tl.load(norm_bias + d, mask=d < WIDTH, other=0.0)
    constant = tl.load(added_bias + d, mask=d < WIDTH, other=0.0).to(tl.float32)
    if pending:
        arrived = receive_sum(added, PARTS, WIDTH, WIDTH_2, ASM, GROUP, PACK, PROGRAMS)
        x += tl.where(d < WIDTH, arrived + constant, 0.0)
    return x, _norm(x, gain, shift, eps, WIDTH, KIND)


@jit
def norm_product(
    x, added, added_bias, pending, norm_weight, norm_bias, weight, bias, words, out, eps, OUTPUTS: tl.constexpr,
    WIDTH: tl.constexpr, WIDTH_2: tl.constexpr, KIND: tl.constexpr, ACTIVATION: tl.constexpr, COLUMNS: tl.constexpr,
    SENT: tl.constexpr, STORED: tl.constexpr, PARTS: tl.constexpr, ASM: tl.constexpr, GROUP: tl.constexpr,
    PACK: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """Phase: x plus what was sent to `added`, if that is pending; and out = activation(norm(x) · weightᵀ + bias)."""
    d = tl.arange(0, WIDTH_2)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    tile = _load_columns(weight, column, d, OUTPUTS, WIDTH)
    tile_bias = tl.load(bias + column, mask=column < OUTPUTS, other=0.0)
    x, normed = _add_norm(
        x, added, added_bias, pending, norm_weight, norm_bias, eps, WIDTH, WIDTH_2, KIND, PARTS, ASM, GROUP, PACK,
        PROGRAMS,
    )  # fmt: skip
    for begin in range(tl.program_id(0) * COLUMNS, OUTPUTS, PROGRAMS * COLUMNS):
        column = begin + tl.arange(0, COLUMNS)
        if OUTPUTS > PROGRAMS * COLUMNS:  # there are more tiles than programs
            after = column + PROGRAMS * COLUMNS
            next_tile = _load_columns(weight, after, d, OUTPUTS, WIDTH)
            next_bias = tl.load(bias + after, mask=after < OUTPUTS, other=0.0)
        product = _activate(_multiply(normed, tile) + tile_bias.to(tl.float32), ACTIVATION).to(
            tile.dtype
        )
        if SENT:
            send(words + column, product.to(tl.float32), column < OUTPUTS)
        if STORED:
            tl.store(out + column, product, mask=column < OUTPUTS)
        if OUTPUTS > PROGRAMS * COLUMNS:
            tile, tile_bias = next_tile, next_bias
    return x


@jit
def norm_choice(
    x, added, added_bias, norm_weight, norm_bias, weight, bias, kinds, may_end, words, eps, OUTPUTS: tl.constexpr,
    WIDTH: tl.constexpr, WIDTH_2: tl.constexpr, KIND: tl.constexpr, COLUMNS: tl.constexpr, ASM: tl.constexpr,
    PACK: tl.constexpr, PROGRAMS: tl.constexpr, PROGRAMS_2: tl.constexpr,
):  # fmt: skip
    """Phase: as `norm_product`, of which only the largest output and its column are sent; the first of equal ones.

    `kinds` tells which columns may be chosen: those of CHOSEN, and with ENDS only where `may_end`. A NaN is no maximum.
    """
    d = tl.arange(0, WIDTH_2)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    tile = _load_columns(weight, column, d, OUTPUTS, WIDTH)
    tile_bias = tl.load(bias + column, mask=column < OUTPUTS, other=0.0)
    kind = tl.load(kinds + column, mask=column < OUTPUTS, other=0)
    x, normed = _add_norm(
        x,
        added,
        added_bias,
        True,
        norm_weight,
        norm_bias,
        eps,
        WIDTH,
        WIDTH_2,
        KIND,
        1,
        ASM,
        1,
        PACK,
        PROGRAMS,
    )
    highest, where = tl.full([COLUMNS], float("-inf"), tl.float32), column
    for begin in range(tl.program_id(0) * COLUMNS, OUTPUTS, PROGRAMS * COLUMNS):
        column = begin + tl.arange(0, COLUMNS)
        after = column + PROGRAMS * COLUMNS
        next_tile = _load_columns(weight, after, d, OUTPUTS, WIDTH)
        next_bias = tl.load(bias + after, mask=after < OUTPUTS, other=0.0)
        next_kind = tl.load(kinds + after, mask=after < OUTPUTS, other=0)
        product = (_multiply(normed, tile) + tile_bias.to(tl.float32)).to(tile.dtype).to(tl.float32)
        allowed = ((kind & CHOSEN) != 0) & (((kind & ENDS) == 0) | may_end)
        higher = allowed & (product > highest)
        highest, where = tl.where(higher, product, highest), tl.where(higher, column, where)
        tile, tile_bias, kind = next_tile, next_bias, next_kind
    highest, where = tl.reduce((highest, where), 0, _larger)
    mine = tl.program_id(0) + tl.arange(0, 1)
    send(words + mine, tl.zeros([1], dtype=tl.float32) + highest, mine >= 0)
    send(words + PROGRAMS_2 + mine, tl.zeros([1], dtype=tl.float32) + where, mine >= 0)


@jit
def receive_choice(words, ASM: tl.constexpr, PROGRAMS: tl.constexpr, PROGRAMS_2: tl.constexpr):
    """The column of the largest output that `norm_choice` has found in any program."""
    program = tl.minimum(tl.arange(0, PROGRAMS_2), PROGRAMS - 1)
    highest, where = receive_two(words, program, PROGRAMS_2, ASM, PROGRAMS)
    _, column = tl.reduce((highest, where), 0, _larger)
    return column.to(tl.int64)


@jit
def plain_product(
    given, weight, words,
    WIDTH: tl.constexpr, INPUTS: tl.constexpr, INPUTS_2: tl.constexpr, COLUMNS: tl.constexpr, ASM: tl.constexpr,
    PACK: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """Phase: what was sent to `given`, times weightᵀ."""
    k = tl.arange(0, INPUTS_2)
    tile = _load_columns(
        weight, tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), k, WIDTH, INPUTS
    )
    here = receive(given, INPUTS, INPUTS_2, ASM, PACK, PROGRAMS)
    for begin in range(tl.program_id(0) * COLUMNS, WIDTH, PROGRAMS * COLUMNS):
        column = begin + tl.arange(0, COLUMNS)
        send(words + column, _multiply(here, tile), column < WIDTH)
        if WIDTH > PROGRAMS * COLUMNS:
            tile = _load_columns(weight, column + PROGRAMS * COLUMNS, k, WIDTH, INPUTS)


@jit
def _attend(query, keys, values, allowed, peak, total, context):
    """Take one more block of keys into an online softmax."""
    score = tl.where(allowed, tl.sum(keys.to(tl.float32) * query[None, :], 1), float("-inf"))
    higher = tl.maximum(peak, tl.max(score, 0))
    base = tl.where(higher == float("-inf"), 0.0, higher)  # all masked so far
    rescale = tl.exp(peak - base)
    weight = tl.broadcast_to(tl.exp(score - base)[:, None], keys.shape)
    added, summed = tl.reduce(
        (weight, weight * values.to(tl.float32)), 0, _add_pairs
    )  # at once, as in `_norm`
    return higher, total * rescale + added, context * rescale + summed


@jit
def _load_keys(where, t, allowed, d, spacing, WIDTH: tl.constexpr, HEAD: tl.constexpr):
    """Keys and values of some positions."""
    inside = allowed[:, None] & (d < HEAD)[None, :]
    at = where + (t.to(tl.int64) * spacing)[:, None] + d[None, :]
    return tl.load(at, mask=inside, other=0.0), tl.load(at + WIDTH, mask=inside, other=0.0)


@jit
def self_attention(
    given, cache, begin, now, weight, words, scale,
    WIDTH: tl.constexpr, HEADS: tl.constexpr, HEAD: tl.constexpr, HEAD_2: tl.constexpr, KEYS: tl.constexpr,
    COLUMNS: tl.constexpr, ASM: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """Phase: a head attends to earlier steps and to this one; its part of some columns of the output projection.

    The keys and values of this step are put into the cache.
    """
    TILES: tl.constexpr = (WIDTH + COLUMNS - 1) // COLUMNS
    d = tl.arange(0, HEAD_2)
    inside = d < HEAD
    for task in range(tl.program_id(0), HEADS * TILES, PROGRAMS):
        head, column = task // TILES, task % TILES * COLUMNS + tl.arange(0, COLUMNS)
        both = (column < WIDTH)[:, None] & inside[None, :]
        tile = tl.load(
            weight + head * HEAD + column[:, None] * WIDTH + d[None, :], mask=both, other=0.0
        )
        t, past = begin + tl.arange(0, KEYS), cache + head * HEAD
        keys, values = _load_keys(past, t, t < now, d, 2 * WIDTH, WIDTH, HEAD)
        query, key, value = receive_three(
            given + head * HEAD, tl.minimum(d, HEAD - 1), WIDTH, ASM, PROGRAMS
        )
        query = tl.where(inside, query * scale, 0.0)
        peak, total = tl.full([], float("-inf"), tl.float32), tl.zeros([HEAD_2], dtype=tl.float32)
        context = tl.zeros([HEAD_2], dtype=tl.float32)
        key, value = key.to(cache.dtype.element_ty), value.to(cache.dtype.element_ty)
        for start in range(begin, now + 1, KEYS):
            own = (t == now)[:, None] & inside[None, :]  # the step at hand, which is always visible
            keys, values = tl.where(own, key[None, :], keys), tl.where(own, value[None, :], values)
            peak, total, context = _attend(query, keys, values, t <= now, peak, total, context)
            t += KEYS
            if start + KEYS < now:
                keys, values = _load_keys(past, t, t < now, d, 2 * WIDTH, WIDTH, HEAD)
        send(words + head * WIDTH + column, _multiply(context / total, tile), column < WIDTH)
        kept = past + now * 2 * WIDTH + d
        tl.store(kept, key, mask=inside & (task % TILES == 0))
        tl.store(kept + WIDTH, value, mask=inside & (task % TILES == 0))


@jit
def cross_attention(
    given, source, visible, length, layers, weight, words, scale,
    WIDTH: tl.constexpr, HEADS: tl.constexpr, HEAD: tl.constexpr, HEAD_2: tl.constexpr, KEYS: tl.constexpr,
    COLUMNS: tl.constexpr, ASM: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """Phase: a head attends to the keys and values of the source; its part of some columns of the projection."""
    TILES: tl.constexpr = (WIDTH + COLUMNS - 1) // COLUMNS
    d = tl.arange(0, HEAD_2)
    inside = d < HEAD
    for task in range(tl.program_id(0), HEADS * TILES, PROGRAMS):
        head, column = task // TILES, task % TILES * COLUMNS + tl.arange(0, COLUMNS)
        both = (column < WIDTH)[:, None] & inside[None, :]
        tile = tl.load(
            weight + head * HEAD + column[:, None] * WIDTH + d[None, :], mask=both, other=0.0
        )
        t, memory = tl.arange(0, KEYS), source + head * HEAD
        allowed = tl.load(visible + t, mask=t < length, other=0) != 0
        keys, values = _load_keys(memory, t, allowed, d, layers * 2 * WIDTH, WIDTH, HEAD)
        query = receive_one(given + head * HEAD, tl.minimum(d, HEAD - 1), ASM, PROGRAMS)
        query = tl.where(inside, query * scale, 0.0)
        peak, total = tl.full([], float("-inf"), tl.float32), tl.zeros([HEAD_2], dtype=tl.float32)
        context = tl.zeros([HEAD_2], dtype=tl.float32)
        for start in range(0, length, KEYS):
            peak, total, context = _attend(query, keys, values, allowed, peak, total, context)
            if start + KEYS < length:
                t += KEYS
                allowed = tl.load(visible + t, mask=t < length, other=0) != 0
                keys, values = _load_keys(memory, t, allowed, d, layers * 2 * WIDTH, WIDTH, HEAD)
        context = context / tl.where(total == 0.0, 1.0, total)
        send(words + head * WIDTH + column, _multiply(context, tile), column < WIDTH)
