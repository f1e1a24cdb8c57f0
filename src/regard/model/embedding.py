"""Tokens to vectors, and vectors back to tokens."""

from math import sqrt

import torch
from torch import nn
from torch.nn import functional as F

from regard.core.shapes import Float, Int, Tensor


class Embedding(nn.Module):
    """A row of a matrix for each token; the same as a one-hot vector times the matrix."""

    def __init__(self, vocabulary: int, dim: int, *, scaled: bool = True) -> None:
        super().__init__()
        self.vocabulary, self.dim = vocabulary, dim
        self.scale = sqrt(dim) if scaled else 1.0
        self.weight = nn.Parameter(torch.randn(vocabulary, dim) / sqrt(dim))

    def forward(self, ids: Int[Tensor, "*lead"]) -> Float[Tensor, "*lead W"]:
        """Rows scaled to about unit size a component, so that one matrix can also serve as the output's."""
        rows = F.embedding(ids, self.weight)
        return rows if self.scale == 1.0 else rows * self.scale


class Projection(nn.Module):
    """States to logits over the vocabulary; with `tied`, the rows are the embedding's own (https://arxiv.org/abs/1608.05859)."""

    def __init__(self, dim: int, vocabulary: int, *, tied: Embedding | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(vocabulary, dim) / sqrt(dim)) if tied is None else tied.weight
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, states: Float[Tensor, "*lead W"]) -> Float[Tensor, "*lead V"]:
        return F.linear(states, self.weight, self.bias)
