"""Initial weights: their spread is that of the papers that the layers come from."""

from math import sqrt

import pytest
import torch
from torch import nn

import regard
from regard.model.embedding import Embedding, Projection

DIM, WORDS = 64, 300
BLOCK = {"kind": "transformer", "dim": DIM, "heads": 4, "layers": 1, "ffn_dim": 128}


def spread(parameter: torch.Tensor) -> tuple[float, float]:
    return parameter.mean().item(), parameter.std().item()


def parameters(**parts: object) -> dict[str, nn.Parameter]:
    torch.manual_seed(0)
    sizes = (
        {"source_vocab_size": WORDS}
        if "pool" in parts
        else {"vocab_size": WORDS, "tie_embeddings": "none"}
    )
    return dict(regard.build({**sizes, **parts}).named_parameters())


def named(found: dict[str, nn.Parameter], *ends: str) -> list[nn.Parameter]:
    chosen = [each for name, each in found.items() if name.endswith(ends)]
    assert chosen, (ends, list(found))
    return chosen


def test_embeddings_and_output_layers_have_vectors_of_length_one():
    torch.manual_seed(0)
    embedding = Embedding(WORDS, DIM)
    own, tied = Projection(DIM, WORDS), Projection(DIM, WORDS, tied=embedding)
    assert tied.weight is embedding.weight
    for weight in (embedding.weight, own.weight):
        assert weight.shape == (WORDS, DIM)
        assert spread(weight) == pytest.approx((0.0, 1 / sqrt(DIM)), abs=0.03 / sqrt(DIM))
        assert weight.norm(dim=1).mean().item() == pytest.approx(1.0, abs=0.02)


def test_projections_of_attention_are_by_glorot():
    """Of equal variance forwards and backwards, and without a bias at first (https://proceedings.mlr.press/v9/glorot10a)."""
    found = parameters(encoder=BLOCK, decoder=BLOCK)
    for weight in named(
        found, "q_proj.weight", "k_proj.weight", "v_proj.weight", "out_proj.weight"
    ):
        rows, columns = weight.shape
        assert spread(weight) == pytest.approx(
            (0.0, sqrt(2 / (rows + columns))), rel=0.05, abs=0.01
        )
        assert weight.abs().max() <= sqrt(6 / (rows + columns))
    for bias in named(found, "q_proj.bias", "k_proj.bias", "v_proj.bias", "out_proj.bias"):
        assert not bias.any()


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        (
            {"encoder": BLOCK | {"positions": "learned", "max_positions": 200}, "decoder": BLOCK},
            "table",
        ),
        ({"encoder": BLOCK | {"cls_token": True}, "decoder": BLOCK}, "cls_token.embedding"),
        ({"encoder": BLOCK | {"token_types": 40}, "decoder": BLOCK}, "token_types"),
        (
            {"encoder": BLOCK, "pool": {"kind": "attention", "queries": 20}, "num_labels": 3},
            "pool.queries",
        ),
    ],
    ids=["positions", "cls", "token types", "queries"],
)
def test_learned_vectors_begin_small(parts, name):
    for each in named(parameters(**parts), name):
        assert spread(each) == pytest.approx((0.0, 0.02), abs=0.006)


@pytest.mark.parametrize("score", ["bilinear", "additive"])
def test_scores_begin_with_the_spread_of_their_inputs(score):
    decoder = {"kind": "rnn", "dim": DIM, "attention": "luong", "score": score}
    found = parameters(encoder={"kind": "rnn", "dim": DIM}, decoder=decoder)
    for name, each in found.items():
        if ".score." in name and each.dim() == 2 and min(each.shape) > 1:
            rows, columns = each.shape
            assert spread(each) == pytest.approx(
                (0.0, sqrt(2 / (rows + columns))), rel=0.06, abs=0.01
            ), name
        elif name.endswith("score.weight"):
            assert each.abs().max() <= sqrt(3 / DIM)
            assert spread(each)[1] == pytest.approx(1 / sqrt(DIM), rel=0.2), name
