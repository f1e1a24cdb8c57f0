"""Recurrent layers with gradients by hand equal PyTorch's layers and `attend`, one step after another."""

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
from regard.model.rnn_decoder import RnnDecoder, RnnDecoderConfig
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
    """With garbage in the padding, and a row that is all padding."""
    mask = torch.arange(6) < torch.tensor([6, 2, 0, 4])[:, None]
    states = torch.randn(4, 6, WIDTH, dtype=torch.float64).masked_fill(~mask[..., None], 30.0)
    return Memory(states.requires_grad_(), mask, torch.randn(4, WIDTH, dtype=torch.float64).requires_grad_())


def weighed(*tensors: torch.Tensor) -> torch.Tensor:
    """One number that every number of them changes, each in its own way."""
    return sum((x * torch.linspace(-1, 1, x.numel()).to(x).view(x.shape)).sum() for x in tensors)


@pytest.fixture
def slow(monkeypatch):
    """Call it, and from there on autograd goes through every step."""

    def refuse():
        for module in (rnn_decoder, rnn_encoder):
            monkeypatch.setattr(module, "fused_backward", lambda *given: False)

    return refuse


def run(module: RnnDecoder, given: Memory) -> tuple:
    """Two stretches: values, where they looked, the state after them, and all gradients."""
    looked = []
    first, state = module.carry(TARGETS[:, :2], module.start(given, batch=4), looked)
    second, state = module.carry(TARGETS[:, 2:], state, looked)
    looks = torch.cat(looked, 1) * given.mask[:, None]  # of a row that sees nothing, any weights will do
    loss = weighed(first, second, 3 * looks, *state.hidden, state.context)
    inputs = (given.states, given.summary, *module.parameters())
    return first, second, looks, state.hidden, state.context, torch.autograd.grad(loss, inputs, allow_unused=True)


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize(
    ("cell", "wiring", "score"),
    [each for each in product(CELLS, WIRINGS, regard.SCORES) if "gated" not in each[1] or each[2] == "additive"],
)
def test_steps_by_hand_equal_steps(cell, wiring, score, layers, slow, monkeypatch):
    module, given = decoder(wiring, cell=cell, score=score, layers=layers), memory()
    with monkeypatch.context() as only:
        only.setattr(RnnDecoder, "_advance", None)
        found = run(module, given)
    slow()
    torch.testing.assert_close(found, run(module, given))


@pytest.mark.parametrize(("cell", "bidirectional", "layers"), list(product(CELLS, (True, False), (1, 2))))
def test_encoder_by_hand_equals_packed(cell, bidirectional, layers, slow, monkeypatch):
    module = RnnEncoder(RnnConfig(cell, WIDTH, layers, 0.0, bidirectional), words()).double()

    def run():
        found = module(SOURCE)
        grads = torch.autograd.grad(weighed(found.states, found.summary), list(module.parameters()))
        return found.states, found.summary, grads

    with monkeypatch.context() as only:
        only.setattr(RnnEncoder, "_packed", None)
        found = run()
    slow()
    torch.testing.assert_close(found, run())


@pytest.mark.parametrize("wiring", WIRINGS)
def test_dropout_between_layers_scales_what_the_upper_takes_in(wiring):
    module, given = decoder(wiring, layers=2), memory()
    state = module.start(given, batch=4)
    embedded = module.embed_tokens(TARGETS.mT)
    lower, upper = (RnnWeights(*each) for each in module.rnn.all_weights)
    twice = upper._replace(input=2 * upper.input)
    between = embedded.new_full((1, TARGETS.numel(), WIDTH), 2.0)
    results = []
    for weights, scales in (([lower, upper], between), ([lower, twice], None)):
        layers = attention_rnn.RecurrentLayers("gru", weights, list(zip(*state.hidden, strict=True)), scales)
        source = module._source(state, embedded)
        if wiring == "after fed":
            join = module.context_proj.weight, module.context_proj.bias
            states, out, _ = attention_rnn.step_then_attend(layers, source, embedded, state.context, *join)
        else:
            gate = None if module.context_gate is None else (module.context_gate.weight, module.context_gate.bias)
            states, out, _ = attention_rnn.attend_then_step(layers, source, embedded, gate)
        loss = weighed(out, *(part for layer in states for part in layer))
        results.append((out, states, torch.autograd.grad(loss, list(module.rnn.parameters()), retain_graph=True)))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("by_hand", [True, False])
def test_a_gate_scales_what_is_seen(by_hand, slow):
    """By a number for each row, sigmoid(w · state + b), of the state before the step."""
    module, given = decoder("before gated"), memory()
    state = module.start(given, batch=4)
    share = torch.sigmoid(state.hidden[0][-1] @ module.context_gate.weight[0] + module.context_gate.bias)
    assert share.std() > 0.01
    scaled = replace(state, memory=state.memory._replace(values=share[:, None, None] * state.memory.values))
    if not by_hand:
        slow()
    found, _ = module.carry(TARGETS[:, :1], state)
    module.context_gate = None
    wanted, _ = module.carry(TARGETS[:, :1], scaled)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("wiring", WIRINGS)
def test_dropout_is_drawn_anew_while_training(wiring):
    module, given = decoder(wiring, layers=2), memory()
    module.dropout.p = 0.5
    assert not torch.equal(module.train().hidden(TARGETS, given), module.hidden(TARGETS, given))
    assert torch.equal(module.eval().hidden(TARGETS, given), module.hidden(TARGETS, given))


def test_one_state_may_be_used_twice():
    """The backward leaves what was kept as it was."""
    module, given = decoder("after fed"), memory()
    out = module.hidden(TARGETS, given)
    first = torch.autograd.grad(out.square().sum(), list(module.rnn.parameters()), retain_graph=True)
    assert all(map(torch.equal, first, torch.autograd.grad(out.square().sum(), list(module.rnn.parameters()))))


@pytest.mark.parametrize("wiring", WIRINGS)
def test_who_listens_hears_every_step(wiring):
    """And changes nothing: what comes out is the same to the last bit."""
    module, given, heard, slowly = decoder(wiring), memory(), [], []
    with regard.capture_attention(heard.append):
        listened = module.hidden(TARGETS, given)
    assert torch.equal(listened, module.hidden(TARGETS, given))
    with torch.no_grad(), regard.capture_attention(slowly.append):
        module.hidden(TARGETS, given)
    assert len(heard) == len(slowly) == TARGETS.shape[1]
    for fast, slow in zip(heard, slowly, strict=True):
        assert fast.source is module
        torch.testing.assert_close(fast.weights(), slow.weights())


@pytest.mark.parametrize("wiring", WIRINGS)
def test_autocast_goes_step_by_step(wiring):
    module, given = decoder(wiring).float(), memory()
    given = Memory(given.states.float(), given.mask, given.summary.float())
    with torch.autocast("cpu", torch.bfloat16):
        low = module.hidden(TARGETS, given)
    low.float().square().sum().backward()
    torch.testing.assert_close(low.float(), module.hidden(TARGETS, given), atol=0.1, rtol=0.1)


@pytest.mark.parametrize("wiring", WIRINGS)
def test_autocast_may_be_around_a_backward(wiring):
    """Where PyTorch's own gradients, of what joins state and look, are lower."""
    module, given = decoder(wiring).float(), memory()
    given = Memory(given.states.float(), given.mask, given.summary.float())
    loss = module.hidden(TARGETS, given).square().sum()
    wanted = torch.autograd.grad(loss, list(module.rnn.parameters()), retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        found = torch.autograd.grad(loss, list(module.rnn.parameters()))
    for got, expected in zip(found, wanted, strict=True):
        assert (got - expected).norm() < 1e-2 * expected.norm()


@pytest.mark.parametrize("wiring", WIRINGS)
def test_no_tokens_and_no_source(wiring):
    module = decoder(wiring)
    nothing = Memory(
        torch.zeros(4, 0, WIDTH).double(), torch.ones(4, 0, dtype=torch.bool), torch.zeros(4, WIDTH).double()
    )
    assert module.hidden(TARGETS, nothing).isfinite().all()
    assert module.hidden(TARGETS[:, :0], memory()).shape == (4, 0, WIDTH)
