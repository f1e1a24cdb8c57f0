"""Grades the exercises of lesson 4."""

import torch

import regard


def check_1(answer):
    X, W_Q, W_K, W_V = torch.randn(6, 8), torch.randn(8, 4), torch.randn(8, 4), torch.randn(8, 5)
    wanted = regard.attend(X @ W_Q, X @ W_K, X @ W_V)
    assert torch.allclose(answer(X, W_Q, W_K, W_V), wanted, atol=1e-4), (
        "scale by the square root of the keys' dimension"
    )


def check_2(answer):
    x = torch.randn(6, 4)
    assert answer(lambda x: regard.self_attend(x), x) is True, (
        "self-attention is equivariant: wanted True"
    )
    assert answer(lambda x: x.flip(0).cumsum(0).flip(0), x) is False, (
        "a cumulative sum is not equivariant: wanted False"
    )
    assert answer(lambda x: x + torch.arange(6.0)[:, None], x) is False, (
        "adding positions is not equivariant: wanted False"
    )


def check_3(answer):
    order = [3, 0, 2, 1]
    assert [order[i] for i in answer(order)] == [0, 1, 2, 3], (
        "first inverse, then the order, must be the identity"
    )
    assert list(answer([0])) == [0], "the inverse of [0] is [0]"
    assert list(answer([1, 2, 0])) == [2, 0, 1], "the inverse of [1, 2, 0] is [2, 0, 1]"
