"""Recurrent layers with hand-written backward passes equal PyTorch's layers and `attend`, step by step."""

from dataclasses import replace
from itertools import product

import pytest
import torch

import regard
from regard.core.sequence import Tokens
from regard.kernels.recurrent import attention_rnn
from regard.kernels.recurrent.rnn import RnnWeights
from regard.model import rnn_decoder, rnn_encoder
from regard.model.embedding import Projection
from regard.model.memory import Memory
from regard.model.rnn_decoder import RnnDecoder
from regard.model.rnn_decoder_config import RnnDecoderConfig
from regard.model.rnn_encoder import RnnConfig, RnnEncoder
from support.models import VOCABULARY, WIDTH, without_zeros, words

CELLS = ("elman", "gru", "lstm")
WIRINGS = {
    "before": {"attention": "bahdanau"},
    "before gated": {"attention": "bahdanau", "context_gate": True},
    "after fed": {"attention": "luong", "input_feeding": True},
}
TARGETS = torch.randint(VOCABULARY, (4, 5), generator=torch.Generator().manual_seed(1))
SOURCE = Tokens.of([[1, 2, 3], [], [4, 5, 6, 7, 8], [1], [3, 4, 5]])


def decoder(wiring: str, **options) -> RnnDecoder:
    torch.manual_seed(5)
    config = RnnDecoderConfig(dim=WIDTH, dropout=0.0, **WIRINGS[wiring], **options)
    return without_zeros(RnnDecoder(config, words(), Projection(WIDTH, VOCABULARY), WIDTH)).double()


def memory() -> Memory:
    """A memory with arbitrary values in the padding, and a row that is all padding."""
    mask = torch.arange(6) < torch.tensor([6, 2, 0, 4])[:, None]
    states = torch.randn(4, 6, WIDTH, dtype=torch.float64).masked_fill(~mask[..., None], 30.0)
    return Memory(
        states.requires_grad_(), mask, torch.randn(4, WIDTH, dtype=torch.float64).requires_grad_()
    )


def weighted_sum(*tensors: torch.Tensor) -> torch.Tensor:
    """A weighted sum in which every element has a different weight."""
    return sum((x * torch.linspace(-1, 1, x.numel()).to(x).view(x.shape)).sum() for x in tensors)


@pytest.fixture
def slow(monkeypatch):
    """A function that disables the hand-written backward passes: autograd then differentiates every step."""

    def refuse():
        for module in (rnn_decoder, rnn_encoder):
            monkeypatch.setattr(module, "fused_backward", lambda *given: False)

    return refuse


def run(module: RnnDecoder, given: Memory) -> tuple:
    """Two segments: hidden states, attention weights, the final state, and all gradients."""
    parts = []
    first, state = module.carry(TARGETS[:, :2], module.start(given, batch=4), parts)
    second, state = module.carry(TARGETS[:, 2:], state, parts)
    weights = (
        torch.cat(parts, 1) * given.mask[:, None]
    )  # a row with an empty mask may have any weights
    loss = weighted_sum(first, second, 3 * weights, *state.hidden, state.context)
    inputs = (given.states, given.summary, *module.parameters())
    return (
        first,
        second,
        weights,
        state.hidden,
        state.context,
        torch.autograd.grad(loss, inputs, allow_unused=True),
    )


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize(
    ("cell", "wiring", "score"),
    [
        each
        for each in product(CELLS, WIRINGS, regard.SCORES)
        if "gated" not in each[1] or each[2] == "additive"
    ],
)
def test_hand_written_backward_equals_autograd(cell, wiring, score, layers, slow, monkeypatch):
    module, given = decoder(wiring, cell=cell, score=score, layers=layers), memory()
    with monkeypatch.context() as only:
        only.setattr(RnnDecoder, "_advance", None)
        result = run(module, given)
    slow()
    torch.testing.assert_close(result, run(module, given))


@pytest.mark.parametrize(
    ("cell", "bidirectional", "layers"), list(product(CELLS, (True, False), (1, 2)))
)
def test_encoder_with_hand_written_backward_equals_pytorch(
    cell, bidirectional, layers, slow, monkeypatch
):
    module = RnnEncoder(RnnConfig(cell, WIDTH, layers, 0.0, bidirectional), words()).double()

    def run():
        result = module(SOURCE)
        grads = torch.autograd.grad(
            weighted_sum(result.states, result.summary), list(module.parameters())
        )
        return result.states, result.summary, grads

    with monkeypatch.context() as only:
        only.setattr(RnnEncoder, "_packed", None)
        result = run()
    slow()
    torch.testing.assert_close(result, run())


@pytest.mark.parametrize("wiring", WIRINGS)
def test_dropout_between_layers_scales_the_input_of_the_upper_layer(wiring):
    module, given = decoder(wiring, layers=2), memory()
    state = module.start(given, batch=4)
    embedded = module.embed_tokens(TARGETS.mT)
    lower, upper = (RnnWeights(*each) for each in module.rnn.all_weights)
    twice = upper._replace(input=2 * upper.input)
    between = embedded.new_full((1, TARGETS.numel(), WIDTH), 2.0)
    results = []
    for weights, scales in (([lower, upper], between), ([lower, twice], None)):
        layers = attention_rnn.RecurrentLayers(
            "gru", weights, list(zip(*state.hidden, strict=True)), scales
        )
        source = module._source(state, embedded)
        if wiring == "after fed":
            join = module.context_proj.weight, module.context_proj.bias
            states, out, _ = attention_rnn.step_then_attend(
                layers, source, embedded, state.context, *join
            )
        else:
            gate = (
                None
                if module.context_gate is None
                else (module.context_gate.weight, module.context_gate.bias)
            )
            states, out, _ = attention_rnn.attend_then_step(layers, source, embedded, gate)
        loss = weighted_sum(out, *(part for layer in states for part in layer))
        results.append(
            (
                out,
                states,
                torch.autograd.grad(loss, list(module.rnn.parameters()), retain_graph=True),
            )
        )
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("hand_written", [True, False])
def test_the_context_gate_scales_the_context(hand_written, slow):
    """By sigmoid(w · state + b) for each row, of the state before the step."""
    module, given = decoder("before gated"), memory()
    state = module.start(given, batch=4)
    share = torch.sigmoid(
        state.hidden[0][-1] @ module.context_gate.weight[0] + module.context_gate.bias
    )
    assert share.std() > 0.01
    scaled = replace(
        state, memory=state.memory._replace(values=share[:, None, None] * state.memory.values)
    )
    if not hand_written:
        slow()
    result, _ = module.carry(TARGETS[:, :1], state)
    module.context_gate = None
    expected, _ = module.carry(TARGETS[:, :1], scaled)
    torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("wiring", WIRINGS)
def test_dropout_is_drawn_anew_in_training(wiring):
    module, given = decoder(wiring, layers=2), memory()
    module.dropout.p = 0.5
    assert not torch.equal(module.train().hidden(TARGETS, given), module.hidden(TARGETS, given))
    assert torch.equal(module.eval().hidden(TARGETS, given), module.hidden(TARGETS, given))


def test_backward_can_run_twice():
    """It does not overwrite saved tensors."""
    module, given = decoder("after fed"), memory()
    out = module.hidden(TARGETS, given)
    first = torch.autograd.grad(
        out.square().sum(), list(module.rnn.parameters()), retain_graph=True
    )
    assert all(
        map(
            torch.equal,
            first,
            torch.autograd.grad(out.square().sum(), list(module.rnn.parameters())),
        )
    )


@pytest.mark.parametrize("wiring", WIRINGS)
def test_every_step_is_captured(wiring):
    """And the output is bit-identical to the output without capture."""
    module, given, calls, step_calls = decoder(wiring), memory(), [], []
    with regard.capture_attention(calls.append):
        captured = module.hidden(TARGETS, given)
    assert torch.equal(captured, module.hidden(TARGETS, given))
    with torch.no_grad(), regard.capture_attention(step_calls.append):
        module.hidden(TARGETS, given)
    assert len(calls) == len(step_calls) == TARGETS.shape[1]
    for fast, slow in zip(calls, step_calls, strict=True):
        assert fast.source is module
        torch.testing.assert_close(fast.weights(), slow.weights())


@pytest.mark.parametrize("wiring", WIRINGS)
def test_autocast_uses_pytorch_step_by_step(wiring):
    module, given = decoder(wiring).float(), memory()
    given = Memory(given.states.float(), given.mask, given.summary.float())
    with torch.autocast("cpu", torch.bfloat16):
        low = module.hidden(TARGETS, given)
    low.float().square().sum().backward()
    torch.testing.assert_close(low.float(), module.hidden(TARGETS, given), atol=0.1, rtol=0.1)


@pytest.mark.parametrize("wiring", WIRINGS)
def test_backward_under_autocast(wiring):
    """PyTorch's own gradients, of the layer that joins state and context, have a lower precision there."""
    module, given = decoder(wiring).float(), memory()
    given = Memory(given.states.float(), given.mask, given.summary.float())
    loss = module.hidden(TARGETS, given).square().sum()
    expected = torch.autograd.grad(loss, list(module.rnn.parameters()), retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        result = torch.autograd.grad(loss, list(module.rnn.parameters()))
    for got, want in zip(result, expected, strict=True):
        assert (got - want).norm() < 1e-2 * want.norm()


@pytest.mark.parametrize("wiring", WIRINGS)
def test_empty_targets_and_empty_memory(wiring):
    module = decoder(wiring)
    nothing = Memory(
        torch.zeros(4, 0, WIDTH).double(),
        torch.ones(4, 0, dtype=torch.bool),
        torch.zeros(4, WIDTH).double(),
    )
    assert module.hidden(TARGETS, nothing).isfinite().all()
    assert module.hidden(TARGETS[:, :0], memory()).shape == (4, 0, WIDTH)


@pytest.mark.parametrize("wiring", WIRINGS)
def test_dropout_between_three_layers_is_each_ones_own(wiring):
    """Other factors below each upper layer, in the forward and the backward pass."""
    module, given = decoder(wiring, layers=3), memory()
    state, embedded = module.start(given, batch=4), module.embed_tokens(TARGETS.mT)
    lower, *upper = (RnnWeights(*each) for each in module.rnn.all_weights)
    scaled = [
        each._replace(input=factor * each.input)
        for each, factor in zip(upper, (2.0, 5.0), strict=True)
    ]
    between = torch.tensor([2.0, 5.0])[:, None, None].expand(2, TARGETS.numel(), WIDTH).to(embedded)
    results = []
    for weights, scales in (([lower, *upper], between), ([lower, *scaled], None)):
        layers = attention_rnn.RecurrentLayers(
            "gru", weights, list(zip(*state.hidden, strict=True)), scales
        )
        source = module._source(state, embedded)
        if wiring == "after fed":
            join = module.context_proj.weight, module.context_proj.bias
            states, out, _ = attention_rnn.step_then_attend(
                layers, source, embedded, state.context, *join
            )
        else:
            gate = (
                None
                if module.context_gate is None
                else (module.context_gate.weight, module.context_gate.bias)
            )
            states, out, _ = attention_rnn.attend_then_step(layers, source, embedded, gate)
        loss = weighted_sum(out, *(part for layer in states for part in layer))
        results.append(
            (
                out,
                states,
                torch.autograd.grad(loss, list(module.rnn.parameters()), retain_graph=True),
            )
        )
    torch.testing.assert_close(*results)
