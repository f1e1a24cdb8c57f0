"""A model's own account of itself."""

import torch

import regard
from regard.model.summary import flops

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


def test_flops_are_those_of_the_matrix_products():
    batch, n, dim, hidden, vocabulary, layers = 3, 5, 16, 24, 31, 2
    model = regard.build({"decoder": TRANSFORMER, "vocab_size": vocabulary}).eval()
    projections = 4 * dim * dim + 2 * dim * hidden
    attention = 2 * n * dim  # scores and weighted values, for each query
    wanted = 2 * batch * n * (layers * (projections + attention) + dim * vocabulary)
    assert flops(model, None, torch.zeros(batch, n, dtype=torch.long)) == wanted
