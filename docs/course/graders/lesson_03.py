"""Grades the exercises of lesson 3."""

import math

import torch


def check_1(answer):
    q, k, U, V, w = (
        torch.randn(3, 4),
        torch.randn(5, 6),
        torch.randn(7, 4),
        torch.randn(7, 6),
        torch.randn(7),
    )
    found = answer(q, k, U, V, w)
    assert found.shape == (3, 5), f"wanted a score for each pair, (3, 5); got {tuple(found.shape)}"
    assert torch.allclose(found[1, 2], w @ torch.tanh(U @ q[1] + V @ k[2]), atol=1e-5), (
        "row 1, column 2 is w · tanh(U q₁ + V k₂)"
    )
    assert torch.allclose(found[2, 0], w @ torch.tanh(U @ q[2] + V @ k[0]), atol=1e-5), (
        "row 2, column 0 is w · tanh(U q₂ + V k₀)"
    )


def check_2(answer):
    torch.manual_seed(0)
    for dim, variance in ((64, 1.0), (256, 4.0)):
        q, k = (math.sqrt(variance) * torch.randn(20_000, dim) for _ in range(2))
        spread = float((answer(dim, variance) * (q * k).sum(-1)).var())
        assert abs(spread - 1) < 0.05, (
            f"the variance is {spread:.2f} for dim {dim} and variance {variance}"
        )


def check_3(answer):
    U, V, q, k = torch.randn(2, 4), torch.randn(2, 5), torch.randn(4), torch.randn(5)
    assert torch.allclose(q @ answer(U, V) @ k, (U @ q) @ (V @ k), atol=1e-5), (
        "wanted qᵀ W k = (Uq)ᵀ(Vk)"
    )
