"""The length penalty of a score: what a sum of log-probabilities is divided by."""

import math
from functools import lru_cache

import torch

from regard.core.shapes import Float, Tensor


def length_penalty(length: int, power: float) -> float:
    """The divisor of an output of this length; an empty output counts as one token."""
    return math.pow(max(1, length), power)


def length_penalties(count: int, power: float) -> Float[Tensor, " lengths"]:
    """The divisors of all lengths below `count`, and of some more, on the CPU.

    Each is computed alone and then rounded to float32. `tensor ** power` rounds some elements
    differently, depending on their place in the tensor: a score would depend on its batch.
    """
    return _table(1 << count.bit_length(), power)


@lru_cache(maxsize=16)
def _table(size: int, power: float) -> Float[Tensor, " size"]:
    return torch.tensor([length_penalty(length, power) for length in range(size)])
