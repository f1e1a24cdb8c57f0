"""The representation of a model: its parts and their parameters."""

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
