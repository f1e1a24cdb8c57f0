"""Models of sets: without positions, outputs are permuted with the vectors, and pooled outputs do not change."""

import pytest
import torch

import regard
from regard.core.sequence import Vectors

TRANSFORMER = {"kind": "transformer", "dim": 16, "layers": 2, "heads": 2, "ffn_dim": 24}
# Those that read sets, and of these those with a state for each vector.
EQUIVARIANT = {
    "transformer": TRANSFORMER | {"positions": "none"},
    "transformer post-norm": TRANSFORMER | {"positions": "none", "norm_first": False},
    "transformer additive": TRANSFORMER | {"positions": "none", "score": "additive"},
    "mlp": {"kind": "mlp", "dim": 16, "ffn_dim": 24},
    "bag": {"kind": "bag", "dim": 16},
}
INVARIANT = EQUIVARIANT | {
    "perceiver": {
        "kind": "perceiver",
        "dim": 16,
        "layers": 1,
        "heads": 2,
        "queries": 3,
        "positions": "none",
    }
}
# Those that depend on the order: the tests below fail for them.
ORDERED = {
    "sinusoidal": TRANSFORMER,
    "rotary": TRANSFORMER | {"positions": "rotary"},
    "alibi": TRANSFORMER | {"positions": "alibi"},
    "causal": TRANSFORMER | {"positions": "none", "causal": True},
    "rnn": {"kind": "rnn", "dim": 16},
    "conv": {"kind": "conv", "dim": 16},
}
POOLS = ["mean", "attention"]
ORDER = torch.tensor([4, 2, 0, 3, 1])
GENERATOR = torch.Generator().manual_seed(2)
SETS = torch.randn(3, 5, 4, generator=GENERATOR)


def outputs_of(encoder, output):
    """The outputs for sets, and for the same sets in another order."""
    torch.manual_seed(0)
    table = {"encoder": encoder | {"input": {"kind": "vectors"}}, "source_dim": 4, "num_labels": 2}
    model = regard.build(table | output).double().eval()
    lengths = torch.full((3,), 5)
    with torch.no_grad():
        return tuple(model(Vectors(values.double(), lengths)) for values in (SETS, SETS[:, ORDER]))


@pytest.mark.parametrize("name", EQUIVARIANT)
def test_an_output_for_each_vector_moves_with_it(name):
    plain, moved = outputs_of(EQUIVARIANT[name], {"head": "vectors"})
    torch.testing.assert_close(moved, plain[:, ORDER])
    assert (plain[:, 0] - plain[:, 1]).abs().max() > 1e-3 or name == "bag"


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("name", INVARIANT)
def test_a_pooled_output_does_not_depend_on_the_order(name, pool):
    plain, moved = outputs_of(INVARIANT[name], {"pool": {"kind": pool}})
    torch.testing.assert_close(moved, plain)
    assert (plain[0] - plain[1]).abs().max() > 1e-3


@pytest.mark.parametrize("name", ORDERED)
def test_other_encoders_depend_on_the_order(name):
    for output in ({"head": "vectors"}, {"pool": {"kind": "mean"}}):
        plain, moved = outputs_of(ORDERED[name], output)
        expected = plain[:, ORDER] if plain.dim() == 3 else plain
        assert (moved - expected).abs().max() > 1e-3


def test_a_convolution_before_the_encoder_depends_on_the_order():
    torch.manual_seed(0)
    module = {"kind": "vectors", "kernel": 3}
    encoder = EQUIVARIANT["transformer"] | {"input": module}
    table = {"encoder": encoder, "pool": {"kind": "mean"}, "source_dim": 4, "num_labels": 2}
    model = regard.build(table).eval()
    lengths = torch.full((3,), 5)
    with torch.no_grad():
        difference = model(Vectors(SETS, lengths)) - model(Vectors(SETS[:, ORDER], lengths))
    assert difference.abs().max() > 1e-3
