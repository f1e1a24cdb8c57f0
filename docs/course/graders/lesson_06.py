"""Grades the exercises of lesson 6."""

import torch

import regard


def check_1(answer):
    assert answer(3, 3).tolist() == torch.ones(3, 3).tril().bool().tolist(), (
        "for n = m, True on and below the diagonal"
    )
    assert answer(2, 4).tolist() == [[True, True, True, False], [True] * 4], (
        "the last query sees every key"
    )
    x, y = torch.randn(2, 8), torch.randn(4, 8)
    assert torch.allclose(
        regard.attend(x, y, y, mask=answer(2, 4)), regard.attend(x, y, y, causal=True), atol=1e-6
    ), "attention with the mask differs from causal attention"


def check_2(answer):
    assert answer([2, 3]).tolist() == [[[True, True, False]], [[True, True, True]]], (
        "for lengths 2 and 3: [[[True, True, False]], [[True, True, True]]]"
    )
    assert answer([1]).shape == (1, 1, 1), "one sequence of length 1 has a mask of shape (1, 1, 1)"


def check_3(answer):
    scores, mask = (
        torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
        torch.tensor([[True, False], [False, False]]),
    )
    assert answer(scores, mask).tolist() == [[1.0, 0.0], [0.0, 0.0]], (
        "a row of nothing is zeros, not NaN"
    )
    whole = torch.ones(2, 2, dtype=torch.bool)
    assert torch.allclose(answer(scores, whole), scores.softmax(-1)), (
        "with True everywhere it is the plain softmax"
    )
