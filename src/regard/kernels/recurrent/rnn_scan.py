"""Recurrent layers in terms of PyTorch's `scan` operator: one graph for any number of steps, under `torch.export`.

A Python loop would be unrolled there to the number of steps of the example.
"""

from collections.abc import Callable
from typing import cast

import torch
from torch.nn import functional as F

from regard.core.shapes import Float, Tensor
from regard.kernels.recurrent.rnn import RnnStates, RnnWeights

Carried = tuple[Tensor, ...]
Body = Callable[[Carried, Tensor], tuple[Carried, Carried]]


def scan(body: Body, carried: Carried, steps: Float[Tensor, "T B W"]) -> tuple[Carried, Carried]:
    """The carried tensors after the last step, and the outputs of `body(carried, step)` of all steps, stacked."""
    # A graph for one step has no loop.
    if steps.shape[0] == 1:
        carried, outputs = body(carried, steps[0])
        return carried, tuple(each[None] for each in outputs)

    def copied(carried: Carried, step: Tensor) -> tuple[Carried, Carried]:
        after, out = body(carried, step)
        return _copied(after), _copied(out)

    # This imports the compiler, which takes seconds.
    from torch._higher_order_ops.scan import scan

    return cast(tuple[Carried, Carried], scan(copied, _copied(carried), steps))


def layer(cell: str, x: Float[Tensor, "B T I"], weights: RnnWeights) -> Float[Tensor, "B T W"]:
    """The states of one layer in one direction, from a zero state."""
    gates = F.linear(x, weights.input, weights.input_bias).transpose(0, 1)  # (T, B, gates)
    zeros = x.new_zeros(x.shape[0], weights.state.shape[1])  # (B, W)
    start: Carried = (zeros, zeros) if cell == "lstm" else (zeros,)

    def body(states: Carried, gates: Tensor) -> tuple[Carried, Carried]:
        after = step_gates(cell, gates, states, weights)
        return after, after[:1]

    _, (states,) = scan(body, start, gates)
    return states.transpose(0, 1)


def step(cell: str, x: Float[Tensor, "B I"], states: RnnStates, weights: RnnWeights) -> RnnStates:
    """The states of a layer after one more input."""
    gates = F.linear(x, weights.input, weights.input_bias)  # (B, gates)
    return step_gates(cell, gates, states, weights)


def step_gates(
    cell: str, gates: Float[Tensor, "B gates"], states: RnnStates, weights: RnnWeights
) -> RnnStates:
    """The same as `step`, given the input's part of the gates. Gates are in PyTorch's order."""
    hidden = states[0]  # (B, W)
    recurrent = F.linear(hidden, weights.state, weights.state_bias)  # (B, gates)
    if cell == "elman":
        return (torch.tanh(gates + recurrent),)
    if cell == "gru":
        (r, z, n) = gates.chunk(3, -1)
        (r_state, z_state, n_state) = recurrent.chunk(3, -1)
        r = torch.sigmoid(r + r_state)
        z = torch.sigmoid(z + z_state)
        n = torch.tanh(n + r * n_state)
        new_hidden = n + z * (hidden - n)
        return (new_hidden,)
    i, f, g, o = (gates + recurrent).chunk(4, -1)
    memory = torch.sigmoid(f) * states[1] + torch.sigmoid(i) * torch.tanh(g)
    new_hidden = torch.sigmoid(o) * torch.tanh(memory)
    return new_hidden, memory


def _copied(tensors: Carried) -> Carried:
    """Contiguous copies: the operator refuses outputs that are views, and carried tensors whose strides change."""
    return tuple(x.clone(memory_format=torch.contiguous_format) for x in tensors)
