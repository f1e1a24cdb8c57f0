"""Models whose parameters are loaded: nothing is drawn, and what a constructor computes is kept."""

import torch
from torch import nn

import regard
from regard.model.build import build
from regard.model.uninitialized import only_parameters, uninitialized
from regard.model.weights import load_weights, weights_of

RNN = {"kind": "rnn", "dim": 16}
CONVOLUTION = {"kind": "conv", "dim": 16}
TRANSFORMER = {
    "kind": "transformer",
    "dim": 16,
    "layers": 1,
    "heads": 2,
    "ffn_dim": 32,
    "positions": "learned",
}
MODELS = [
    {"encoder": each, "decoder": each, "vocab_size": 20, "tie_embeddings": "all"}
    for each in (RNN, CONVOLUTION, TRANSFORMER)
]


def test_nothing_is_drawn():
    before = torch.get_rng_state()
    with uninitialized():
        for table in MODELS:
            build(table)
        nn.Conv2d(3, 4, 3), nn.GRU(3, 4), nn.Embedding(5, 3)
    assert torch.equal(torch.get_rng_state(), before)
    with uninitialized():  # a constant of a module
        given = torch.randn(3, generator=torch.Generator().manual_seed(1))
    assert torch.equal(given, torch.randn(3, generator=torch.Generator().manual_seed(1)))


def test_a_model_on_the_meta_device_takes_weights():
    for table in MODELS:
        plain = build(table)
        with torch.device("meta"), uninitialized():
            empty = build(table)
        assign = only_parameters(empty)
        assert assign == (
            table["encoder"] is not RNN
        )  # whose `nn.GRU` has a list of its parameters
        if not assign:
            with uninitialized():
                empty = build(table)
        load_weights(empty, weights_of(plain), "", assign=assign)
        loaded = dict(empty.named_parameters(remove_duplicate=False))
        assert loaded.keys() == dict(plain.named_parameters(remove_duplicate=False)).keys()
        source = regard.Tokens.of([[3, 4, 5]])
        assert torch.equal(empty.eval()(source, source.ids), plain.eval()(source, source.ids))
        assert all(
            torch.equal(loaded[key], value)
            for key, value in plain.named_parameters(remove_duplicate=False)
        )


class WithBuffer(nn.Linear):
    def __init__(self) -> None:
        super().__init__(2, 2)
        self.register_buffer("order", torch.arange(3), persistent=False)


class WithTensors(nn.Linear):
    def __init__(self) -> None:
        super().__init__(2, 2)
        self.tables = [{"first": torch.arange(3)}]


def test_models_of_other_tensors_are_noticed():
    assert only_parameters(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)))
    assert not only_parameters(nn.Sequential(WithBuffer()))
    assert not only_parameters(nn.Sequential(WithTensors()))
    assert not only_parameters(nn.BatchNorm1d(2))
