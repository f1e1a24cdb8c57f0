"""The representation of a model: its parts and their parameters; dropout of a classifier; an empty memory."""

import pytest
import torch

import regard
from regard.core.sequence import Tokens

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
    model = regard.build(
        {"encoder": TRANSFORMER, "decoder": TRANSFORMER, "vocab_size": 31, "tie_embeddings": "all"}
    )
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
    table = {
        "encoder": TRANSFORMER | {"dropout": dropout},
        "pool": {"kind": "mean"},
        "vocab_size": 31,
        "num_labels": 3,
    }
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


@torch.no_grad()
def test_an_empty_memory_is_wholly_masked():
    """A search begins with one and writes requests into its slots: what is not written must have no effect."""
    model = regard.build({"encoder": TRANSFORMER, "decoder": TRANSFORMER, "vocab_size": 31}).eval()
    one, other = (model.encoder(Tokens.of([ids])) for ids in ([5, 6, 7], [8, 9]))
    empty = one.empty(4, 6)
    assert (empty.states.shape, empty.mask.shape, empty.summary.shape) == (
        (4, 6, 16),
        (4, 6),
        (4, 16),
    )
    assert not empty.mask.any()
    assert not empty.states.any()
    targets = torch.tensor([[1, 2, 3]])
    padded = type(one)(
        torch.cat((one.states, empty.states[:1]), 1),
        torch.cat((one.mask, empty.mask[:1]), 1),
        one.summary,
    )
    torch.testing.assert_close(model.decoder(targets, padded), model.decoder(targets, one))
    assert not torch.allclose(model.decoder(targets, other), model.decoder(targets, one))
