"""Grades the exercises of lesson 8."""

import torch
from torch import nn

import regard


def check_1(answer):
    x, gain, bias = torch.randn(4, 6), torch.rand(6), torch.randn(6)
    assert torch.allclose(
        answer(x, gain, bias), nn.functional.layer_norm(x, (6,), gain, bias), atol=1e-4
    ), "mean and variance (without Bessel's correction) over the last axis"


def check_2(answer):
    x = torch.tensor([1.0])
    found = answer(x, lambda x: 10 * x, lambda x: 100 * x, lambda x: x + 1, lambda x: x + 2)
    assert found.item() == 21 + 100 * 23, "x + attention(norm1(x)), then x + ffn(norm2(x))"


def check_3(answer):
    part = {"kind": "transformer", "dim": 16, "heads": 2, "ffn_dim": 40}

    def count(layers):
        table = {"encoder": {**part, "layers": layers}, "pool": {"kind": "mean"}, "num_labels": 2}
        return sum(p.numel() for p in regard.build({**table, "source_vocab_size": 9}).parameters())

    assert answer(16, 40) == count(2) - count(1), f"wanted {count(2) - count(1)}"
