"""Recurrent layers over whole sequences on a GPU in half precision: a product and a Triton kernel per step.

For bfloat16: cuDNN's recurrent layers compute in float16, in which small gradients vanish. LSTM cells are kept in
float32, and gradients of weights are accumulated in float32. Several layers, such as the two directions of an encoder,
run in parallel. The slow version is `rnn.scan`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional as F

from regard.core.shapes import Float, Tensor
from regard.kernels import triton_launch
from regard.kernels.attention.blockwise import refuse_second_derivative
from regard.kernels.layers.linear import activation_backward, matmul_float32
from regard.kernels.recurrent.rnn import CELLS, RnnCell, RnnStates, RnnWeights, StepSchedule

BLOCK = 512  # numbers of a state per program


def can_launch(x: Tensor) -> bool:
    """Whether these kernels take an input: half precision, by itself or under autocast."""
    return triton_launch.can_launch(x) and triton_launch.autocast_dtype(x) in triton_launch.HALF


def scan(
    cell: str,
    x: Float[Tensor, "D rows I"],
    sizes: Sequence[int],
    start: RnnStates,
    weights: Sequence[RnnWeights],
) -> RnnStates:
    """The states (D, rows, W) of D layers after every step, from `start` (D, B, W); `sizes` as in `rnn.scan`."""
    dtype = triton_launch.autocast_dtype(x)
    with torch.autocast(x.device.type, enabled=False):
        given = (
            torch.stack(each)
            for each in zip(*(_reordered(CELLS[cell], one) for one in weights), strict=True)
        )
        hidden, *inner = start
        states: RnnStates = _Scan.apply(  # type: ignore[no-untyped-call]
            cell,
            StepSchedule(sizes),
            x.to(dtype),
            *given,
            hidden.to(dtype),
            *(each.float() for each in inner),
        )
    return states


def _reordered(cell: RnnCell, weights: RnnWeights) -> tuple[Tensor, Tensor, Tensor]:
    """The matrices of input and state, and the sum of the biases, in the order of our gates."""
    width = weights.state.shape[1]
    shift = cell.turn * width
    parts = (weights.input_bias.roll(shift), cell.of_input), (weights.state_bias, cell.of_state)
    first, second = (
        F.pad(bias, (of.start * width, (cell.count - of.stop) * width)) for bias, of in parts
    )
    return weights.input.roll(shift, 0), weights.state, first + second


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, name: str, steps: StepSchedule, x: Tensor, by_input: Tensor, by_state: Tensor, bias: Tensor,
        *start: Tensor,
    ) -> RnnStates:  # fmt: skip
        from regard.kernels.recurrent.rnn_triton import step

        cell, layers, width = CELLS[name], len(x), by_state.shape[2]
        by_input, by_state = by_input.to(x.dtype), by_state.to(x.dtype)
        gates = x.new_empty(layers, steps.rows, cell.count * width)
        torch.bmm(x, by_input.mT, out=_gates(gates, cell.of_input, width))
        part = x.new_empty(layers, steps.sizes[0], by_state.shape[1])
        hidden, *inner = (torch.cat((s, s.new_empty(layers, steps.rows, width)), 1) for s in start)
        common = steps.rows, hidden.shape[1], steps.sizes[0], width
        with triton_launch.on_device_of(x):
            for rows, new, old in steps:
                size = rows.stop - rows.start
                torch.bmm(hidden[:, old], by_state.mT, out=part[:, :size])
                step[(-(-size * width // BLOCK), layers)](
                    gates, part, bias, hidden, inner[0] if inner else hidden, size, rows.start, new.start, old.start,
                    *common, CELL=name, COUNT=cell.count, B=BLOCK,
                )  # fmt: skip
        ctx.save_for_backward(x, by_input, by_state, gates, hidden, *inner)
        ctx.plain = name, steps
        ctx.set_materialize_grads(False)
        return tuple(s[:, steps.sizes[0] :] for s in (hidden, *inner))

    @staticmethod
    def backward(ctx: Any, *d_out: Tensor | None) -> tuple[Tensor | None, ...]:
        from regard.kernels.recurrent.rnn_triton import d_step

        refuse_second_derivative()
        x, by_input, by_state, gates, hidden, *inner = ctx.saved_tensors
        name, steps = ctx.plain
        cell, (layers, _, width), first = CELLS[name], hidden.shape, steps.sizes[0]
        d_gates, d_hidden = gates.new_empty(gates.shape), _with_initial(d_out[0], hidden, first)
        d_inner = (
            _with_initial(d_out[1], inner[0], first) if inner and d_out[1] is not None else None
        )
        kept = hidden.new_zeros(layers, first, width, dtype=torch.float32)
        common = steps.rows, hidden.shape[1], first, width
        with triton_launch.on_device_of(x):
            for rows, new, old in reversed(list(steps)):
                size = rows.stop - rows.start
                d_step[(-(-size * width // BLOCK), layers)](
                    gates, hidden, inner[0] if inner else hidden, d_gates, d_hidden,
                    kept if d_inner is None else d_inner, kept, size, rows.start, new.start, old.start, *common,
                    CELL=name, COUNT=cell.count, D_INNER=d_inner is not None, B=BLOCK,
                )  # fmt: skip
                d_hidden[:, old].baddbmm_(_gates(d_gates[:, rows], cell.of_state, width), by_state)
        d_x = (
            torch.bmm(_gates(d_gates, cell.of_input, width), by_input)
            if ctx.needs_input_grad[2]
            else None
        )
        d_weights: tuple[Tensor | None, ...] = None, None, None
        if any(ctx.needs_input_grad[3:6]):
            even = steps.sizes[-1] == first
            before = (
                hidden[:, : steps.rows]
                if even
                else torch.cat([hidden[:, old] for _, _, old in steps], 1)
            )
            by_layer = [
                (
                    matmul_float32(_gates(d, cell.of_input, width).mT, given),
                    matmul_float32(_gates(d, cell.of_state, width).mT, old),
                    activation_backward(d, None, None)[1],
                )
                for d, given, old in zip(d_gates, x, before, strict=True)
            ]
            d_weights = tuple(torch.stack(each) for each in zip(*by_layer, strict=True))
        d_start = (d_hidden[:, :first], kept)[: 1 + len(inner)]
        return None, None, d_x, *d_weights, *d_start


def _gates(gates: Tensor, some: slice, width: int) -> Tensor:
    return gates[..., some.start * width : some.stop * width]


def _with_initial(d_out: Tensor | None, states: Tensor, first: int) -> Tensor:
    """The gradient of the states after each step, preceded by zeros for the initial states."""
    whole = torch.zeros_like(states)
    if d_out is not None:
        whole[:, first:] = d_out
    return whole
