"""Grades the exercises of lesson 12."""

import math

import torch


def check_1(answer):
    found = [tuple(pair) for pair in answer(["a", "b", "c"], 1)]
    assert found == [("a", "b"), ("b", "a"), ("b", "c"), ("c", "b")], f"got {found}"
    assert len(list(answer(list("abcde"), 2))) == 14, "five words and a window of 2 have 14 pairs"


def check_2(answer):
    center, context, negatives = (
        torch.tensor([1.0, 0.0]),
        torch.tensor([2.0, 5.0]),
        torch.tensor([[0.0, 1.0], [-1.0, 0.0]]),
    )
    wanted = math.log(1 + math.exp(-2)) + math.log(2) + math.log(1 + math.exp(-1))
    assert abs(float(answer(center, context, negatives)) - wanted) < 1e-5, f"wanted {wanted:.4f}"


def check_3(answer):
    found = answer({"a": 16, "b": 1}, 0.75)
    assert abs(found["a"] - 8 / 9) < 1e-9, "16 to the power 0.75 is 8"
    assert abs(sum(found.values()) - 1) < 1e-9, "probabilities sum to 1"
