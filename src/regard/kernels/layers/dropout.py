"""Dropout that spends sixteen random bits on a decision, where PyTorch's spends a float: five times as fast on a CPU.

It is as unbiased: survivors are scaled by the probability that sixteen bits can express.
"""

import torch
from torch import nn
from torch.nn import functional as F

from regard.core.shapes import Float, Tensor

OUTCOMES = 2**16


def dropped_of(probability: float) -> int:
    """How many of the outcomes drop a number."""
    return min(round(probability * OUTCOMES), OUTCOMES - 1)


def scales(like: Tensor, dropped: int, generator: torch.Generator | None = None) -> Float[Tensor, "*lead"]:
    """What each number is multiplied by: nothing, or what makes up for those that nothing is left of.

    Numbers, not truth values: PyTorch multiplies by those twenty times as slowly.
    """
    bits = torch.empty(-(-like.numel() // 4), dtype=torch.int64, device=like.device)
    bits.random_(-(2**63), None, generator=generator)
    lives = torch.empty(like.numel(), dtype=like.dtype, device=like.device)
    torch.ge(bits.view(torch.int16)[: like.numel()], dropped - OUTCOMES // 2, out=lives)
    return lives.mul_(OUTCOMES / (OUTCOMES - dropped)).view(like.shape)


class Dropout(nn.Dropout):
    """As PyTorch's, with other random numbers on the CPU."""

    def forward(self, input: Float[Tensor, "*lead"]) -> Float[Tensor, "*lead"]:
        if self._ours(input):
            return input * scales(input, dropped_of(self.p))
        return F.dropout(input, self.p, self.training)

    def onto(self, x: Float[Tensor, "*lead"], change: Float[Tensor, "*lead"]) -> Float[Tensor, "*lead"]:
        """The sum of x and dropout(change), in one pass."""
        if self._ours(change) and x.dtype == change.dtype:
            return torch.addcmul(x, change, scales(change, dropped_of(self.p)))
        dropped: Tensor = self(change)
        return x + dropped

    def _ours(self, x: Tensor) -> bool:
        here = x.device.type == "cpu" and not torch.compiler.is_compiling()
        return here and self.training and self.p > 0
