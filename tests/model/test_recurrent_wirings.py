"""How a recurrent decoder without attention reads its source, step by step against the definition."""

import pytest
import torch
from torch import nn

import regard
from regard.core.errors import InvalidRecipe
from regard.core.sequence import Tokens
from regard.model.memory import Memory
from regard.model.seq2seq import Seq2Seq
from support.models import without_zeros

WIDTH = 12
VOCABULARY = 9
TARGETS = torch.tensor([[1, 4, 2, 8], [1, 3, 3, 5], [1, 0, 7, 6]])
TEXTS = Tokens.of([[1, 2, 3, 4], [5], [6, 7, 8]])
LABELS = torch.tensor([2, 0, 1])
IMAGES = torch.rand(3, 3, 8, 12, generator=torch.Generator().manual_seed(4))
CELLS = {"elman": nn.RNNCell, "gru": nn.GRUCell, "lstm": nn.LSTMCell}


def built(encoder: dict, **decoder: object) -> Seq2Seq:
    torch.manual_seed(3)
    part = {"kind": "rnn", "dim": WIDTH, "attention": "none", **decoder}
    table = {"encoder": encoder, "decoder": part, "vocab_size": VOCABULARY}
    return without_zeros(regard.build(table)).eval()


def cell_of(module: nn.RNNBase, kind: str) -> nn.Module:
    """PyTorch's cell with the weights of its layer of one direction."""
    cell = CELLS[kind](module.input_size, module.hidden_size)
    for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        getattr(cell, name).data.copy_(getattr(module, f"{name}_l0"))
    return cell


def decoded(
    model: Seq2Seq, kind: str, state: torch.Tensor, fed: torch.Tensor | None
) -> torch.Tensor:
    """The logits of the targets, from an initial state (B, states · W) and what each step reads beside its token."""
    decoder = model.decoder
    cell = cell_of(decoder.rnn, kind)
    parts = state.split(WIDTH, -1)
    hidden = parts[0] if kind != "lstm" else parts
    logits = []
    for tokens in TARGETS.T:
        x = decoder.embed_tokens(tokens)
        x = x if fed is None else torch.cat((x, fed), -1)
        hidden = cell(x, hidden)
        logits.append(decoder.project(hidden[0] if kind == "lstm" else hidden))
    return torch.stack(logits, 1)


def final_states(model: Seq2Seq, kind: str) -> torch.Tensor:
    """h_T of each text: the state after its last token, one token after another."""
    encoder = model.encoder
    states = []
    cell = cell_of(encoder.rnn, kind)
    for ids, length in zip(TEXTS.ids, TEXTS.lengths.tolist(), strict=True):
        hidden = None
        for token in ids[:length]:
            hidden = cell(encoder.embed_tokens(token)[None], hidden)
        states.append(hidden[0] if kind == "lstm" else hidden)
    return torch.cat(states)


@pytest.mark.parametrize("kind", CELLS)
@torch.no_grad()
def test_a_zero_state_and_the_last_encoder_state_at_every_step(kind):
    """The vanilla encoder-decoder: s0 = 0 and c = h_T."""
    encoder = {"kind": "rnn", "cell": kind, "dim": WIDTH, "bidirectional": False}
    model = built(encoder, cell=kind, initial_state="zero")
    zero = torch.zeros(3, 2 * WIDTH if kind == "lstm" else WIDTH)
    wanted = decoded(model, kind, zero, final_states(model, kind))
    torch.testing.assert_close(model(TEXTS, TARGETS), wanted)


@pytest.mark.parametrize("kind", CELLS)
@torch.no_grad()
def test_an_mlp_of_image_features_is_the_initial_state_and_the_context(kind):
    """The image captioner without attention: c = h0 = MLP(z), where z is the mean of the CNN's regions."""
    encoder = {"kind": "cnn", "dim": 10, "channels": [4, 8]}
    model = built(encoder, cell=kind, initial_state="mlp", context="initial_state")
    z = model.encoder(IMAGES).states.mean(1)
    first, _, second = model.decoder.initial_proj
    assert (first.in_features, first.out_features) == (10, WIDTH)
    hidden = (z @ first.weight.T + first.bias).clamp(min=0)
    state = (hidden @ second.weight.T + second.bias).tanh()
    wanted = decoded(model, kind, state, state[:, :WIDTH])
    torch.testing.assert_close(model(IMAGES, TARGETS), wanted)


@pytest.mark.parametrize("kind", CELLS)
@torch.no_grad()
def test_a_label_may_be_the_initial_state_alone(kind):
    model = built({"kind": "label", "dim": 5}, cell=kind, context="none")
    assert model.decoder.rnn.input_size == WIDTH
    layer = model.decoder.initial_proj
    state = torch.tanh(model.encoder.embed_tokens(LABELS) @ layer.weight.T + layer.bias)
    torch.testing.assert_close(model(LABELS, TARGETS), decoded(model, kind, state, None))


@pytest.mark.parametrize("layers", [1, 2])
def test_parameters_of_each_wiring(layers):
    """Counted by hand, for a GRU over a memory of 10 dimensions."""
    counts = {}
    for initial_state in ("summary", "mlp", "zero"):
        for context in ("summary", "initial_state", "none"):
            if initial_state == "zero" and context != "summary":
                continue
            options = {"initial_state": initial_state, "context": context, "layers": layers}
            model = built({"kind": "bag", "dim": 10}, **options)
            counts[initial_state, context] = sum(p.numel() for p in model.decoder.parameters())
    initial = {
        "summary": 11 * layers * WIDTH,
        "mlp": 11 * WIDTH + (WIDTH + 1) * layers * WIDTH,
        "zero": 0,
    }
    fed = {"summary": 10, "initial_state": WIDTH, "none": 0}
    smallest = counts["summary", "none"] - initial["summary"]
    for (initial_state, context), count in counts.items():
        assert count - smallest == initial[initial_state] + 3 * WIDTH * fed[context]


@torch.no_grad()
def test_attention_may_start_from_an_mlp_of_the_summary():
    encoder = {"kind": "bag", "dim": WIDTH}
    model = built(encoder, attention="luong", initial_state="mlp")
    memory = model.encode(TEXTS)
    state = model.decoder.start(memory, batch=3)
    wanted = torch.tanh(model.decoder.initial_proj(memory.summary))
    torch.testing.assert_close(state.hidden[0][0], wanted)


NO_ATTENTION = {"attention": "none"}
REFUSED = {
    "nothing is read": (
        NO_ATTENTION | {"initial_state": "zero", "context": "none"},
        r"model\.decoder\.context: wanted 'summary' with initial_state = 'zero' and without attention",
    ),
    "a zero context": (
        NO_ATTENTION | {"initial_state": "zero", "context": "initial_state"},
        r"model\.decoder\.context: wanted 'summary' with initial_state = 'zero' and without attention",
    ),
    "attention": (
        {"attention": "bahdanau", "context": "none"},
        r"model\.decoder\.context: wanted nothing here: attention computes another context",
    ),
}


@pytest.mark.parametrize(("decoder", "message"), REFUSED.values(), ids=REFUSED)
def test_wirings_that_mean_nothing_are_refused(decoder, message):
    with pytest.raises(InvalidRecipe, match=message):
        built({"kind": "bag", "dim": WIDTH}, **decoder)


def test_a_language_model_has_no_context_of_a_source():
    table = {"decoder": {"kind": "rnn", "dim": WIDTH, "context": "none"}, "vocab_size": 9}
    with pytest.raises(InvalidRecipe, match=r"model\.decoder\.context: wanted nothing here"):
        regard.build(table)


@pytest.mark.parametrize("context", ["summary", "initial_state", "none"])
@pytest.mark.parametrize("initial_state", ["summary", "mlp"])
@torch.no_grad()
def test_the_bottleneck_is_all_that_the_decoder_reads(initial_state, context):
    """A memory with the same vector and any other states gives the same logits, bit for bit."""
    encoder = {"kind": "rnn", "dim": WIDTH}
    model = built(encoder, initial_state=initial_state, context=context)
    memory = model.encode(TEXTS)
    vector = model.decoder.bottleneck(memory)
    other = Memory(torch.randn(3, 7, WIDTH), torch.rand(3, 7) > 0.5, vector)
    assert torch.equal(model.decoder(TARGETS, other), model.decoder(TARGETS, memory))
    changed = Memory(memory.states, memory.mask, vector + 0.1)
    assert not torch.allclose(model.decoder(TARGETS, changed), model.decoder(TARGETS, memory))


def test_a_decoder_with_attention_has_no_bottleneck():
    for decoder in ({"kind": "rnn"}, {"kind": "conv"}, {"kind": "transformer"}):
        table = {"encoder": {"kind": "bag"}, "decoder": decoder, "vocab_size": 9}
        model = regard.build(table)
        assert model.decoder.bottleneck(model.encode(TEXTS)) is None
