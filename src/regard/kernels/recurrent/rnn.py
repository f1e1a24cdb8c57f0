"""Recurrent layers over whole sequences, with hand-written backward passes. The slow versions are PyTorch's layers.

Autograd through a loop keeps a node for every small operation and accumulates each weight's gradient at every step.
Here the steps write into memory allocated once, the backward loop computes the gradients of states only, and then each
weight's gradient is one large product.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from regard.core.shapes import Float, Tensor

tanh_backward = torch.ops.aten.tanh_backward.grad_input
sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input

RnnStates = tuple[Tensor, ...]  # a hidden state, and an LSTM's cell


class RnnWeights(NamedTuple):
    """A layer's parameters, as PyTorch names, shapes and orders them."""

    input: Float[Tensor, "gates I"]
    state: Float[Tensor, "gates W"]
    input_bias: Float[Tensor, " gates"]
    state_bias: Float[Tensor, " gates"]


class RnnCell(ABC):
    """One step of a layer: computes new states from old states and gates, which hold input and state already."""

    count: int  # of gates, each as wide as a state
    turn: int  # gates moved from the end of PyTorch's order to the front of ours
    of_input: slice  # the gates that the input adds to
    of_state: slice  # the gates that the state adds to

    @abstractmethod
    def forward(self, gates: Tensor, old: RnnStates, new: RnnStates) -> None: ...

    @abstractmethod
    def backward(
        self,
        gates: Tensor,
        old: RnnStates,
        new: RnnStates,
        d_gates: Tensor,
        d_old: RnnStates,
        d_new: RnnStates,
    ) -> None:
        """Write the gradient of the gates, and add to the gradient of the old states what does not go through gates."""


class Elman(RnnCell):
    count = 1
    turn = 0
    of_input = slice(0, 1)
    of_state = slice(0, 1)

    def forward(self, gates: Tensor, old: RnnStates, new: RnnStates) -> None:
        torch.tanh(gates, out=new[0])

    def backward(
        self,
        gates: Tensor,
        old: RnnStates,
        new: RnnStates,
        d_gates: Tensor,
        d_old: RnnStates,
        d_new: RnnStates,
    ) -> None:
        tanh_backward(d_new[0], new[0], grad_input=d_gates)


class Gru(RnnCell):
    """n, r, z, m with n = tanh(n + r·m) and h ← (1 - z)·n + z·h; the input adds to n, r, z and the state to r, z, m."""

    count = 4
    turn = 1
    of_input = slice(0, 3)
    of_state = slice(1, 4)

    def forward(self, gates: Tensor, old: RnnStates, new: RnnStates) -> None:
        n, r, z, m = gates.chunk(4, 1)
        width = n.shape[1]
        gates[:, width:-width].sigmoid_()  # r and z
        n.addcmul_(r, m).tanh_()
        torch.lerp(n, old[0], z, out=new[0])

    def backward(
        self,
        gates: Tensor,
        old: RnnStates,
        new: RnnStates,
        d_gates: Tensor,
        d_old: RnnStates,
        d_new: RnnStates,
    ) -> None:
        (n, r, z, m) = gates.chunk(4, 1)
        (d_n, d_r, d_z, d_m) = d_gates.chunk(4, 1)
        d_h = d_new[0]
        d_old[0].addcmul_(d_h, z)
        # Each gradient is first that of a gate's output, and then, in the same memory, of its input.
        torch.addcmul(d_h, d_h, z, value=-1, out=d_n)
        tanh_backward(d_n, n, grad_input=d_n)
        torch.mul(d_n, r, out=d_m)
        torch.mul(d_n, m, out=d_r)
        sigmoid_backward(d_r, r, grad_input=d_r)
        torch.sub(old[0], n, out=d_z).mul_(d_h)
        sigmoid_backward(d_z, z, grad_input=d_z)


class Lstm(RnnCell):
    """i, f, u, o with c ← f·c + i·u and h = o·tanh(c)."""

    count = 4
    turn = 0
    of_input = slice(0, 4)
    of_state = slice(0, 4)

    def forward(self, gates: Tensor, old: RnnStates, new: RnnStates) -> None:
        i, f, u, o = gates.chunk(4, 1)
        for gate in (i, f, o):
            gate.sigmoid_()
        u.tanh_()
        new_hidden, new_cell = new
        torch.mul(f, old[1], out=new_cell).addcmul_(i, u)
        torch.tanh(new_cell, out=new_hidden).mul_(o)

    def backward(
        self,
        gates: Tensor,
        old: RnnStates,
        new: RnnStates,
        d_gates: Tensor,
        d_old: RnnStates,
        d_new: RnnStates,
    ) -> None:
        (i, f, u, o) = gates.chunk(4, 1)
        (d_i, d_f, d_u, d_o) = d_gates.chunk(4, 1)
        (d_h, d_c) = d_new
        out = torch.tanh(new[1])
        # The memory of d_o serves the gradient of the cell first.
        torch.mul(d_h, o, out=d_o)
        d_c += tanh_backward(d_o, out, grad_input=d_o)
        # Each gradient is first that of a gate's output, and then, in the same memory, of its input.
        torch.mul(d_h, out, out=d_o)
        sigmoid_backward(d_o, o, grad_input=d_o)
        torch.mul(d_c, u, out=d_i)
        sigmoid_backward(d_i, i, grad_input=d_i)
        torch.mul(d_c, old[1], out=d_f)
        sigmoid_backward(d_f, f, grad_input=d_f)
        torch.mul(d_c, i, out=d_u)
        tanh_backward(d_u, u, grad_input=d_u)
        d_old[1].addcmul_(d_c, f)


CELLS: dict[str, RnnCell] = {"elman": Elman(), "gru": Gru(), "lstm": Lstm()}


@dataclass(frozen=True)
class StepSchedule:
    """The rows of each step of sequences packed step by step, longest first, as in PyTorch's PackedSequence.

    State tensors begin with the rows of the initial state.
    """

    sizes: Sequence[int]  # how many sequences there are at each step

    @property
    def rows(self) -> int:
        return sum(self.sizes)

    def __iter__(self) -> Iterator[tuple[slice, slice, slice]]:
        """For each step: its rows, the rows of its new states, and the rows of the states before it."""
        old = 0
        row = 0
        new = self.sizes[0]
        for size in self.sizes:
            yield slice(row, row + size), slice(new, new + size), slice(old, old + size)
            old = new
            row = row + size
            new = new + size


class RnnLayer:
    """A layer's gates and states at all steps."""

    def __init__(
        self,
        cell: RnnCell,
        steps: StepSchedule,
        weights: RnnWeights,
        gates: Tensor,
        *states: Tensor,
    ) -> None:
        width = weights.state.shape[1]
        self.cell = cell
        self.steps = steps
        self.weights = weights
        self.gates = gates
        self.states = states
        self.of_input = slice(cell.of_input.start * width, cell.of_input.stop * width)
        self.of_state = slice(cell.of_state.start * width, cell.of_state.stop * width)
        self.turn = cell.turn * width
        self.input = weights.input.roll(self.turn, 0)

    @classmethod
    def begin(
        cls, cell: RnnCell, steps: StepSchedule, weights: RnnWeights, start: RnnStates
    ) -> "RnnLayer":
        """The layer before its first step: the gates hold the biases."""
        width = weights.state.shape[1]
        rows = steps.rows
        states = [torch.cat((state, state.new_empty(rows, width))) for state in start]
        gates = start[0].new_empty(rows, cell.count * width)
        layer = cls(cell, steps, weights, gates, *states)
        bias = start[0].new_zeros(cell.count * width)
        bias[layer.of_input] += weights.input_bias.roll(layer.turn)
        bias[layer.of_state] += weights.state_bias
        layer.gates.copy_(bias)
        return layer

    def take(self, rows: slice, x: Tensor, weight: Tensor) -> None:
        """Add an input, or a part of it with the same part of the weights, to the gates."""
        self.gates[rows, self.of_input].addmm_(x, weight.mT)

    def step(self, rows: slice, new: slice, old: slice) -> None:
        gates = self.gates[rows]
        before = tuple(state[old] for state in self.states)
        after = tuple(state[new] for state in self.states)
        gates[:, self.of_state].addmm_(before[0], self.weights.state.mT)
        self.cell.forward(gates, before, after)


class RnnLayerGradient:
    """Gradients of a layer's gates and states, computed from the last step to the first."""

    def __init__(self, layer: RnnLayer, *d_out: Tensor | None) -> None:
        self.layer = layer
        self.gates = torch.empty_like(layer.gates)
        self.states = tuple(torch.zeros_like(s) for s in layer.states)
        for mine, given in zip(self.states, d_out, strict=False):
            if given is not None:
                mine[-len(given) :] = given

    def step(self, rows: slice, new: slice, old: slice) -> None:
        layer = self.layer
        before = tuple(state[old] for state in layer.states)
        after = tuple(state[new] for state in layer.states)
        d_gates = self.gates[rows]
        d_old = tuple(state[old] for state in self.states)
        d_new = tuple(state[new] for state in self.states)
        layer.cell.backward(layer.gates[rows], before, after, d_gates, d_old, d_new)
        d_old[0].addmm_(d_gates[:, layer.of_state], layer.weights.state)

    def to_input(self, rows: slice, weight: Tensor) -> Tensor:
        return self.gates[rows, self.layer.of_input] @ weight

    def weights(self, *inputs: Tensor) -> RnnWeights:
        """Gradients of the weights, after the last step, given the parts of the input."""
        layer = self.layer
        old = torch.cat([layer.states[0][old] for _, _, old in layer.steps])
        d_input = self.gates[:, layer.of_input].mT
        d_state = self.gates[:, layer.of_state].mT
        bias = self.gates.sum(0)
        by_input = torch.cat([d_input @ x for x in inputs], 1)
        by_state = d_state @ old
        input_bias = bias[layer.of_input]
        state_bias = bias[layer.of_state]
        # Gates of the input go back to PyTorch's order.
        by_input = by_input.roll(-layer.turn, 0)
        input_bias = input_bias.roll(-layer.turn)
        return RnnWeights(by_input, by_state, input_bias, state_bias)


class HandWrittenBackward(torch.autograd.Function):
    """Runs an object's `forward`, which returns results and tensors to save, and its `backward`."""

    @staticmethod
    def forward(ctx: Any, run: Any, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        out: tuple[Tensor, ...]
        out, kept = run.forward(*inputs)
        ctx.save_for_backward(*inputs, *kept)
        ctx.run = run
        ctx.count = len(inputs)
        ctx.set_materialize_grads(False)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *d_out: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        inputs = saved[: ctx.count]
        kept = saved[ctx.count :]
        # Autocast may be on around a backward pass.
        with torch.autocast(saved[-1].device.type, enabled=False):
            return None, *ctx.run.backward(inputs, kept, d_out)


def scan(
    cell: str,
    x: Float[Tensor, "rows I"],
    sizes: Sequence[int],
    start: RnnStates,
    weights: RnnWeights,
) -> RnnStates:
    """The states (rows, W) of one layer after every step; `sizes` are the rows of each step (`StepSchedule`)."""
    run = _Scan(CELLS[cell], StepSchedule(sizes))
    states: RnnStates = HandWrittenBackward.apply(run, x, *weights, *start)  # type: ignore[no-untyped-call]
    return states


@dataclass(frozen=True)
class _Scan:
    cell: RnnCell
    steps: StepSchedule

    def forward(self, x: Tensor, *rest: Tensor) -> tuple[RnnStates, RnnStates]:
        layer = RnnLayer.begin(self.cell, self.steps, RnnWeights(*rest[:4]), rest[4:])
        layer.take(slice(None), x, layer.input)
        for step in self.steps:
            layer.step(*step)
        batch = self.steps.sizes[0]
        states = tuple(state[batch:] for state in layer.states)
        return states, (layer.gates, *layer.states)

    def backward(self, inputs: Any, kept: Any, d_out: Any) -> tuple[Tensor | None, ...]:
        x, *rest = inputs
        layer = RnnLayer(self.cell, self.steps, RnnWeights(*rest[:4]), *kept)
        d = RnnLayerGradient(layer, *d_out)
        for step in reversed(list(self.steps)):
            d.step(*step)
        batch = self.steps.sizes[0]
        d_x = d.to_input(slice(None), layer.input)
        d_start = [state[:batch] for state in d.states]
        return d_x, *d.weights(x), *d_start
