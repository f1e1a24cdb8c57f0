"""What Triton compiles for training on a GPU: sums under dropout with their norms, short attention, and the loss.

Nothing imports this before a kernel is launched; `joining`, `packed` and `training.loss` launch them. Whatever is
written is written by one program, and sums are taken in one order, so that the same input gives the same bits.
"""

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def survives(seed, place, dropped):
    """Which numbers dropout leaves. A function of seed and place alone, so that the backward drops the same.

    Two multiplications that leave no bit as it was (Wellons' lowbias32), each after half of the seed has come in.
    """
    drawn = tl.load(seed)
    x = place.to(tl.uint32) ^ (drawn & 0xFFFFFFFF).to(tl.uint32)
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) + (drawn >> 32).to(tl.uint32)
    x = x * 0x846CA68B
    x = x ^ (x >> 16)
    return (x & 0xFFFF).to(tl.int32) >= dropped


@triton.jit
@no_type_check
def join(
    x, added, weight, bias, seed, total, normed, mean, scale, epsilon, dropped, count, width,
    ADD: tl.constexpr, DROP: tl.constexpr, LAYER: tl.constexpr, R: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """The sum x + dropout(added) and its norm: by mean and variance (LAYER), or by the mean square."""
    rows, columns = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R), tl.arange(0, W)
    there = (rows < count)[:, None] & (columns < width)[None, :]
    at = rows[:, None] * width + columns[None, :]
    sums = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
    if ADD:
        more = tl.load(added + at, mask=there, other=0.0).to(tl.float32)
        if DROP:
            more = tl.where(survives(seed, at, dropped), more * (65536.0 / (65536 - dropped)), 0.0)
        sums += more
        tl.store(total + at, sums.to(total.dtype.element_ty), mask=there)
    centred = sums
    if LAYER:
        middle = tl.sum(sums, 1) / width
        tl.store(mean + rows, middle, mask=rows < count)
        centred = tl.where(there, sums - middle[:, None], 0.0)
    rate = 1 / tl.sqrt(tl.sum(centred * centred, 1) / width + epsilon)
    tl.store(scale + rows, rate, mask=rows < count)
    out = centred * rate[:, None] * tl.load(weight + columns, mask=columns < width, other=0.0).to(tl.float32)[None, :]
    if LAYER:
        out += tl.load(bias + columns, mask=columns < width, other=0.0).to(tl.float32)[None, :]
    tl.store(normed + at, out.to(normed.dtype.element_ty), mask=there)


@triton.jit
@no_type_check
def d_join(
    d_normed, d_total, total, weight, mean, scale, seed, d_x, d_added, d_weight, d_bias, dropped, count, width, each,
    ADD: tl.constexpr, DROP: tl.constexpr, LAYER: tl.constexpr, ONWARD: tl.constexpr,
    R: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """The gradients of x and of what was added; of the norm's own numbers, one sum for each program's rows.

    ONWARD: the sum had another use beside its norm, whose gradient is d_total.
    """
    columns = tl.arange(0, W)
    gain = tl.load(weight + columns, mask=columns < width, other=0.0).to(tl.float32)[None, :]
    gains, shifts = tl.zeros((R, W), tl.float32), tl.zeros((R, W), tl.float32)
    first = tl.program_id(0).to(tl.int64) * each
    for top in range(0, each, R):
        rows = first + top + tl.arange(0, R)
        here = (rows < count) & (top + tl.arange(0, R) < each)
        there = here[:, None] & (columns < width)[None, :]
        at = rows[:, None] * width + columns[None, :]
        given = tl.load(d_normed + at, mask=there, other=0.0).to(tl.float32)
        unit = tl.load(total + at, mask=there, other=0.0).to(tl.float32)
        rate = tl.load(scale + rows, mask=here, other=0.0)[:, None]
        if LAYER:
            unit = tl.where(there, unit - tl.load(mean + rows, mask=here, other=0.0)[:, None], 0.0)
            shifts += given
        unit *= rate
        gains += given * unit
        given *= gain
        moved = given - unit * (tl.sum(given * unit, 1) / width)[:, None]
        if LAYER:
            moved -= (tl.sum(given, 1) / width)[:, None]
        moved *= rate
        if ONWARD:
            moved += tl.load(d_total + at, mask=there, other=0.0).to(tl.float32)
        tl.store(d_x + at, moved.to(d_x.dtype.element_ty), mask=there)
        if ADD:
            if DROP:
                moved = tl.where(survives(seed, at, dropped), moved * (65536.0 / (65536 - dropped)), 0.0)
            tl.store(d_added + at, moved.to(d_added.dtype.element_ty), mask=there)
    mine = tl.program_id(0).to(tl.int64) * width + columns
    tl.store(d_weight + mine, tl.sum(gains, 0), mask=columns < width)
    if LAYER:
        tl.store(d_bias + mine, tl.sum(shifts, 0), mask=columns < width)


@triton.jit
@no_type_check
def d_activate(
    d_out, before, d_before, sums, count, width, each,
    KIND: tl.constexpr, R: tl.constexpr, C: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """The gradient of what was activated, by nothing, a ReLU, a GELU or nearly one; and its sums over some rows."""
    columns, first = tl.program_id(0) * C + tl.arange(0, C), tl.program_id(1).to(tl.int64) * each
    total = tl.zeros((R, C), tl.float32)
    for top in tl.range(0, each, R, loop_unroll_factor=UNROLL):
        rows = first + top + tl.arange(0, R)
        there = (rows < count)[:, None] & (columns < width)[None, :]
        at = rows[:, None] * width + columns[None, :]
        change = tl.load(d_out + at, mask=there, other=0.0).to(tl.float32)
        if KIND > 0:
            x = tl.load(before + at, mask=there, other=0.0).to(tl.float32)
            if KIND == 1:
                change = tl.where(x > 0, change, 0.0)
            elif KIND == 2:
                below = 0.5 * (1 + tl.erf(x * 0.7071067811865476))
                change *= below + x * tl.exp(-0.5 * x * x) * 0.3989422804014327
            else:
                bent = 0.7978845608028654 * (x + 0.044715 * x * x * x)
                turn = 1 - 2 / (1 + tl.exp(2 * bent))
                slope = 0.7978845608028654 * (1 + 0.134145 * x * x)
                change *= 0.5 * (1 + turn) + 0.5 * x * (1 - turn * turn) * slope
            tl.store(d_before + at, change.to(d_before.dtype.element_ty), mask=there)
        total += change
    tl.store(sums + tl.program_id(1).to(tl.int64) * width + columns, tl.sum(total, 0), mask=columns < width)


@triton.jit
@no_type_check
def log_sum(logits, size, U: tl.constexpr, C: tl.constexpr):
    """Of one row: the logarithm of the sum of the exponentials, and the plain sum; U × C numbers at a time.

    Of a column of U the highest is found first: one exponential for each, and one more for what came before them.
    """
    peak, total, plain = (
        tl.full((C,), float("-inf"), tl.float32),
        tl.zeros((C,), tl.float32),
        tl.zeros((C,), tl.float32),
    )
    for start in range(0, size, U * C):
        columns = start + tl.arange(0, U)[:, None] * C + tl.arange(0, C)[None, :]
        there = columns < size
        z = tl.load(logits + columns, mask=there, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(peak, tl.max(z, 0))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp(peak - base) + tl.sum(tl.exp(z - base[None, :]), 0)
        peak = higher
        plain += tl.sum(tl.where(there, z, 0.0), 0)
    highest = tl.max(peak, 0)
    return highest + tl.log(tl.sum(total * tl.exp(peak - highest), 0)), tl.sum(plain, 0)


@triton.jit
@no_type_check
def surprise(logits, gold, loss, smoothing, size, U: tl.constexpr, C: tl.constexpr):
    """A row's cross-entropy with its gold token, some of it spread over all; the logits become its gradient.

    Where there is no gold token (below 0) both are zero.
    """
    row = tl.program_id(0).to(tl.int64)
    logits += row * size
    answer = tl.load(gold + row)
    lse, plain, given = 0.0, 0.0, 0.0
    if answer >= 0:
        given = tl.load(logits + answer).to(tl.float32)  # before the sums, for which all threads wait
        lse, plain = log_sum(logits, size, U, C)
    tl.store(loss + row, lse - (1 - smoothing) * given - smoothing * plain / size)
    for start in range(0, size, U * C):
        columns = start + tl.arange(0, U)[:, None] * C + tl.arange(0, C)[None, :]
        there = columns < size
        z = tl.load(logits + columns, mask=there, other=0.0).to(tl.float32)
        change = tl.exp(z - lse) - smoothing / size - tl.where(columns == answer, 1 - smoothing, 0.0)
        change = tl.where(answer >= 0, change, 0.0)
        tl.store(logits + columns, change.to(logits.dtype.element_ty), mask=there)


@triton.jit
@no_type_check
def paired_surprise(logits, gold, loss, smoothing, agreement, size, U: tl.constexpr, C: tl.constexpr):
    """The same of two rows for one token, with so many times what they disagree by: the sum of both divergences."""
    pair = tl.program_id(0).to(tl.int64)
    one = logits + 2 * pair * size
    other = one + size
    answer = tl.load(gold + 2 * pair)
    lse_one, lse_other, loss_one, loss_other, apart_one, apart_other = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    if answer >= 0:
        loss_one = (smoothing - 1) * tl.load(one + answer).to(tl.float32)
        loss_other = (smoothing - 1) * tl.load(other + answer).to(tl.float32)
        lse_one, plain_one = log_sum(one, size, U, C)
        lse_other, plain_other = log_sum(other, size, U, C)
        loss_one += lse_one - smoothing * plain_one / size
        loss_other += lse_other - smoothing * plain_other / size
        sum_one, sum_other = tl.zeros((C,), tl.float32), tl.zeros((C,), tl.float32)
        for start in range(0, size, C):
            columns = start + tl.arange(0, C)
            there = columns < size
            a = tl.load(one + columns, mask=there, other=0.0).to(tl.float32) - lse_one
            b = tl.load(other + columns, mask=there, other=0.0).to(tl.float32) - lse_other
            sum_one += tl.where(there, tl.exp(a) * (a - b), 0.0)
            sum_other += tl.where(there, tl.exp(b) * (b - a), 0.0)
        apart_one, apart_other = tl.sum(sum_one, 0), tl.sum(sum_other, 0)
    tl.store(loss + 2 * pair, loss_one + agreement * apart_one)
    tl.store(loss + 2 * pair + 1, loss_other + agreement * apart_other)
    for start in range(0, size, C):
        columns = start + tl.arange(0, C)
        there = columns < size
        a = tl.load(one + columns, mask=there, other=0.0).to(tl.float32) - lse_one
        b = tl.load(other + columns, mask=there, other=0.0).to(tl.float32) - lse_other
        p, q = tl.exp(a), tl.exp(b)
        flat = smoothing / size + tl.where(columns == answer, 1 - smoothing, 0.0)
        change = p - flat + agreement * (p * (a - b - apart_one + 1) - q)
        tl.store(one + columns, tl.where(answer >= 0, change, 0.0).to(logits.dtype.element_ty), mask=there)
        change = q - flat + agreement * (q * (b - a - apart_other + 1) - p)
        tl.store(other + columns, tl.where(answer >= 0, change, 0.0).to(logits.dtype.element_ty), mask=there)
