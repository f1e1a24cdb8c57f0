"""Dropout of recurrent decoders and of embeddings: what it zeroes, what it scales, and that evaluation has none."""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import regard
from regard.kernels.layers import residual_norm
from regard.kernels.layers.dropout import Dropout, dropped_outcomes
from regard.kernels.recurrent import rnn
from regard.model.embedding import Embedding

TOKENS = torch.randint(4, 40, (6, 9), generator=torch.Generator().manual_seed(2))
REGULARIZED = {
    "variational_dropout": True,
    "recurrent_dropout": 0.4,
    "input_dropout": 0.3,
    "layer_dropout": 0.2,
}


def language_model(**options):
    torch.manual_seed(1)
    decoder = {"kind": "rnn", "cell": "lstm", "dim": 16, "layers": 2, "dropout": 0.5} | options
    return regard.build({"decoder": decoder, "vocab_size": 40})


def test_a_variational_mask_is_the_same_at_all_positions_of_a_sequence():
    states = language_model(variational_dropout=True).train().decoder.hidden(TOKENS)
    dropped = states == 0
    assert torch.equal(dropped, dropped[:, :1].expand_as(dropped))
    assert 0.3 < dropped.float().mean() < 0.7
    assert not torch.equal(dropped[0], dropped[1])  # another mask for each sequence
    ordinary = language_model().train().decoder.hidden(TOKENS) == 0
    assert not torch.equal(ordinary, ordinary[:, :1].expand_as(ordinary))


@pytest.mark.parametrize("cell", ["elman", "gru", "lstm"])
def test_without_probabilities_the_own_layers_equal_pytorchs(cell):
    """Values and gradients of the path with dropout of its own, with all probabilities zero."""
    none = {"cell": cell, "dropout": 0.0}
    plain, own = language_model(**none), language_model(**none, variational_dropout=True)
    own.load_state_dict(plain.state_dict())
    results = []
    for model in (plain, own):
        states, state = model.train().decoder.carry(TOKENS, model.decoder.start(None, batch=6))
        (states * torch.linspace(-1, 1, states.numel()).view_as(states)).sum().backward()
        results.append((states, *state.hidden, *(p.grad for p in model.decoder.rnn.parameters())))
    for got, wanted in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-4)


def test_weight_dropping_zeroes_hidden_to_hidden_weights_alone(monkeypatch):
    model, used, right = language_model(recurrent_dropout=0.4).train(), [], rnn.scan

    def scan(cell, x, sizes, start, weights):
        used.append(weights)
        return right(cell, x, sizes, start, weights)

    monkeypatch.setattr(rnn, "scan", scan)
    model.decoder.hidden(TOKENS)
    for weights, parameters in zip(used, model.decoder.rnn.all_weights, strict=True):
        given = rnn.RnnWeights(*parameters)
        kept = weights.state != 0
        assert 0.5 < kept.float().mean() < 0.7
        torch.testing.assert_close(
            weights.state[kept], given.state[kept] / 0.6, rtol=1e-3, atol=1e-6
        )
        assert torch.equal(weights.input, given.input)


def test_evaluation_has_no_dropout():
    model, plain = language_model(**REGULARIZED).eval(), language_model(dropout=0.0).eval()
    plain.load_state_dict(model.state_dict())
    assert torch.equal(model(None, TOKENS), plain(None, TOKENS))


def test_embedding_dropout_drops_a_token_wherever_it_occurs():
    embedding = Embedding(40, 8, dropout=0.5)
    rows = embedding.train()(TOKENS)
    dropped = (rows == 0).all(-1)
    by_token = [dropped[token == TOKENS] for token in TOKENS.unique()]
    assert all(each.all() or not each.any() for each in by_token)
    assert 0.2 < torch.stack([each[0] for each in by_token]).float().mean() < 0.8
    plain = embedding.eval()(TOKENS)
    torch.testing.assert_close(rows[~dropped], 2 * plain[~dropped])


@pytest.mark.parametrize(
    "decoder", [{"attention": "bahdanau"}, {"attention": "luong", "input_feeding": True}]
)
@pytest.mark.parametrize("key", ["recurrent_dropout", "variational_dropout"])
def test_decoders_that_are_computed_step_by_step_refuse_masks_of_whole_sequences(decoder, key):
    side = {"kind": "rnn", "dim": 8}
    table = {
        "encoder": side,
        "decoder": side | decoder | {key: 0.5 if "recurrent" in key else True},
        "vocab_size": 9,
    }
    with pytest.raises(
        regard.InvalidRecipe, match=rf"model\.decoder\.{key}: wanted nothing with 'bahdanau'"
    ):
        regard.build(table)


def test_dropout_without_effect_is_refused():
    with pytest.raises(regard.InvalidRecipe, match=r"layer_dropout: wanted nothing with one layer"):
        language_model(layers=1, layer_dropout=0.5)
    with pytest.raises(
        regard.InvalidRecipe, match=r"model\.embedding_dropout: wanted nothing here"
    ):
        regard.build(
            {
                "encoder": {"kind": "cnn"},
                "pool": {"kind": "mean"},
                "num_labels": 2,
                "embedding_dropout": 0.1,
            }
        )


def test_the_fused_residual_draws_a_seed_for_each_call(monkeypatch):
    """What a GPU's kernel is given, recorded on a CPU; without dropout, nothing is drawn."""
    seeds = list[int]()

    class Recorded:
        @staticmethod
        def apply(x, added, weight, bias, seed, eps, dropped, dtype):
            seeds.extend(seed.tolist() if dropped else [])
            return x, x

    monkeypatch.setattr(residual_norm, "_AddNorm", Recorded)
    monkeypatch.setattr(residual_norm.triton_launch, "can_launch", lambda *tensors: True)
    given, norm = residual_norm.PendingResidual(torch.ones(2, 4), torch.ones(2, 4)), nn.LayerNorm(4)
    torch.manual_seed(5)
    wanted = [int(torch.randint(2**62, (1,))) for _ in range(3)]
    torch.manual_seed(5)
    for dropout in (Dropout(0.5), Dropout(0.0), Dropout(0.5).eval(), Dropout(0.5), Dropout(0.1)):
        residual_norm.add_norm(given, dropout, norm)
    assert seeds == wanted
    assert len({*wanted}) == 3


class Operators(TorchDispatchMode):
    """Counts the operators that are executed."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counter[str]()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.counts[function.overloadpacket.__name__] += 1
        return function(*args, **kwargs or {})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["one dtype", "two dtypes"])
def test_a_residual_is_added_in_one_pass_where_dtypes_are_equal(dtype):
    x, change, dropout = torch.randn(50, 8), torch.randn(50, 8).to(dtype), Dropout(0.5)
    torch.manual_seed(3)
    dropped = dropout(change)
    torch.manual_seed(3)
    with Operators() as executed:
        found = dropout.onto(x, change)
    torch.testing.assert_close(found, x + dropped)
    assert 0.3 < (found == x).float().mean() < 0.7
    one_pass = dtype == torch.float32
    assert (executed.counts["addcmul"], executed.counts["add"]) == ((1, 0) if one_pass else (0, 1))


@pytest.mark.parametrize(
    ("probability", "outcomes"),
    [(0.0, 0), (0.1, 6554), (0.5, 32768), (0.99999, 65535), (1.0, 65535)],
)
def test_probabilities_are_counts_of_outcomes(probability, outcomes):
    """One of the 65,536 is always kept: what is kept is divided by its probability."""
    assert dropped_outcomes(probability) == outcomes
