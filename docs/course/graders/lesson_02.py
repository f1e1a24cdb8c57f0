"""Grades the exercises of lesson 2."""

import torch

import regard


def check_1(answer):
    query, keys, values = torch.randn(8), torch.randn(5, 8), torch.randn(5, 3)
    wanted = regard.attend(query[None], keys, values, score=regard.Dot())[0]
    assert torch.allclose(answer(query, keys, values), wanted, atol=1e-5), (
        "not the weighted mean of the values"
    )


def check_2(answer):
    scores = torch.tensor([[1.0, 2.0, 3.0], [-5.0, 0.0, 5.0]])
    assert torch.allclose(answer(scores), scores.softmax(-1), atol=1e-6), (
        "not the softmax over the last axis"
    )
    large = answer(torch.tensor([[10_000.0, 10_000.0, 0.0]]))
    assert torch.allclose(large, torch.tensor([[0.5, 0.5, 0.0]])), (
        "subtract the largest score first"
    )


def check_3(answer):
    states = torch.randn(7, 4)
    query, keys = answer(states)
    assert torch.allclose(regard.attend(query, keys, states)[0], states.mean(0), atol=1e-5), (
        "scores must be equal"
    )
