"""Recurrent layers with attention inside the recurrence, with a hand-written backward pass over all steps.

`attend_then_step` is Bahdanau's order (arXiv:1409.0473), `step_then_attend` Luong's with input feeding
(arXiv:1508.04025). The slow version is PyTorch's layer and `attend`, step by step. Here the activations of all steps
are stored contiguously, so that the gradient of each weight is one product.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from regard.core.shapes import Bool, Float, Tensor
from regard.kernels.attention.score_function import (
    AdditiveScoreFunction,
    DotScoreFunction,
    ScoreFunction,
)
from regard.kernels.recurrent import rnn
from regard.kernels.recurrent.rnn import (
    RnnLayer,
    RnnLayerGradient,
    RnnStates,
    RnnWeights,
    StepSchedule,
)

softmax_backward = torch.ops.aten._softmax_backward_data.default


def supports(score_function: ScoreFunction) -> bool:
    return isinstance(score_function, DotScoreFunction | AdditiveScoreFunction)


@dataclass(frozen=True)
class AttentionSource:
    """Keys, values and score function that every step attends with."""

    keys: Float[Tensor, "B S D"]
    values: Float[Tensor, "B S C"]
    mask: Bool[Tensor, "B S"]
    # Projects a state to its query; None: the state is the query.
    matrix: Float[Tensor, "W D"] | None
    score_function: ScoreFunction

    @property
    def scale(self) -> float:
        if isinstance(self.score_function, DotScoreFunction):
            return self.score_function.scale
        return 1.0

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        # A row with an empty mask gives zeros: its values are zero, under any weights, which get no gradient either.
        empty = ~self.mask.any(1, keepdim=True)  # (B, 1)
        visible = self.mask | empty
        bias = self.keys.new_zeros(self.mask.shape).masked_fill_(~visible, -torch.inf)  # (B, S)
        values = self.values.masked_fill(empty[..., None], 0.0)
        weight = None
        if isinstance(self.score_function, AdditiveScoreFunction):
            weight = self.score_function.weight[0]
        return self.keys, values, bias, self.matrix, weight


@dataclass(frozen=True)
class RecurrentLayers:
    """The layers of a recurrent stack, with their initial states."""

    cell: str
    weights: Sequence[RnnWeights]
    start: Sequence[RnnStates]
    between: Float[Tensor, "above rows W"] | None  # dropout factors between layers

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        tensors: list[Tensor | None] = [self.between]
        for weights, start in zip(self.weights, self.start, strict=True):
            tensors += [*weights, *start]
        return tuple(tensors)


Gate = tuple[Float[Tensor, "1 W"], Float[Tensor, " 1"]]  # from a state to the gate of its context


def attend_then_step(
    layers: RecurrentLayers,
    source: AttentionSource,
    embedded: Float[Tensor, "T B E"],
    gate: Gate | None = None,
) -> tuple[Sequence[RnnStates], Float[Tensor, "T B C"], Float[Tensor, "T B S"]]:
    """Each step's input is the context of the state before it, scaled by the gate if there is one.

    Returns the states (T, B, W) of all layers, the (gated) contexts and the attention weights.
    """
    weight, bias = gate or (None, None)
    return _run(_AttendThenStep, layers, source, embedded, weight, bias)


def step_then_attend(
    layers: RecurrentLayers,
    source: AttentionSource,
    embedded: Float[Tensor, "T B E"],
    attentional: Float[Tensor, "B W"],
    weight: Float[Tensor, "W joined"],
    bias: Float[Tensor, " W"],
) -> tuple[Sequence[RnnStates], Float[Tensor, "T B W"], Float[Tensor, "T B S"]]:
    """Each step's input is the last attentional state, tanh(weight [state, context] + bias).

    Returns the states of all layers, the attentional states and the attention weights.
    """
    return _run(_StepThenAttend, layers, source, embedded, attentional, weight, bias)


def _run(
    order: type["_AttentionRnn"],
    layers: RecurrentLayers,
    source: AttentionSource,
    embedded: Tensor,
    *given: Any,
) -> tuple[Sequence[RnnStates], Tensor, Tensor]:
    run = order(rnn.CELLS[layers.cell], len(embedded), len(layers.weights), source.scale)
    flat = embedded.flatten(0, 1)  # (T B, E)
    tensors = (flat, *given, *source.tensors, *layers.tensors)
    out = rnn.HandWrittenBackward.apply(run, *tensors)  # type: ignore[no-untyped-call]
    *states, attended, weights = [x.unflatten(0, embedded.shape[:2]) for x in out]  # (T, B, _)
    return _chunks(states, len(layers.weights)), attended, weights


class _Dot:
    """Scaled dot-product scores of one query per sequence."""

    def __init__(self, keys: Tensor, scale: float) -> None:
        self.keys = keys
        self.scale = scale

    def scores(self, query: Tensor) -> Tensor:
        products = torch.bmm(query[:, None], self.keys.mT)  # (B, 1, S)
        return products[:, 0].mul_(self.scale)

    def to_query(self, query: Tensor, d_scores: Tensor) -> Tensor:
        products = torch.bmm(d_scores[:, None], self.keys)  # (B, 1, D)
        return products[:, 0].mul_(self.scale)

    def gradients(
        self, queries: Float[Tensor, "T B D"], d_scores: Float[Tensor, "T B S"]
    ) -> tuple[Tensor, None]:
        """The gradient of the keys, after the last step; there is no weight."""
        d_keys = torch.bmm(d_scores.permute(1, 2, 0), queries.transpose(0, 1))  # (B, S, D)
        return d_keys.mul_(self.scale), None


class _Additive:
    """w · tanh(q + k). The backward recomputes tanh(q + k) (B, S, D): storing it takes as long, and far more memory."""

    def __init__(self, keys: Tensor, weight: Tensor) -> None:
        self.keys = keys
        self.weight = weight
        self.one = keys.new_ones(())
        self.hidden = torch.empty_like(keys)
        self.d_keys = torch.zeros_like(keys)
        self.d_weight = torch.zeros_like(weight)

    def scores(self, query: Tensor) -> Tensor:
        hidden = torch.add(self.keys, query[:, None], out=self.hidden).tanh_()  # (B, S, D)
        return hidden @ self.weight  # (B, S)

    def to_query(self, query: Tensor, d_scores: Tensor) -> Tensor:
        hidden = torch.add(self.keys, query[:, None], out=self.hidden).tanh_()  # (B, S, D)
        self.d_weight.addmv_(hidden.flatten(0, 1).mT, d_scores.flatten())
        slope = torch.addcmul(self.one, hidden, hidden, value=-1, out=hidden)  # tanh' = 1 - tanh²
        self.d_keys.addcmul_(slope, d_scores[..., None])
        summed = torch.bmm(d_scores[:, None], slope)  # (B, 1, D)
        return summed[:, 0].mul_(self.weight)

    def gradients(self, queries: Tensor, d_scores: Tensor) -> tuple[Tensor, Tensor]:
        return self.d_keys.mul_(self.weight), self.d_weight


class _Attention:
    """Attention of a state at each step."""

    def __init__(
        self, scale: float, source: Sequence[Any], rows: int, kept: Sequence[Tensor]
    ) -> None:
        keys, self.values, self.bias, self.matrix, weight = source
        self.scoring: _Dot | _Additive
        if weight is None:
            self.scoring = _Dot(keys, scale)
        else:
            self.scoring = _Additive(keys, weight)
        # Without a matrix the states are the queries, and are kept already.
        query_width = 0 if self.matrix is None else keys.shape[2]
        widths = (self.values.shape[2], keys.shape[1], query_width)
        self.kept = kept or [keys.new_empty(rows, width) for width in widths]
        self.context, self.weights, self.queries = self.kept

    def attend(self, rows: slice, state: Tensor) -> Tensor:
        query = state
        if self.matrix is not None:
            query = torch.mm(state, self.matrix, out=self.queries[rows])  # (B, D)
        scores = self.scoring.scores(query).add_(self.bias)  # (B, S)
        weights = torch.softmax(scores, -1, out=self.weights[rows])
        torch.bmm(weights[:, None], self.values, out=self.context[rows, None])
        return self.context[rows]


class _AttentionGradient:
    def __init__(self, attention: _Attention, d_weights: Tensor | None) -> None:
        self.attention = attention
        self.context = torch.zeros_like(attention.context)
        self.weights = d_weights
        self.scores = torch.empty_like(attention.weights)
        self.queries = torch.empty_like(attention.queries)

    def attend(self, rows: slice, state: Tensor, d_state: Tensor) -> None:
        """Add to the gradient of the state, given the gradient of the context."""
        attention = self.attention
        d_scores = self.scores[rows]  # (B, S)
        d_weights = torch.bmm(self.context[rows, None], attention.values.mT)[:, 0]  # (B, S)
        if self.weights is not None:
            d_weights += self.weights[rows]
        weights = attention.weights[rows]
        d_scores.copy_(softmax_backward(d_weights, weights, -1, d_scores.dtype))
        if attention.matrix is None:
            d_state += attention.scoring.to_query(state, d_scores)
        else:
            d_query = attention.scoring.to_query(attention.queries[rows], d_scores)  # (B, D)
            self.queries[rows] = d_query
            d_state.addmm_(self.queries[rows], attention.matrix.mT)

    def gradients(self, queried: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the source's tensors, after the last step."""
        attention = self.attention
        if attention.matrix is None:
            queries = queried
            d_matrix = None
        else:
            queries = attention.queries
            d_matrix = queried.mT @ self.queries
        batch = len(attention.bias)

        def by_step(x: Tensor) -> Tensor:
            return x.view(-1, batch, x.shape[1])  # (T, B, _)

        d_keys, d_weight = attention.scoring.gradients(by_step(queries), by_step(self.scores))
        weights = by_step(attention.weights).permute(1, 2, 0)  # (B, S, T)
        d_context = by_step(self.context).transpose(0, 1)  # (B, T, C)
        d_values = torch.bmm(weights, d_context)  # (B, S, C)
        return d_keys, d_values, None, d_matrix, d_weight


class _Gate:
    """Scales the context by sigmoid(w · state + b); without weights, the identity."""

    def __init__(
        self, weight: Tensor | None, bias: Tensor | None, context: Tensor, *kept: Tensor
    ) -> None:
        self.weight = weight
        self.bias = bias
        self.context = context
        self.kept = kept
        if weight is not None and not kept:
            self.kept = (context.new_empty(len(context), 1), torch.empty_like(context))
        self.share, self.gated = self.kept or (context[:, :0], context)

    def open(self, rows: slice, state: Tensor) -> Tensor:
        if self.weight is not None:
            share = torch.addmm(self.bias, state, self.weight.mT, out=self.share[rows]).sigmoid_()  # type: ignore[arg-type]
            torch.mul(self.context[rows], share, out=self.gated[rows])
        return self.gated[rows]


class _GateGradient:
    def __init__(self, gate: _Gate, d_context: Tensor, d_gated: Tensor | None) -> None:
        self.gate = gate
        self.context = d_context
        self.logits = torch.empty_like(gate.share)
        # Without weights, the gated context is the context itself.
        self.gated = d_context
        if gate.weight is not None:
            self.gated = torch.zeros_like(d_context)
        if d_gated is not None:
            self.gated += d_gated

    def open(self, rows: slice, d_state: Tensor) -> None:
        """Write the gradient of the context, given the gradient of the gated context. Add to the state's gradient."""
        gate = self.gate
        if gate.weight is None:
            return
        share = gate.share[rows]  # (B, 1)
        d_gated = self.gated[rows]  # (B, C)
        torch.mul(d_gated, share, out=self.context[rows])
        d_share = (d_gated * gate.context[rows]).sum(1, keepdim=True)  # (B, 1)
        d_logits = rnn.sigmoid_backward(d_share, share, grad_input=self.logits[rows])
        d_state.addmm_(d_logits, gate.weight)

    def gradients(self, queried: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Gradients of the gate's tensors, after the last step."""
        if self.gate.weight is None:
            return (None, None)
        return (self.logits.mT @ queried, self.logits.sum(0))


class _Stack:
    """Stacked layers. The lowest one has the embedded tokens and a fed-back input."""

    def __init__(self, between: Tensor | None, layers: Sequence[RnnLayer], embedded: int) -> None:
        self.between = between
        self.layers = layers
        self.top = layers[-1].states[0]
        self.of_embedded = layers[0].input[:, :embedded]
        self.of_fed = layers[0].input[:, embedded:]

    def step(self, rows: slice, new: slice, old: slice, fed: Tensor) -> None:
        for i, layer in enumerate(self.layers):
            if i == 0:
                # The embedded tokens of all steps were added before the first step.
                layer.take(rows, fed, self.of_fed)
            else:
                layer.take(rows, self.below(i, rows, new), layer.input)
            layer.step(rows, new, old)

    def below(self, i: int, rows: slice, new: slice) -> Tensor:
        state = self.layers[i - 1].states[0][new]
        if self.between is None:
            return state
        return state * self.between[i - 1, rows]


class _StackGradient:
    def __init__(self, stack: _Stack, d_out: Sequence[Tensor | None]) -> None:
        self.stack = stack
        each = zip(stack.layers, _chunks(d_out, len(stack.layers)), strict=True)
        self.layers = [RnnLayerGradient(layer, *d_states) for layer, d_states in each]
        self.top = self.layers[-1].states[0]

    def step(self, rows: slice, new: slice, old: slice) -> Tensor:
        """The gradient of the fed-back input."""
        between = self.stack.between
        for i in range(len(self.layers) - 1, 0, -1):
            self.layers[i].step(rows, new, old)
            d_below = self.layers[i].to_input(rows, self.stack.layers[i].input)
            if between is not None:
                d_below = d_below * between[i - 1, rows]
            self.layers[i - 1].states[0][new] += d_below
        self.layers[0].step(rows, new, old)
        return self.layers[0].to_input(rows, self.stack.of_fed)

    def gradients(self, embedded: Tensor, fed: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the tensors of `RecurrentLayers`, after the last step."""
        batch = self.stack.layers[0].steps.sizes[0]
        out: list[Tensor] = []
        for i, layer in enumerate(self.layers):
            inputs = [embedded, fed]
            if i > 0:
                inputs = [self.stack.below(i, slice(None), slice(batch, None))]
            out += layer.weights(*inputs)
            out += [state[:batch] for state in layer.states]
        return None, *out


@dataclass(frozen=True)
class _AttentionRnn:
    cell: rnn.RnnCell
    length: int
    layers: int
    scale: float

    def parts(
        self, embedded: Tensor, rest: Sequence[Any], kept: Sequence[Tensor] = ()
    ) -> tuple[StepSchedule, _Stack, _Attention]:
        """Schedule, layers and attention before the first step, or as the forward pass kept them after the last."""
        source = rest[:5]
        between = rest[5]
        layers = _chunks(rest[6:], self.layers)
        batch = len(source[0])
        steps = StepSchedule([batch] * self.length)
        attention = _Attention(self.scale, source, steps.rows, kept[:3])
        if kept:
            # A layer's tensors are its four weights and its initial states.
            restored = []
            for tensors, kept_tensors in zip(layers, _chunks(kept[3:], self.layers), strict=True):
                weights = RnnWeights(*tensors[:4])
                restored.append(RnnLayer(self.cell, steps, weights, *kept_tensors))
            return steps, _Stack(between, restored, embedded.shape[1]), attention
        begun = [RnnLayer.begin(self.cell, steps, RnnWeights(*x[:4]), x[4:]) for x in layers]
        stack = _Stack(between, begun, embedded.shape[1])
        begun[0].take(slice(None), embedded, stack.of_embedded)
        return steps, stack, attention

    def results(self, stack: _Stack, attention: _Attention) -> tuple[list[Tensor], list[Tensor]]:
        """The states after each step, and the tensors that `parts` takes for the backward pass."""
        batch = len(attention.bias)
        out = []
        kept = [*attention.kept]
        for layer in stack.layers:
            out += [state[batch:] for state in layer.states]
            kept += [layer.gates, *layer.states]
        return out, kept


class _AttendThenStep(_AttentionRnn):
    def forward(
        self, embedded: Tensor, weight: Any, bias: Any, *rest: Any
    ) -> tuple[tuple[Tensor, ...], Any]:
        steps, stack, attention = self.parts(embedded, rest)
        gate = _Gate(weight, bias, attention.context)
        for rows, new, old in steps:
            attention.attend(rows, stack.top[old])
            gated = gate.open(rows, stack.top[old])
            stack.step(rows, new, old, gated)
        out, kept = self.results(stack, attention)
        return (*out, gate.gated, attention.weights), (*kept, *gate.kept)

    def backward(self, inputs: Any, kept: Any, d_out: Any) -> tuple[Tensor | None, ...]:
        embedded, weight, bias, *rest = inputs
        kept_gate = ()
        if weight is not None:
            kept_gate = kept[-2:]
            kept = kept[:-2]
        steps, stack, attention = self.parts(embedded, rest, kept)
        gate = _Gate(weight, bias, attention.context, *kept_gate)
        d_stack = _StackGradient(stack, d_out[:-2])
        d_attention = _AttentionGradient(attention, d_out[-1])
        d_gate = _GateGradient(gate, d_attention.context, d_out[-2])
        for rows, new, old in reversed(list(steps)):
            d_gate.gated[rows] += d_stack.step(rows, new, old)
            d_gate.open(rows, d_stack.top[old])
            d_attention.attend(rows, stack.top[old], d_stack.top[old])
        d_embedded = d_stack.layers[0].to_input(slice(None), stack.of_embedded)
        queried = stack.top[: steps.rows]
        d_source = d_attention.gradients(queried)
        d_layers = d_stack.gradients(embedded, gate.gated)
        return d_embedded, *d_gate.gradients(queried), *d_source, *d_layers


class _StepThenAttend(_AttentionRnn):
    def forward(
        self, embedded: Tensor, attentional: Tensor, weight: Tensor, bias: Tensor, *rest: Any
    ) -> tuple[Any, Any]:
        steps, stack, attention = self.parts(embedded, rest)
        width = stack.top.shape[1]
        batch = len(attentional)
        attentional = torch.cat((attentional, attentional.new_empty(steps.rows, width)))
        by_state = weight[:, :width].mT
        by_context = weight[:, width:].mT
        for rows, new, old in steps:
            stack.step(rows, new, old, attentional[old])
            state = stack.top[new]  # (B, W)
            context = attention.attend(rows, state)  # (B, C)
            joined = torch.addmm(bias, state, by_state, out=attentional[new])  # (B, W)
            joined.addmm_(context, by_context).tanh_()
        out, kept = self.results(stack, attention)
        return (*out, attentional[batch:], attention.weights), (attentional, *kept)

    def backward(self, inputs: Any, kept: Any, d_out: Any) -> tuple[Tensor | None, ...]:
        embedded, _, weight, _, *rest = inputs
        steps, stack, attention = self.parts(embedded, rest, kept[1:])
        d_stack = _StackGradient(stack, d_out[:-2])
        d_attention = _AttentionGradient(attention, d_out[-1])
        attentional = kept[0]
        width = stack.top.shape[1]
        batch = steps.sizes[0]
        d_attentional = torch.zeros_like(attentional)
        d_joined = torch.empty_like(attentional[batch:])
        if d_out[-2] is not None:
            d_attentional[batch:] = d_out[-2]
        for rows, new, old in reversed(list(steps)):
            joined = d_joined[rows]  # (B, W)
            rnn.tanh_backward(d_attentional[new], attentional[new], grad_input=joined)
            d_stack.top[new].addmm_(joined, weight[:, :width])
            torch.mm(joined, weight[:, width:], out=d_attention.context[rows])
            d_attention.attend(rows, stack.top[new], d_stack.top[new])
            d_attentional[old] += d_stack.step(rows, new, old)
        d_embedded = d_stack.layers[0].to_input(slice(None), stack.of_embedded)
        d_by_state = d_joined.mT @ stack.top[batch:]
        d_by_context = d_joined.mT @ attention.context
        d_weight = torch.cat((d_by_state, d_by_context), 1)
        d_source = d_attention.gradients(stack.top[batch:])
        d_layers = d_stack.gradients(embedded, attentional[:-batch])
        return d_embedded, d_attentional[:batch], d_weight, d_joined.sum(0), *d_source, *d_layers


def _chunks(flat: Sequence[Any], count: int) -> list[tuple[Any, ...]]:
    """A sequence in `count` parts of equal length."""
    each = len(flat) // count
    return [tuple(flat[i * each : (i + 1) * each]) for i in range(count)]
