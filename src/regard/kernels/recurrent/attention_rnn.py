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
    matrix: (
        Float[Tensor, "W D"] | None
    )  # projects a state to its query; None: the state is the query
    score_function: ScoreFunction

    @property
    def scale(self) -> float:
        return (
            self.score_function.scale if isinstance(self.score_function, DotScoreFunction) else 1.0
        )

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        # A row with an empty mask gives zeros: its values are zero, under any weights, which get no gradient either.
        empty = ~self.mask.any(1, keepdim=True)
        bias = self.keys.new_zeros(self.mask.shape).masked_fill_(~(self.mask | empty), -torch.inf)
        weight = (
            self.score_function.weight[0]
            if isinstance(self.score_function, AdditiveScoreFunction)
            else None
        )
        return self.keys, self.values.masked_fill(empty[..., None], 0.0), bias, self.matrix, weight


@dataclass(frozen=True)
class RecurrentLayers:
    """The layers of a recurrent stack, with their initial states."""

    cell: str
    weights: Sequence[RnnWeights]
    start: Sequence[RnnStates]
    between: Float[Tensor, "above rows W"] | None  # dropout factors between layers

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        each = zip(self.weights, self.start, strict=True)
        return self.between, *(x for weights, start in each for x in (*weights, *start))


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
    return _run(_AttendThenStep, layers, source, embedded, *(gate or (None, None)))


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
    tensors = embedded.flatten(0, 1), *given, *source.tensors, *layers.tensors
    out = rnn.HandWrittenBackward.apply(run, *tensors)  # type: ignore[no-untyped-call]
    *states, attended, weights = (x.unflatten(0, embedded.shape[:2]) for x in out)
    return _chunks(states, len(layers.weights)), attended, weights


class _Dot:
    """Scaled dot-product scores of one query per sequence."""

    def __init__(self, keys: Tensor, scale: float) -> None:
        self.keys, self.scale = keys, scale

    def scores(self, query: Tensor) -> Tensor:
        return torch.bmm(query[:, None], self.keys.mT)[:, 0].mul_(self.scale)

    def to_query(self, query: Tensor, d_scores: Tensor) -> Tensor:
        return torch.bmm(d_scores[:, None], self.keys)[:, 0].mul_(self.scale)

    def gradients(
        self, queries: Float[Tensor, "T B D"], d_scores: Float[Tensor, "T B S"]
    ) -> tuple[Tensor, None]:
        """The gradient of the keys, after the last step; there is no weight."""
        return torch.bmm(d_scores.permute(1, 2, 0), queries.transpose(0, 1)).mul_(self.scale), None


class _Additive:
    """w · tanh(q + k). The backward recomputes tanh(q + k) (B, S, D): storing it takes as long, and far more memory."""

    def __init__(self, keys: Tensor, weight: Tensor) -> None:
        self.keys, self.weight, self.one, self.hidden = (
            keys,
            weight,
            keys.new_ones(()),
            torch.empty_like(keys),
        )
        self.d_keys, self.d_weight = torch.zeros_like(keys), torch.zeros_like(weight)

    def scores(self, query: Tensor) -> Tensor:
        return (
            torch.add(self.keys, query[:, None], out=self.hidden).tanh_() @ self.weight
        )  # (B, S, D) to (B, S)

    def to_query(self, query: Tensor, d_scores: Tensor) -> Tensor:
        hidden = torch.add(self.keys, query[:, None], out=self.hidden).tanh_()
        self.d_weight.addmv_(hidden.flatten(0, 1).mT, d_scores.flatten())
        slope = torch.addcmul(self.one, hidden, hidden, value=-1, out=hidden)  # tanh' = 1 - tanh²
        self.d_keys.addcmul_(slope, d_scores[..., None])
        return torch.bmm(d_scores[:, None], slope)[:, 0].mul_(self.weight)

    def gradients(self, queries: Tensor, d_scores: Tensor) -> tuple[Tensor, Tensor]:
        return self.d_keys.mul_(self.weight), self.d_weight


class _Attention:
    """Attention of a state at each step."""

    def __init__(
        self, scale: float, source: Sequence[Any], rows: int, kept: Sequence[Tensor]
    ) -> None:
        keys, self.values, self.bias, self.matrix, weight = source
        self.scoring = _Dot(keys, scale) if weight is None else _Additive(keys, weight)
        widths = self.values.shape[2], keys.shape[1], 0 if self.matrix is None else keys.shape[2]
        self.kept = kept or [keys.new_empty(rows, width) for width in widths]
        self.context, self.weights, self.queries = self.kept

    def attend(self, rows: slice, state: Tensor) -> Tensor:
        query = (
            state if self.matrix is None else torch.mm(state, self.matrix, out=self.queries[rows])
        )
        weights = torch.softmax(
            self.scoring.scores(query).add_(self.bias), -1, out=self.weights[rows]
        )
        torch.bmm(weights[:, None], self.values, out=self.context[rows, None])
        return self.context[rows]


class _AttentionGradient:
    def __init__(self, attention: _Attention, d_weights: Tensor | None) -> None:
        self.attention, self.context, self.weights = (
            attention,
            torch.zeros_like(attention.context),
            d_weights,
        )
        self.scores, self.queries = (
            torch.empty_like(attention.weights),
            torch.empty_like(attention.queries),
        )

    def attend(self, rows: slice, state: Tensor, d_state: Tensor) -> None:
        """Add the gradient of the state, given that of the context."""
        attention, scores = self.attention, self.scores[rows]
        d_weights = torch.bmm(self.context[rows, None], attention.values.mT)[:, 0]
        if self.weights is not None:
            d_weights += self.weights[rows]
        scores.copy_(softmax_backward(d_weights, attention.weights[rows], -1, scores.dtype))
        if attention.matrix is None:
            d_state += attention.scoring.to_query(state, scores)
        else:
            self.queries[rows] = attention.scoring.to_query(attention.queries[rows], scores)
            d_state.addmm_(self.queries[rows], attention.matrix.mT)

    def gradients(self, queried: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the source's tensors, after the last step."""
        attention = self.attention
        queries = queried if attention.matrix is None else attention.queries
        d_matrix = None if attention.matrix is None else queried.mT @ self.queries
        every = (queries, self.scores, attention.weights, self.context)
        queries, scores, weights, context = (
            x.view(-1, len(attention.bias), x.shape[1]) for x in every
        )  # (T, B, …)
        d_keys, d_weight = attention.scoring.gradients(queries, scores)
        return (
            d_keys,
            torch.bmm(weights.permute(1, 2, 0), context.transpose(0, 1)),
            None,
            d_matrix,
            d_weight,
        )


class _Gate:
    """Scales the context by sigmoid(w · state + b); without weights, the identity."""

    def __init__(
        self, weight: Tensor | None, bias: Tensor | None, context: Tensor, *kept: Tensor
    ) -> None:
        self.weight, self.bias, self.context = weight, bias, context
        self.kept = (
            kept
            if kept or weight is None
            else (context.new_empty(len(context), 1), torch.empty_like(context))
        )
        self.share, self.gated = self.kept or (context[:, :0], context)

    def open(self, rows: slice, state: Tensor) -> Tensor:
        if self.weight is not None:
            share = torch.addmm(self.bias, state, self.weight.mT, out=self.share[rows]).sigmoid_()  # type: ignore[arg-type]
            torch.mul(self.context[rows], share, out=self.gated[rows])
        return self.gated[rows]


class _GateGradient:
    def __init__(self, gate: _Gate, d_context: Tensor, d_gated: Tensor | None) -> None:
        self.gate, self.context, self.logits = gate, d_context, torch.empty_like(gate.share)
        self.gated = d_context if gate.weight is None else torch.zeros_like(d_context)
        if d_gated is not None:
            self.gated += d_gated

    def open(self, rows: slice, d_state: Tensor) -> None:
        """The gradient of the context, given that of the gated context; that of the state is added to."""
        gate = self.gate
        if gate.weight is not None:
            share, d_gated = gate.share[rows], self.gated[rows]
            torch.mul(d_gated, share, out=self.context[rows])
            d_share = (d_gated * gate.context[rows]).sum(1, keepdim=True)
            d_state.addmm_(
                rnn.sigmoid_backward(d_share, share, grad_input=self.logits[rows]), gate.weight
            )

    def gradients(self, queried: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Gradients of the gate's tensors, after the last step."""
        return (
            (None, None)
            if self.gate.weight is None
            else (self.logits.mT @ queried, self.logits.sum(0))
        )


class _Stack:
    """Stacked layers; the lowest has a fed-back input besides the embedded tokens."""

    def __init__(self, between: Tensor | None, layers: Sequence[RnnLayer], embedded: int) -> None:
        self.between, self.layers, self.top = between, layers, layers[-1].states[0]
        self.of_embedded, self.of_fed = layers[0].input[:, :embedded], layers[0].input[:, embedded:]

    def step(self, rows: slice, new: slice, old: slice, fed: Tensor) -> None:
        for i, layer in enumerate(self.layers):
            layer.take(
                rows, self.below(i, rows, new) if i else fed, layer.input if i else self.of_fed
            )
            layer.step(rows, new, old)

    def below(self, i: int, rows: slice, new: slice) -> Tensor:
        state = self.layers[i - 1].states[0][new]
        return state if self.between is None else state * self.between[i - 1, rows]


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
            self.layers[i - 1].states[0][new] += (
                d_below if between is None else d_below * between[i - 1, rows]
            )
        self.layers[0].step(rows, new, old)
        return self.layers[0].to_input(rows, self.stack.of_fed)

    def gradients(self, embedded: Tensor, fed: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the tensors of `RecurrentLayers`, after the last step."""
        batch, out = self.stack.layers[0].steps.sizes[0], []
        for i, layer in enumerate(self.layers):
            inputs = (
                (self.stack.below(i, slice(None), slice(batch, None)),) if i else (embedded, fed)
            )
            out += [*layer.weights(*inputs), *(s[:batch] for s in layer.states)]
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
        source, between, layers = rest[:5], rest[5], _chunks(rest[6:], self.layers)
        steps = StepSchedule([len(source[0])] * self.length)
        attention = _Attention(self.scale, source, steps.rows, kept[:3])
        if kept:
            pairs = zip(layers, _chunks(kept[3:], self.layers), strict=True)
            restored = [RnnLayer(self.cell, steps, RnnWeights(*x[:4]), *k) for x, k in pairs]
            return steps, _Stack(between, restored, embedded.shape[1]), attention
        begun = [RnnLayer.begin(self.cell, steps, RnnWeights(*x[:4]), x[4:]) for x in layers]
        stack = _Stack(between, begun, embedded.shape[1])
        begun[0].take(slice(None), embedded, stack.of_embedded)
        return steps, stack, attention

    def results(self, stack: _Stack, attention: _Attention) -> tuple[list[Tensor], list[Tensor]]:
        batch, layers = len(attention.bias), stack.layers
        out = [s[batch:] for layer in layers for s in layer.states]
        return out, [
            *attention.kept,
            *(x for layer in layers for x in (layer.gates, *layer.states)),
        ]


class _AttendThenStep(_AttentionRnn):
    def forward(
        self, embedded: Tensor, weight: Any, bias: Any, *rest: Any
    ) -> tuple[tuple[Tensor, ...], Any]:
        steps, stack, attention = self.parts(embedded, rest)
        gate = _Gate(weight, bias, attention.context)
        for rows, new, old in steps:
            attention.attend(rows, stack.top[old])
            stack.step(rows, new, old, gate.open(rows, stack.top[old]))
        out, kept = self.results(stack, attention)
        return (*out, gate.gated, attention.weights), (*kept, *gate.kept)

    def backward(self, inputs: Any, kept: Any, d_out: Any) -> tuple[Tensor | None, ...]:
        embedded, weight, bias, *rest = inputs
        kept, kept_gate = (kept, ()) if weight is None else (kept[:-2], kept[-2:])
        steps, stack, attention = self.parts(embedded, rest, kept)
        gate = _Gate(weight, bias, attention.context, *kept_gate)
        d_stack, d_attention = (
            _StackGradient(stack, d_out[:-2]),
            _AttentionGradient(attention, d_out[-1]),
        )
        d_gate = _GateGradient(gate, d_attention.context, d_out[-2])
        for rows, new, old in reversed(list(steps)):
            d_gate.gated[rows] += d_stack.step(rows, new, old)
            d_gate.open(rows, d_stack.top[old])
            d_attention.attend(rows, stack.top[old], d_stack.top[old])
        d_embedded, queried = (
            d_stack.layers[0].to_input(slice(None), stack.of_embedded),
            stack.top[: steps.rows],
        )
        d_source, d_layers = d_attention.gradients(queried), d_stack.gradients(embedded, gate.gated)
        return d_embedded, *d_gate.gradients(queried), *d_source, *d_layers


class _StepThenAttend(_AttentionRnn):
    def forward(
        self, embedded: Tensor, attentional: Tensor, weight: Tensor, bias: Tensor, *rest: Any
    ) -> tuple[Any, Any]:
        steps, stack, attention = self.parts(embedded, rest)
        width, batch = stack.top.shape[1], len(attentional)
        attentional = torch.cat((attentional, attentional.new_empty(steps.rows, width)))
        for rows, new, old in steps:
            stack.step(rows, new, old, attentional[old])
            context, state = attention.attend(rows, stack.top[new]), stack.top[new]
            joined = torch.addmm(bias, state, weight[:, :width].mT, out=attentional[new])
            joined.addmm_(context, weight[:, width:].mT).tanh_()
        out, kept = self.results(stack, attention)
        return (*out, attentional[batch:], attention.weights), (attentional, *kept)

    def backward(self, inputs: Any, kept: Any, d_out: Any) -> tuple[Tensor | None, ...]:
        embedded, _, weight, _, *rest = inputs
        steps, stack, attention = self.parts(embedded, rest, kept[1:])
        d_stack, d_attention = (
            _StackGradient(stack, d_out[:-2]),
            _AttentionGradient(attention, d_out[-1]),
        )
        attentional, width, batch = kept[0], stack.top.shape[1], steps.sizes[0]
        d_attentional, d_joined = (
            torch.zeros_like(attentional),
            torch.empty_like(attentional[batch:]),
        )
        if d_out[-2] is not None:
            d_attentional[batch:] = d_out[-2]
        for rows, new, old in reversed(list(steps)):
            joined = rnn.tanh_backward(
                d_attentional[new], attentional[new], grad_input=d_joined[rows]
            )
            d_stack.top[new].addmm_(joined, weight[:, :width])
            torch.mm(joined, weight[:, width:], out=d_attention.context[rows])
            d_attention.attend(rows, stack.top[new], d_stack.top[new])
            d_attentional[old] += d_stack.step(rows, new, old)
        d_embedded = d_stack.layers[0].to_input(slice(None), stack.of_embedded)
        d_weight = torch.cat((d_joined.mT @ stack.top[batch:], d_joined.mT @ attention.context), 1)
        d_source, d_layers = (
            d_attention.gradients(stack.top[batch:]),
            d_stack.gradients(embedded, attentional[:-batch]),
        )
        return d_embedded, d_attentional[:batch], d_weight, d_joined.sum(0), *d_source, *d_layers


def _chunks(flat: Sequence[Any], count: int) -> list[tuple[Any, ...]]:
    """A sequence in `count` parts of equal length."""
    each = len(flat) // count
    return [tuple(flat[i * each : (i + 1) * each]) for i in range(count)]
