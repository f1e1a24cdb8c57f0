import math

import torch


def exercise_1(query, key, U, V, w):
    return torch.tanh((query @ U.T)[:, None] + (key @ V.T)[None]) @ w


def exercise_2(dim, variance):
    return 1 / (math.sqrt(dim) * variance)  # a product of two entries has variance variance²


def exercise_3(U, V):
    return U.T @ V
