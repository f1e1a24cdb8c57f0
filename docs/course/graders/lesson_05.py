"""Grades the exercises of lesson 5."""

import torch

import regard


def check_1(answer):
    wanted = regard.Sinusoidal(16)(torch.arange(20))
    assert torch.allclose(answer(20, 16), wanted, atol=1e-4), (
        "sines in the first half, cosines in the second"
    )


def check_2(answer):
    table = regard.Sinusoidal(8)(torch.arange(60))
    for shift in (1, 5):
        M = answer(8, shift)
        assert torch.allclose(table[:50] @ M.T, table[shift : 50 + shift], atol=1e-3), (
            "rotate each pair by ω · shift"
        )


def check_3(answer):
    bias = answer(4, 0.5)
    assert torch.isinf(bias[0, 1:]).all(), "later keys have -inf"
    assert bias[3].tolist() == [-1.5, -1.0, -0.5, 0.0], (
        "the last of 4 rows with slope 0.5 is [-1.5, -1, -0.5, 0]"
    )
