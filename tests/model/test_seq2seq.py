"""The representation of a model: its parts and their parameters."""

import pytest
import torch

import regard

TRANSFORMER = {
    "kind": "transformer",
    "dim": 16,
    "layers": 2,
    "heads": 2,
    "ffn_dim": 24,
    "dropout": 0.0,
    "positions": "none",
}


def test_parts_and_parameters_add_up():
    model = regard.build({"encoder": TRANSFORMER, "decoder": TRANSFORMER, "vocab_size": 31, "tie_embeddings": "all"})
    first, *parts = repr(model).splitlines()
    total = sum(p.numel() for p in model.parameters())
    assert first == f"Seq2Seq, {total:,} parameters"
    assert [line.split()[:2] for line in parts] == [
        ["encoder", "TransformerEncoder"],
        ["decoder", "TransformerDecoder"],
    ]
    assert sum(int(line.split()[2].replace(",", "")) for line in parts) == total


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_the_dropout_of_a_classifier_is_that_of_its_pooled_states(dropout):
    table = {"encoder": TRANSFORMER | {"dropout": dropout}, "pool": {"kind": "mean"}, "vocab_size": 31, "num_labels": 3}
    assert regard.build(table).dropout.p == dropout
    model, seen = regard.build(table | {"encoder": TRANSFORMER}).train(), []
    model.dropout.p = dropout
    model.classifier.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    source = regard.Tokens.of([[1 + n % 30, 2, 3] for n in range(64)])
    model(source)
    model.eval()(source)
    dropped, whole = seen
    assert 0.4 * (dropout > 0) <= (dropped == 0).float().mean() <= 0.6 * (dropout > 0)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], whole[kept] / (1 - dropout))
