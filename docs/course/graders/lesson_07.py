"""Grades the exercises of lesson 7."""

import torch

import regard


def check_1(answer):
    x = torch.arange(12.0).view(2, 6)
    assert answer(x, 3).tolist() == [[[0, 1], [6, 7]], [[2, 3], [8, 9]], [[4, 5], [10, 11]]], (
        "head 0 has columns 0, 1"
    )


def check_2(answer):
    for dim, heads in ((32, 1), (32, 4), (48, 3)):
        wanted = sum(p.numel() for p in regard.MultiHead(dim, heads=heads).parameters())
        assert answer(dim, heads) == wanted, f"wanted {wanted} for dim {dim} and {heads} heads"


def check_3(answer):
    X, *matrices = torch.randn(5, 8), *(torch.randn(8, 8) for _ in range(4))
    layer = regard.MultiHead(8, heads=2, bias=False)
    with torch.no_grad():
        for name, matrix in zip(("q_proj", "k_proj", "v_proj", "out_proj"), matrices, strict=True):
            getattr(layer, name).weight.copy_(matrix.T)
        wanted = layer(X[None])[0]
    assert torch.allclose(answer(X, *matrices, 2), wanted, atol=1e-3), (
        "divide scores by the square root of a head's dimension"
    )
