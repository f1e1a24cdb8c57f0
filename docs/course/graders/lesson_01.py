"""Grades the exercises of lesson 1."""

import math


def check_1(answer):
    assert math.isclose(answer([math.log(0.5), math.log(0.25)]), 0.125), (
        "the product of 0.5 and 0.25 is 0.125"
    )
    assert answer([]) == 1.0, "an empty sequence has probability 1"
    assert answer([-1000.0] * 10) == 0.0, "10 tokens of log-probability -1000 underflow to 0.0"


def check_2(answer):
    assert answer(4, 2, 1, 4) is True, "16 strings, 16 vectors"
    assert answer(5, 2, 1, 4) is False, "32 strings, 16 vectors"
    assert answer(1000, 26, 100, 32) is False, "26¹⁰⁰⁰ strings, 2³²⁰⁰ vectors"
    assert answer(100, 26, 100, 32) is True, "26¹⁰⁰ strings, 2³²⁰⁰ vectors"


def check_3(answer):
    inputs, labels = answer(["a"], ["x", "y"])
    assert list(labels) == ["x", "y", "</s>"], "the labels are the target and its end"
    assert list(inputs) == ["<s>", "x", "y"], "each input is the label before"
