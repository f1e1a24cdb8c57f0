"""Grades the exercises of lesson 10."""

import torch


def check_1(answer):
    assert answer(3, [1, 2, 4]) == 15, "kernel 3 and dilations 1, 2, 4 read 15 positions"
    assert answer(2, [1]) == 2, "kernel 2 and dilation 1 read 2 positions"
    assert answer(1, [1, 2]) == 1, "a kernel of one reads the present only"


def check_2(answer):
    x, weights = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([10.0, 1.0])
    assert answer(x, weights, 1).tolist() == [1.0, 12.0, 23.0, 34.0], (
        "y_t = 10 x_{t-1} + x_t, zeros before the start"
    )
    assert answer(x, weights, 2).tolist() == [1.0, 2.0, 13.0, 24.0], (
        "with dilation 2: y_t = 10 x_{t-2} + x_t"
    )


def check_3(answer):
    W = torch.tensor([[0.0, 2.0], [0.0, 0.5]])
    found = float(answer(W, 3))
    wanted = float(torch.linalg.matrix_norm(torch.linalg.matrix_power(W, 3), 2))
    assert abs(found - wanted) < 1e-4, (
        f"the largest singular value of W³ is {wanted:.3f}; got {found:.3f}"
    )
