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
        reordered = [_reordered(CELLS[cell], one) for one in weights]
        given = [torch.stack(each) for each in zip(*reordered, strict=True)]
        hidden, *inner = start
        # The cells of an LSTM stay in float32.
        begin = [hidden.to(dtype), *(each.float() for each in inner)]
        steps = StepSchedule(sizes)
        states: RnnStates = _Scan.apply(cell, steps, x.to(dtype), *given, *begin)  # type: ignore[no-untyped-call]
    return states


def _reordered(cell: RnnCell, weights: RnnWeights) -> tuple[Tensor, Tensor, Tensor]:
    """The matrices of input and state, and the sum of the biases, in the order of our gates."""
    width = weights.state.shape[1]
    shift = cell.turn * width

    def padded(bias: Tensor, gates: slice) -> Tensor:
        """A bias of some gates, with zeros for the others."""
        after = cell.count - gates.stop
        return F.pad(bias, (gates.start * width, after * width))

    input_bias = padded(weights.input_bias.roll(shift), cell.of_input)
    state_bias = padded(weights.state_bias, cell.of_state)
    return weights.input.roll(shift, 0), weights.state, input_bias + state_bias


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, name: str, steps: StepSchedule, x: Tensor, by_input: Tensor, by_state: Tensor,
        bias: Tensor,
        *start: Tensor,
    ) -> RnnStates:  # fmt: skip
        from regard.kernels.recurrent.rnn_triton import step

        cell = CELLS[name]
        layers = len(x)
        width = by_state.shape[2]
        by_input = by_input.to(x.dtype)
        by_state = by_state.to(x.dtype)
        gates = x.new_empty(layers, steps.rows, cell.count * width)
        torch.bmm(x, by_input.mT, out=_gates(gates, cell.of_input, width))
        part = x.new_empty(layers, steps.sizes[0], by_state.shape[1])
        states = [torch.cat((s, s.new_empty(layers, steps.rows, width)), 1) for s in start]
        hidden, *inner = states
        common = (steps.rows, hidden.shape[1], steps.sizes[0], width)
        # Other cells than the LSTM have no inner state: the kernel does not read its pointer.
        inner_state = inner[0] if inner else hidden
        with triton_launch.on_device_of(x):
            for rows, new, old in steps:
                size = rows.stop - rows.start
                grid = (-(-size * width // BLOCK), layers)
                torch.bmm(hidden[:, old], by_state.mT, out=part[:, :size])
                step[grid](
                    gates, part, bias, hidden, inner_state, size, rows.start, new.start, old.start,
                    *common, CELL=name, COUNT=cell.count, B=BLOCK,
                )  # fmt: skip
        ctx.save_for_backward(x, by_input, by_state, gates, hidden, *inner)
        ctx.plain = (name, steps)
        ctx.set_materialize_grads(False)
        return tuple(state[:, steps.sizes[0] :] for state in states)

    @staticmethod
    def backward(ctx: Any, *d_out: Tensor | None) -> tuple[Tensor | None, ...]:
        from regard.kernels.recurrent.rnn_triton import d_step

        refuse_second_derivative()
        x, by_input, by_state, gates, hidden, *inner = ctx.saved_tensors
        name, steps = ctx.plain
        cell = CELLS[name]
        (layers, _, width) = hidden.shape
        first = steps.sizes[0]
        d_gates = gates.new_empty(gates.shape)
        d_hidden = _with_initial(d_out[0], hidden, first)
        d_inner = None
        if inner and d_out[1] is not None:
            d_inner = _with_initial(d_out[1], inner[0], first)
        kept = hidden.new_zeros(layers, first, width, dtype=torch.float32)
        common = (steps.rows, hidden.shape[1], first, width)
        inner_state = inner[0] if inner else hidden
        d_inner_state = kept if d_inner is None else d_inner
        with triton_launch.on_device_of(x):
            for rows, new, old in reversed(list(steps)):
                size = rows.stop - rows.start
                grid = (-(-size * width // BLOCK), layers)
                d_step[grid](
                    gates, hidden, inner_state, d_gates, d_hidden,
                    d_inner_state, kept, size, rows.start, new.start, old.start, *common,
                    CELL=name, COUNT=cell.count, D_INNER=d_inner is not None, B=BLOCK,
                )  # fmt: skip
                d_of_state = _gates(d_gates[:, rows], cell.of_state, width)
                d_hidden[:, old].baddbmm_(d_of_state, by_state)
        d_x = None
        if ctx.needs_input_grad[2]:
            d_x = torch.bmm(_gates(d_gates, cell.of_input, width), by_input)
        d_weights: tuple[Tensor | None, ...] = (None, None, None)
        if any(ctx.needs_input_grad[3:6]):
            # If no sequence ends before the others, the states before all steps are contiguous.
            even = steps.sizes[-1] == first
            if even:
                before = hidden[:, : steps.rows]
            else:
                before = torch.cat([hidden[:, old] for _, _, old in steps], 1)
            by_layer = []
            for d, given, old in zip(d_gates, x, before, strict=True):
                d_by_input = matmul_float32(_gates(d, cell.of_input, width).mT, given)
                d_by_state = matmul_float32(_gates(d, cell.of_state, width).mT, old)
                _, d_bias, _ = activation_backward(d, None, None)
                by_layer.append((d_by_input, d_by_state, d_bias))
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
