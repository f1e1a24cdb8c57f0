"""Token embeddings, and the projection of hidden states to logits."""

from math import sqrt

import torch
from torch import nn
from torch.nn import functional as F

from regard.core.shapes import Float, Int, Tensor


class Embedding(nn.Module):
    """A learned vector for each token.

    vocab_size   number of tokens
    dim          of a vector
    scaled       multiply by √dim, so that components have about unit variance and the matrix can be tied to the output
    """

    def __init__(self, vocab_size: int, dim: int, *, scaled: bool = True) -> None:
        super().__init__()
        self.vocab_size, self.dim = vocab_size, dim
        self.scale = sqrt(dim) if scaled else 1.0
        self.weight = nn.Parameter(torch.randn(vocab_size, dim) / sqrt(dim))

    def forward(self, ids: Int[Tensor, "*lead"]) -> Float[Tensor, "*lead W"]:
        rows = F.embedding(ids, self.weight)
        return rows if self.scale == 1.0 else rows * self.scale


class Projection(nn.Module):
    """Hidden states to logits; `tied` shares the weight of an embedding (https://arxiv.org/abs/1608.05859)."""

    def __init__(self, dim: int, vocab_size: int, *, tied: Embedding | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(vocab_size, dim) / sqrt(dim)) if tied is None else tied.weight
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, states: Float[Tensor, "*lead W"]) -> Float[Tensor, "*lead V"]:
        return F.linear(states, self.weight, self.bias)
