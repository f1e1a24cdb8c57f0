"""Triton kernels of `rnn_cuda`: one step of recurrent layers, all gates of all rows, forward and backward.

Gates are in the order of `rnn`: n of Elman; n, r, z, m of a GRU; i, f, u, o of an LSTM. Parallel layers are the second
axis of the grid.
"""

import triton.language as tl

from regard.kernels.jit_triton import jit

STEP = ["rows", "row", "new", "old"]  # arguments that change from step to step


@jit
def sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@jit
def tanh(x):
    return 1 - 2 / (1 + tl.exp(2 * x))


@jit
def gate_sum(
    gates,
    part,
    bias,
    at,
    inside,
    of_state,
    column,
    unit,
    size,
    INPUT: tl.constexpr,
    STATE: tl.constexpr,
):
    """The sum of bias, input and state for one gate."""
    x = tl.load(bias + column * size + unit, mask=inside, other=0.0).to(tl.float32)
    if INPUT:
        x += tl.load(gates + at + column * size, mask=inside, other=0.0).to(tl.float32)
    if STATE:
        x += tl.load(part + of_state + column * size, mask=inside, other=0.0).to(tl.float32)
    return x


@jit
def load_gates(gates, at, size, inside):
    """The four gates of a GRU or an LSTM, in float32."""
    a = tl.load(gates + at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(gates + at + size, mask=inside, other=0.0).to(tl.float32)
    c = tl.load(gates + at + 2 * size, mask=inside, other=0.0).to(tl.float32)
    return a, b, c, tl.load(gates + at + 3 * size, mask=inside, other=0.0).to(tl.float32)


@jit
def store_gates(gates, at, size, inside, a, b, c, d):
    """Store the four gates of a GRU or an LSTM, or their gradients."""
    tl.store(gates + at, a.to(gates.dtype.element_ty), mask=inside)
    tl.store(gates + at + size, b.to(gates.dtype.element_ty), mask=inside)
    tl.store(gates + at + 2 * size, c.to(gates.dtype.element_ty), mask=inside)
    tl.store(gates + at + 3 * size, d.to(gates.dtype.element_ty), mask=inside)


@jit(do_not_specialize=STEP)
def step(
    gates, part, bias, hidden, inner, rows, row, new, old, all_rows, all_states, first_rows, size,
    CELL: tl.constexpr, COUNT: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Gates, which overwrite the input's products, and the new state. `part` holds the state's products."""
    layer = tl.program_id(1).to(tl.int64)
    number = tl.program_id(0) * B + tl.arange(0, B)
    inside = number < rows * size
    slot = number // size
    unit = number % size
    at = (layer * all_rows + row + slot) * (COUNT * size) + unit
    before_at = (layer * all_states + old) * size + number
    after_at = (layer * all_states + new) * size + number
    bias += layer * COUNT * size
    if CELL == "elman":
        of_state = (layer * first_rows + slot) * size + unit
        h = tanh(gate_sum(gates, part, bias, at, inside, of_state, 0, unit, size, True, True))
    elif CELL == "gru":
        of_state = (layer * first_rows + slot) * (3 * size) + unit - size
        r = sigmoid(gate_sum(gates, part, bias, at, inside, of_state, 1, unit, size, True, True))
        z = sigmoid(gate_sum(gates, part, bias, at, inside, of_state, 2, unit, size, True, True))
        m = gate_sum(gates, part, bias, at, inside, of_state, 3, unit, size, False, True)
        n = tanh(
            gate_sum(gates, part, bias, at, inside, of_state, 0, unit, size, True, False) + r * m
        )
        before = tl.load(hidden + before_at, mask=inside, other=0.0).to(tl.float32)
        h = n + z * (before - n)
        store_gates(gates, at, size, inside, n, r, z, m)
    else:
        of_state = (layer * first_rows + slot) * (4 * size) + unit
        i = sigmoid(gate_sum(gates, part, bias, at, inside, of_state, 0, unit, size, True, True))
        f = sigmoid(gate_sum(gates, part, bias, at, inside, of_state, 1, unit, size, True, True))
        u = tanh(gate_sum(gates, part, bias, at, inside, of_state, 2, unit, size, True, True))
        o = sigmoid(gate_sum(gates, part, bias, at, inside, of_state, 3, unit, size, True, True))
        c = f * tl.load(inner + before_at, mask=inside, other=0.0) + i * u
        h = o * tanh(c)
        tl.store(inner + after_at, c, mask=inside)
        store_gates(gates, at, size, inside, i, f, u, o)
    tl.store(hidden + after_at, h.to(hidden.dtype.element_ty), mask=inside)


@jit(do_not_specialize=STEP)
def d_step(
    gates, hidden, inner, d_gates, d_hidden, d_inner, d_cell, rows, row, new, old, all_rows,
    all_states, first_rows,
    size, CELL: tl.constexpr, COUNT: tl.constexpr, D_INNER: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Gradients of the gates, and of the old states except through the gates.

    `d_cell` carries the gradient of an LSTM's cell from step to step; D_INNER: `d_inner` is added to it.
    """
    layer = tl.program_id(1).to(tl.int64)
    number = tl.program_id(0) * B + tl.arange(0, B)
    inside = number < rows * size
    slot = number // size
    unit = number % size
    at = (layer * all_rows + row + slot) * (COUNT * size) + unit
    before_at = (layer * all_states + old) * size + number
    after_at = (layer * all_states + new) * size + number
    d_h = tl.load(d_hidden + after_at, mask=inside, other=0.0).to(tl.float32)
    if CELL == "elman":
        h = tl.load(hidden + after_at, mask=inside, other=0.0).to(tl.float32)
        tl.store(d_gates + at, (d_h * (1 - h * h)).to(d_gates.dtype.element_ty), mask=inside)
    elif CELL == "gru":
        n, r, z, m = load_gates(gates, at, size, inside)
        before = tl.load(hidden + before_at, mask=inside, other=0.0).to(tl.float32)
        d_n = d_h * (1 - z) * (1 - n * n)
        d_r = d_n * m * r * (1 - r)
        d_z = d_h * (before - n) * z * (1 - z)
        store_gates(d_gates, at, size, inside, d_n, d_r, d_z, d_n * r)
        d_before = tl.load(d_hidden + before_at, mask=inside, other=0.0).to(tl.float32) + d_h * z
        tl.store(d_hidden + before_at, d_before.to(d_hidden.dtype.element_ty), mask=inside)
    else:
        i, f, u, o = load_gates(gates, at, size, inside)
        c = tanh(tl.load(inner + after_at, mask=inside, other=0.0))
        before = tl.load(inner + before_at, mask=inside, other=0.0)
        mine = d_cell + layer * first_rows * size + number
        d_c = tl.load(mine, mask=inside, other=0.0) + d_h * o * (1 - c * c)
        if D_INNER:
            d_c += tl.load(d_inner + after_at, mask=inside, other=0.0)
        d_i = d_c * u * i * (1 - i)
        d_f = d_c * before * f * (1 - f)
        store_gates(
            d_gates, at, size, inside, d_i, d_f, d_c * i * (1 - u * u), d_h * c * o * (1 - o)
        )
        tl.store(mine, d_c * f, mask=inside)
