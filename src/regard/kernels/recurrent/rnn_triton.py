"""What Triton compiles for a step of recurrent layers on a GPU: all gates of all rows at once, forwards and backwards.

Nothing imports this before a kernel is launched; `scanning` launches them. Gates are in the order of `recurrence`:
n of Elman; n, r, z, m of a GRU; i, f, u, o of an LSTM. Layers that lie side by side are the grid's second axis.
"""

from typing import no_type_check

import triton
import triton.language as tl

STEP = ["rows", "row", "new", "old"]  # which differ from step to step


@triton.jit
@no_type_check
def sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
@no_type_check
def tanh(x):
    return 1 - 2 / (1 + tl.exp(2 * x))


@triton.jit
@no_type_check
def total(gates, part, bias, at, there, of_state, column, unit, size, INPUT: tl.constexpr, STATE: tl.constexpr):
    """What input, state and bias say of the gate in this column."""
    x = tl.load(bias + column * size + unit, mask=there, other=0.0).to(tl.float32)
    if INPUT:
        x += tl.load(gates + at + column * size, mask=there, other=0.0).to(tl.float32)
    if STATE:
        x += tl.load(part + of_state + column * size, mask=there, other=0.0).to(tl.float32)
    return x


@triton.jit(do_not_specialize=STEP)
@no_type_check
def step(
    gates, part, bias, hidden, inner, rows, row, new, old, all_rows, all_states, most, size,
    CELL: tl.constexpr, COUNT: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """From the input's part of the gates, which they replace, and the state's to the gates and the new state."""
    layer, number = tl.program_id(1).to(tl.int64), tl.program_id(0) * B + tl.arange(0, B)
    there, place, unit = number < rows * size, number // size, number % size
    at = (layer * all_rows + row + place) * (COUNT * size) + unit
    then, now = (layer * all_states + old) * size + number, (layer * all_states + new) * size + number
    bias += layer * COUNT * size
    if CELL == "elman":
        of_state = (layer * most + place) * size + unit
        h = tanh(total(gates, part, bias, at, there, of_state, 0, unit, size, True, True))
    elif CELL == "gru":
        of_state = (layer * most + place) * (3 * size) + unit - size
        r = sigmoid(total(gates, part, bias, at, there, of_state, 1, unit, size, True, True))
        z = sigmoid(total(gates, part, bias, at, there, of_state, 2, unit, size, True, True))
        m = total(gates, part, bias, at, there, of_state, 3, unit, size, False, True)
        n = tanh(total(gates, part, bias, at, there, of_state, 0, unit, size, True, False) + r * m)
        before = tl.load(hidden + then, mask=there, other=0.0).to(tl.float32)
        h = n + z * (before - n)
        tl.store(gates + at, n.to(gates.dtype.element_ty), mask=there)
        tl.store(gates + at + size, r.to(gates.dtype.element_ty), mask=there)
        tl.store(gates + at + 2 * size, z.to(gates.dtype.element_ty), mask=there)
        tl.store(gates + at + 3 * size, m.to(gates.dtype.element_ty), mask=there)
    else:
        of_state = (layer * most + place) * (4 * size) + unit
        i = sigmoid(total(gates, part, bias, at, there, of_state, 0, unit, size, True, True))
        f = sigmoid(total(gates, part, bias, at, there, of_state, 1, unit, size, True, True))
        u = tanh(total(gates, part, bias, at, there, of_state, 2, unit, size, True, True))
        o = sigmoid(total(gates, part, bias, at, there, of_state, 3, unit, size, True, True))
        c = f * tl.load(inner + then, mask=there, other=0.0) + i * u
        h = o * tanh(c)
        tl.store(inner + now, c, mask=there)
        tl.store(gates + at, i.to(gates.dtype.element_ty), mask=there)
        tl.store(gates + at + size, f.to(gates.dtype.element_ty), mask=there)
        tl.store(gates + at + 2 * size, u.to(gates.dtype.element_ty), mask=there)
        tl.store(gates + at + 3 * size, o.to(gates.dtype.element_ty), mask=there)
    tl.store(hidden + now, h.to(hidden.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=STEP)
@no_type_check
def d_step(
    gates, hidden, inner, d_gates, d_hidden, d_inner, kept, rows, row, new, old, all_rows, all_states, most, size,
    CELL: tl.constexpr, COUNT: tl.constexpr, GIVEN: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """The gradient of the gates, and of the old states but for what goes through the gates.

    `kept` is that of an LSTM's inner states now; to it comes, where GIVEN, what others made of them.
    """
    layer, number = tl.program_id(1).to(tl.int64), tl.program_id(0) * B + tl.arange(0, B)
    there, place, unit = number < rows * size, number // size, number % size
    at = (layer * all_rows + row + place) * (COUNT * size) + unit
    then, now = (layer * all_states + old) * size + number, (layer * all_states + new) * size + number
    d_h = tl.load(d_hidden + now, mask=there, other=0.0).to(tl.float32)
    kind = d_gates.dtype.element_ty
    if CELL == "elman":
        h = tl.load(hidden + now, mask=there, other=0.0).to(tl.float32)
        tl.store(d_gates + at, (d_h * (1 - h * h)).to(kind), mask=there)
    elif CELL == "gru":
        n = tl.load(gates + at, mask=there, other=0.0).to(tl.float32)
        r = tl.load(gates + at + size, mask=there, other=0.0).to(tl.float32)
        z = tl.load(gates + at + 2 * size, mask=there, other=0.0).to(tl.float32)
        m = tl.load(gates + at + 3 * size, mask=there, other=0.0).to(tl.float32)
        before = tl.load(hidden + then, mask=there, other=0.0).to(tl.float32)
        d_n = d_h * (1 - z) * (1 - n * n)
        tl.store(d_gates + at, d_n.to(kind), mask=there)
        tl.store(d_gates + at + size, (d_n * m * r * (1 - r)).to(kind), mask=there)
        tl.store(d_gates + at + 2 * size, (d_h * (before - n) * z * (1 - z)).to(kind), mask=there)
        tl.store(d_gates + at + 3 * size, (d_n * r).to(kind), mask=there)
        d_before = tl.load(d_hidden + then, mask=there, other=0.0).to(tl.float32) + d_h * z
        tl.store(d_hidden + then, d_before.to(d_hidden.dtype.element_ty), mask=there)
    else:
        i = tl.load(gates + at, mask=there, other=0.0).to(tl.float32)
        f = tl.load(gates + at + size, mask=there, other=0.0).to(tl.float32)
        u = tl.load(gates + at + 2 * size, mask=there, other=0.0).to(tl.float32)
        o = tl.load(gates + at + 3 * size, mask=there, other=0.0).to(tl.float32)
        c = tanh(tl.load(inner + now, mask=there, other=0.0))
        before = tl.load(inner + then, mask=there, other=0.0)
        mine = kept + layer * most * size + number
        d_c = tl.load(mine, mask=there, other=0.0) + d_h * o * (1 - c * c)
        if GIVEN:
            d_c += tl.load(d_inner + now, mask=there, other=0.0)
        tl.store(d_gates + at, (d_c * u * i * (1 - i)).to(kind), mask=there)
        tl.store(d_gates + at + size, (d_c * before * f * (1 - f)).to(kind), mask=there)
        tl.store(d_gates + at + 2 * size, (d_c * i * (1 - u * u)).to(kind), mask=there)
        tl.store(d_gates + at + 3 * size, (d_h * c * o * (1 - o)).to(kind), mask=there)
        tl.store(mine, d_c * f, mask=there)
