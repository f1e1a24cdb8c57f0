"""Every encoder of sequences reads vectors through an input module, as it reads tokens."""

import pytest
import torch

import regard
from regard.core.errors import InvalidArgument, InvalidRecipe
from regard.core.sequence import Tokens, Vectors
from support.predictors import PARTS

ENCODERS = {
    "bag": {"kind": "bag", "dim": 16},
    "mlp": {"kind": "mlp", "dim": 16, "ffn_dim": 32},
    "rnn": PARTS["rnn"],
    "conv": PARTS["conv"],
    "transformer": PARTS["transformer"],
    "perceiver": {"kind": "perceiver", "dim": 16, "heads": 2, "queries": 3, "layers": 1},
}
MODULES = {
    "linear": {"kind": "vectors"},
    "convolution": {"kind": "vectors", "kernel": 3},
    "half the length": {"kind": "vectors", "kernel": 4, "stride": 2},
    "steps of three": {"kind": "vectors", "kernel": 3, "stride": 3},
}
LENGTHS = (1, 5, 8, 2)


def model_of(encoder, module):
    torch.manual_seed(0)
    table = {"encoder": {**ENCODERS[encoder], "input": MODULES[module]}, "pool": {"kind": "mean"}}
    return regard.build({**table, "num_labels": 3, "source_dim": 6}).eval()


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("encoder", ENCODERS)
def test_padded_equals_alone(encoder, module):
    model = model_of(encoder, module)
    rows = [torch.randn(length, 6) for length in LENGTHS]
    together = model(Vectors.of(rows))
    for row, output in zip(rows, together, strict=True):
        torch.testing.assert_close(model(Vectors.of([row]))[0], output, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_what_the_padding_holds_changes_nothing(encoder):
    model = model_of(encoder, "half the length")
    batch = Vectors.of([torch.randn(length, 6) for length in LENGTHS])
    padding = ~batch.mask[..., None].expand_as(batch.values)
    other = Vectors(batch.values.masked_fill(padding, 7.0), batch.lengths)
    assert model(other).equal(model(batch))


@pytest.mark.parametrize("encoder", ENCODERS)
def test_gradients_reach_the_vectors_and_the_module(encoder):
    model = model_of(encoder, "convolution").train()
    values = torch.randn(2, 4, 6, requires_grad=True)
    model(Vectors(values, torch.tensor([4, 3]))).square().sum().backward()
    assert values.grad[0].abs().sum() > 0
    assert values.grad[1, 3].abs().sum() == 0
    assert model.encoder.vector_input.proj.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("encoder", ENCODERS)
def test_a_projection_by_the_embedding_matrix_reads_one_hot_vectors_as_tokens(encoder):
    """One encoder: its states depend on the vectors, and not on the module that made them."""
    table = {"encoder": ENCODERS[encoder], "pool": {"kind": "mean"}, "num_labels": 3}
    torch.manual_seed(0)
    of_tokens = regard.build({**table, "source_vocab_size": 9}).eval()
    vectors = {**table, "encoder": {**ENCODERS[encoder], "input": {"kind": "vectors"}}}
    of_vectors = regard.build({**vectors, "source_dim": 9}).eval()
    embedding = of_tokens.encoder.embed_tokens
    weights = {
        name: weight
        for name, weight in of_tokens.state_dict().items()
        if "embed_tokens" not in name
    }
    of_vectors.load_state_dict(weights, strict=False)
    with torch.no_grad():
        projection = of_vectors.encoder.vector_input.proj
        projection.weight.copy_(embedding.weight.mT[..., None] * embedding.scale)
        projection.bias.zero_()
    ids = [[3, 1, 4], [5, 8]]
    one_hot = [torch.nn.functional.one_hot(torch.tensor(row), 9) for row in ids]
    expected = of_tokens(Tokens.of(ids))
    torch.testing.assert_close(of_vectors(Vectors.of(one_hot)), expected, atol=1e-5, rtol=1e-4)


def test_vectors_of_another_dimension_and_tokens_are_refused():
    model = model_of("rnn", "linear")
    with pytest.raises(InvalidArgument, match=r"vectors of 6 numbers; got Vectors of shape"):
        model(Vectors.of([torch.randn(3, 5)]))
    with pytest.raises(InvalidArgument, match="vectors of 6 numbers; got Tokens"):
        model(Tokens.of([[1, 2]]))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            {"encoder": {**ENCODERS["rnn"], "input": {"kind": "vectors"}}},
            "model.source_dim: wanted the number",
        ),
        (
            {"encoder": {**ENCODERS["rnn"], "input": {"kind": "sounds"}}},
            "model.encoder.input.kind: wanted one of tokens",
        ),
        (
            {
                "encoder": {**ENCODERS["rnn"], "input": {"kind": "vectors", "stride": 2}},
                "source_dim": 3,
            },
            "model.encoder.input.stride: wanted at most kernel = 1",
        ),
        (
            {"encoder": {"kind": "cnn", "dim": 16, "input": {"kind": "vectors"}}},
            "model.encoder.input: wanted nothing",
        ),
        ({"encoder": ENCODERS["rnn"], "source_vocab_size": 5, "source_dim": 3}, "model.source_dim"),
    ],
)
def test_wrong_tables_are_refused(table, message):
    with pytest.raises(InvalidRecipe, match=message):
        regard.build({**table, "pool": {"kind": "mean"}, "num_labels": 2})
