"""Recurrent layers that look at a source at every step, with one gradient for all steps, by hand.

The slow version is a layer of PyTorch and `attend`, one step after another. Here what the backward needs of all steps
lies side by side, so that the gradient of each weight is one product, and that of keys and values where it can be.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from regard.core.shapes import Bool, Float, Tensor
from regard.kernels.attention.score_function import AdditiveScoreFunction, DotScoreFunction, ScoreFunction
from regard.kernels.recurrent.rnn import (
    CELLS,
    HandWrittenBackward,
    RnnCell,
    RnnLayer,
    RnnLayerGradient,
    RnnStates,
    RnnWeights,
    StepSchedule,
    sigmoid_backward,
    tanh_backward,
)  # fmt: skip

softmax_backward = torch.ops.aten._softmax_backward_data.default


def supports(score_function: ScoreFunction) -> bool:
    return isinstance(score_function, DotScoreFunction | AdditiveScoreFunction)


@dataclass(frozen=True)
class AttentionSource:
    """What every step may look at, and how."""

    keys: Float[Tensor, "B S D"]
    values: Float[Tensor, "B S C"]
    mask: Bool[Tensor, "B S"]
    matrix: Float[Tensor, "W D"] | None  # from a state to its query; None: it is its own
    score_function: ScoreFunction

    @property
    def scale(self) -> float:
        return self.score_function.scale if isinstance(self.score_function, DotScoreFunction) else 1.0

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        # Who may see nothing sees zeros: values that are zero, under any weights, which so get no gradient either.
        blind = ~self.mask.any(1, keepdim=True)
        bias = self.keys.new_zeros(self.mask.shape).masked_fill_(~(self.mask | blind), -torch.inf)
        weight = self.score_function.weight[0] if isinstance(self.score_function, AdditiveScoreFunction) else None
        return self.keys, self.values.masked_fill(blind[..., None], 0.0), bias, self.matrix, weight


@dataclass(frozen=True)
class RecurrentLayers:
    """A recurrent stack before its first step."""

    cell: str
    weights: Sequence[RnnWeights]
    start: Sequence[RnnStates]
    between: Float[Tensor, "above rows W"] | None  # what dropout between layers multiplies by

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        each = zip(self.weights, self.start, strict=True)
        return self.between, *(x for weights, start in each for x in (*weights, *start))


Gate = tuple[Float[Tensor, "1 W"], Float[Tensor, " 1"]]  # from a state to the share of what it sees that counts


def attend_then_step(
    layers: RecurrentLayers, source: AttentionSource, embedded: Float[Tensor, "T B E"], gate: Gate | None = None
) -> tuple[Sequence[RnnStates], Float[Tensor, "T B C"], Float[Tensor, "T B S"]]:
    """Each step takes in what the state before it sees, or the gate's share of that.

    All layers' states (T, B, W), what was taken in, and the weights of all looks.
    """
    run = _Before(CELLS[layers.cell], len(embedded), len(layers.weights), source.scale)
    given = embedded.flatten(0, 1), *(gate or (None, None))
    out = HandWrittenBackward.apply(run, *given, *source.tensors, *layers.tensors)  # type: ignore[no-untyped-call]
    *states, seen, weights = (x.unflatten(0, embedded.shape[:2]) for x in out)
    return _evenly(states, len(layers.weights)), seen, weights


def step_then_attend(
    layers: RecurrentLayers,
    source: AttentionSource,
    embedded: Float[Tensor, "T B E"],
    said: Float[Tensor, "B W"],
    weight: Float[Tensor, "W joined"],
    bias: Float[Tensor, " W"],
) -> tuple[Sequence[RnnStates], Float[Tensor, "T B W"], Float[Tensor, "T B S"]]:
    """Each step takes in what the last said: tanh of its state joined with what that sees. States, said, weights."""
    run = _After(CELLS[layers.cell], len(embedded), len(layers.weights), source.scale)
    given = embedded.flatten(0, 1), said, weight, bias
    out = HandWrittenBackward.apply(run, *given, *source.tensors, *layers.tensors)  # type: ignore[no-untyped-call]
    *states, said, weights = (x.unflatten(0, embedded.shape[:2]) for x in out)
    return _evenly(states, len(layers.weights)), said, weights


class _Dot:
    """scale · q·k, one query for each row of keys."""

    def __init__(self, keys: Tensor, scale: float) -> None:
        self.keys, self.scale = keys, scale

    def scores(self, query: Tensor) -> Tensor:
        return torch.bmm(query[:, None], self.keys.mT)[:, 0].mul_(self.scale)

    def to_query(self, query: Tensor, d_scores: Tensor) -> Tensor:
        return torch.bmm(d_scores[:, None], self.keys)[:, 0].mul_(self.scale)

    def gradients(self, queries: Float[Tensor, "T B D"], d_scores: Float[Tensor, "T B S"]) -> tuple[Tensor, None]:
        """Of the keys, after the last step, and of the weight (none)."""
        return torch.bmm(d_scores.permute(1, 2, 0), queries.transpose(0, 1)).mul_(self.scale), None


class _Additive:
    """w · tanh(q + k). The cube is computed again for the backward: to keep it takes as long, and all that memory."""

    def __init__(self, keys: Tensor, weight: Tensor) -> None:
        self.keys, self.weight, self.one = keys, weight, keys.new_ones(())
        self.cube, self.d_keys, self.d_weight = torch.empty_like(keys), torch.zeros_like(keys), torch.zeros_like(weight)

    def scores(self, query: Tensor) -> Tensor:
        return torch.add(self.keys, query[:, None], out=self.cube).tanh_() @ self.weight  # (B, S, D) to (B, S)

    def to_query(self, query: Tensor, d_scores: Tensor) -> Tensor:
        cube = torch.add(self.keys, query[:, None], out=self.cube).tanh_()
        self.d_weight.addmv_(cube.flatten(0, 1).mT, d_scores.flatten())
        slope = torch.addcmul(self.one, cube, cube, value=-1, out=cube)  # tanh' = 1 - tanh²
        self.d_keys.addcmul_(slope, d_scores[..., None])
        return torch.bmm(d_scores[:, None], slope)[:, 0].mul_(self.weight)

    def gradients(self, queries: Tensor, d_scores: Tensor) -> tuple[Tensor, Tensor]:
        return self.d_keys.mul_(self.weight), self.d_weight


class _Look:
    """What each step sees of a source when it asks with a state."""

    def __init__(
        self, scale: float, source: Sequence[Any], kept: Sequence[Tensor] | None = None, rows: int = 0
    ) -> None:
        keys, self.values, self.bias, self.matrix, weight = source
        self.meeting = _Dot(keys, scale) if weight is None else _Additive(keys, weight)
        widths = self.values.shape[2], keys.shape[1], 0 if self.matrix is None else keys.shape[2]
        self.kept: Sequence[Tensor] = [keys.new_empty(rows, width) for width in widths] if kept is None else kept
        self.seen, self.weights, self.queries = self.kept

    def ask(self, rows: slice, state: Tensor) -> Tensor:
        query = state if self.matrix is None else torch.mm(state, self.matrix, out=self.queries[rows])
        weights = torch.softmax(self.meeting.scores(query).add_(self.bias), -1, out=self.weights[rows])
        torch.bmm(weights[:, None], self.values, out=self.seen[rows, None])
        return self.seen[rows]


class _LookGradient:
    def __init__(self, look: _Look, d_weights: Tensor | None) -> None:
        self.look, self.scores, self.queries = look, torch.empty_like(look.weights), torch.empty_like(look.queries)
        self.seen, self.weights = torch.zeros_like(look.seen), d_weights

    def ask(self, rows: slice, state: Tensor, d_state: Tensor) -> None:
        """From the gradient of what was seen to that of the state, which is added to."""
        look, scores = self.look, self.scores[rows]
        d_weights = torch.bmm(self.seen[rows, None], look.values.mT)[:, 0]
        if self.weights is not None:
            d_weights += self.weights[rows]
        scores.copy_(softmax_backward(d_weights, look.weights[rows], -1, scores.dtype))
        if look.matrix is None:
            d_state += look.meeting.to_query(state, scores)
        else:
            self.queries[rows] = look.meeting.to_query(look.queries[rows], scores)
            d_state.addmm_(self.queries[rows], look.matrix.mT)

    def gradients(self, asked: Tensor) -> tuple[Tensor | None, ...]:
        """Of the source's tensors, after the last step."""
        look = self.look
        queries = asked if look.matrix is None else look.queries
        d_matrix = None if look.matrix is None else asked.mT @ self.queries
        every = (queries, self.scores, look.weights, self.seen)
        queries, scores, weights, seen = (x.view(-1, len(look.bias), x.shape[1]) for x in every)  # (T, B, …)
        d_keys, d_weight = look.meeting.gradients(queries, scores)
        return d_keys, torch.bmm(weights.permute(1, 2, 0), seen.transpose(0, 1)), None, d_matrix, d_weight


class _Gate:
    """Lets the share sigmoid(w · state + b) of what is seen through; without weights, all of it."""

    def __init__(self, weight: Tensor | None, bias: Tensor | None, seen: Tensor, *kept: Tensor) -> None:
        self.weight, self.bias, self.seen = weight, bias, seen
        self.kept = kept if kept or weight is None else (seen.new_empty(len(seen), 1), torch.empty_like(seen))
        self.share, self.passed = self.kept or (seen[:, :0], seen)

    def open(self, rows: slice, state: Tensor) -> Tensor:
        if self.weight is not None:
            share = torch.addmm(self.bias, state, self.weight.mT, out=self.share[rows]).sigmoid_()  # type: ignore[arg-type]
            torch.mul(self.seen[rows], share, out=self.passed[rows])
        return self.passed[rows]


class _GateGradient:
    def __init__(self, gate: _Gate, d_seen: Tensor, d_passed: Tensor | None) -> None:
        self.gate, self.seen, self.logits = gate, d_seen, torch.empty_like(gate.share)
        self.passed = d_seen if gate.weight is None else torch.zeros_like(d_seen)
        if d_passed is not None:
            self.passed += d_passed

    def open(self, rows: slice, d_state: Tensor) -> None:
        """From the gradient of what was let through to that of what was seen, and of the state, which is added to."""
        gate = self.gate
        if gate.weight is not None:
            share, d_passed = gate.share[rows], self.passed[rows]
            torch.mul(d_passed, share, out=self.seen[rows])
            d_share = (d_passed * gate.seen[rows]).sum(1, keepdim=True)
            d_state.addmm_(sigmoid_backward(d_share, share, grad_input=self.logits[rows]), gate.weight)

    def gradients(self, asked: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Of the gate's tensors, after the last step."""
        return (None, None) if self.gate.weight is None else (self.logits.mT @ asked, self.logits.sum(0))


class _Stack:
    """Layers one above the other, of which the lowest is fed at each step besides the embedded tokens."""

    def __init__(self, between: Tensor | None, layers: Sequence[RnnLayer], embedded: int) -> None:
        self.between, self.layers, self.top = between, layers, layers[-1].states[0]
        self.of_embedded, self.of_fed = layers[0].input[:, :embedded], layers[0].input[:, embedded:]

    def step(self, rows: slice, new: slice, old: slice, fed: Tensor) -> None:
        for i, layer in enumerate(self.layers):
            layer.take(rows, self.below(i, rows, new) if i else fed, layer.input if i else self.of_fed)
            layer.step(rows, new, old)

    def below(self, i: int, rows: slice, new: slice) -> Tensor:
        state = self.layers[i - 1].states[0][new]
        return state if self.between is None else state * self.between[i - 1, rows]


class _StackGradient:
    def __init__(self, stack: _Stack, d_out: Sequence[Tensor | None]) -> None:
        self.stack = stack
        each = zip(stack.layers, _evenly(d_out, len(stack.layers)), strict=True)
        self.layers = [RnnLayerGradient(layer, *d_states) for layer, d_states in each]
        self.top = self.layers[-1].states[0]

    def step(self, rows: slice, new: slice, old: slice) -> Tensor:
        """The gradient of what was fed."""
        between = self.stack.between
        for i in range(len(self.layers) - 1, 0, -1):
            self.layers[i].step(rows, new, old)
            d_below = self.layers[i].to_input(rows, self.stack.layers[i].input)
            self.layers[i - 1].states[0][new] += d_below if between is None else d_below * between[i - 1, rows]
        self.layers[0].step(rows, new, old)
        return self.layers[0].to_input(rows, self.stack.of_fed)

    def gradients(self, embedded: Tensor, fed: Tensor) -> tuple[Tensor | None, ...]:
        """Of the tensors of `Layers`, after the last step."""
        batch, out = self.stack.layers[0].steps.sizes[0], []
        for i, layer in enumerate(self.layers):
            inputs = (self.stack.below(i, slice(None), slice(batch, None)),) if i else (embedded, fed)
            out += [*layer.weights(*inputs), *(s[:batch] for s in layer.states)]
        return None, *out


@dataclass(frozen=True)
class _Looking:
    cell: RnnCell
    length: int
    layers: int
    scale: float

    def begin(
        self, embedded: Tensor, source: Any, between: Tensor | None, rest: Any
    ) -> tuple[StepSchedule, _Stack, _Look]:
        steps = StepSchedule([len(source[0])] * self.length)
        each = [RnnLayer.begin(self.cell, steps, RnnWeights(*x[:4]), x[4:]) for x in _evenly(rest, self.layers)]
        stack = _Stack(between, each, embedded.shape[1])
        each[0].take(slice(None), embedded, stack.of_embedded)
        return steps, stack, _Look(self.scale, source, rows=steps.rows)

    def results(self, stack: _Stack, look: _Look) -> tuple[list[Tensor], list[Tensor]]:
        batch, layers = len(look.bias), stack.layers
        out = [s[batch:] for layer in layers for s in layer.states]
        return out, [*look.kept, *(x for layer in layers for x in (layer.gates, *layer.states))]

    def again(
        self, embedded: Tensor, source: Any, between: Any, rest: Any, kept: Any
    ) -> tuple[StepSchedule, _Stack, _Look]:
        """As they were after the last step."""
        steps, look = StepSchedule([len(source[0])] * self.length), _Look(self.scale, source, kept[:3])
        pairs = zip(_evenly(rest, self.layers), _evenly(kept[3:], self.layers), strict=True)
        each = [RnnLayer(self.cell, steps, RnnWeights(*x[:4]), *k) for x, k in pairs]
        return steps, _Stack(between, each, embedded.shape[1]), look


class _Before(_Looking):
    def forward(self, embedded: Tensor, weight: Any, bias: Any, *rest: Any) -> tuple[tuple[Tensor, ...], Any]:
        steps, stack, look = self.begin(embedded, rest[:5], rest[5], rest[6:])
        gate = _Gate(weight, bias, look.seen)
        for rows, new, old in steps:
            look.ask(rows, stack.top[old])
            stack.step(rows, new, old, gate.open(rows, stack.top[old]))
        out, kept = self.results(stack, look)
        return (*out, gate.passed, look.weights), (*kept, *gate.kept)

    def backward(self, inputs: Any, kept: Any, d_out: Any) -> tuple[Tensor | None, ...]:
        embedded, weight, bias, *rest = inputs
        kept, of_gate = (kept, ()) if weight is None else (kept[:-2], kept[-2:])
        steps, stack, look = self.again(embedded, rest[:5], rest[5], rest[6:], kept)
        gate = _Gate(weight, bias, look.seen, *of_gate)
        d_stack, d_look = _StackGradient(stack, d_out[:-2]), _LookGradient(look, d_out[-1])
        d_gate = _GateGradient(gate, d_look.seen, d_out[-2])
        for rows, new, old in reversed(list(steps)):
            d_gate.passed[rows] += d_stack.step(rows, new, old)
            d_gate.open(rows, d_stack.top[old])
            d_look.ask(rows, stack.top[old], d_stack.top[old])
        d_embedded, asked = d_stack.layers[0].to_input(slice(None), stack.of_embedded), stack.top[: steps.rows]
        d_source, d_layers = d_look.gradients(asked), d_stack.gradients(embedded, gate.passed)
        return d_embedded, *d_gate.gradients(asked), *d_source, *d_layers


class _After(_Looking):
    def forward(self, embedded: Tensor, said: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> tuple[Any, Any]:
        steps, stack, look = self.begin(embedded, rest[:5], rest[5], rest[6:])
        width, batch = stack.top.shape[1], len(said)
        said = torch.cat((said, said.new_empty(steps.rows, width)))
        for rows, new, old in steps:
            stack.step(rows, new, old, said[old])
            seen, state = look.ask(rows, stack.top[new]), stack.top[new]
            torch.addmm(bias, state, weight[:, :width].mT, out=said[new]).addmm_(seen, weight[:, width:].mT).tanh_()
        out, kept = self.results(stack, look)
        return (*out, said[batch:], look.weights), (said, *kept)

    def backward(self, inputs: Any, kept: Any, d_out: Any) -> tuple[Tensor | None, ...]:
        embedded, _, weight, _, *rest = inputs
        steps, stack, look = self.again(embedded, rest[:5], rest[5], rest[6:], kept[1:])
        d_stack, d_look = _StackGradient(stack, d_out[:-2]), _LookGradient(look, d_out[-1])
        said, width, batch = kept[0], stack.top.shape[1], steps.sizes[0]
        d_said, d_joined = torch.zeros_like(said), torch.empty_like(said[batch:])
        if d_out[-2] is not None:
            d_said[batch:] = d_out[-2]
        for rows, new, old in reversed(list(steps)):
            joined = tanh_backward(d_said[new], said[new], grad_input=d_joined[rows])
            d_stack.top[new].addmm_(joined, weight[:, :width])
            torch.mm(joined, weight[:, width:], out=d_look.seen[rows])
            d_look.ask(rows, stack.top[new], d_stack.top[new])
            d_said[old] += d_stack.step(rows, new, old)
        d_embedded = d_stack.layers[0].to_input(slice(None), stack.of_embedded)
        d_weight = torch.cat((d_joined.mT @ stack.top[batch:], d_joined.mT @ look.seen), 1)
        d_source, d_layers = d_look.gradients(stack.top[batch:]), d_stack.gradients(embedded, said[: steps.rows])
        return d_embedded, d_said[:batch], d_weight, d_joined.sum(0), *d_source, *d_layers


def _evenly(flat: Sequence[Any], count: int) -> list[tuple[Any, ...]]:
    """A sequence in parts of equal length."""
    each = len(flat) // count
    return [tuple(flat[i * each : (i + 1) * each]) for i in range(count)]
