"""Decoders over vectors: what they read instead of token embeddings,
and what they give instead of logits.

The decoders are the same as those of tokens. A step reads the vector before, or the start, and
gives the next vector. The start is marked by one more number, which is 1 there and 0 elsewhere, so
that no vector of the data is taken for it.
"""

import torch
from torch import nn
from torch.nn import functional as F

from regard.core.sequence import PackedVectors
from regard.core.shapes import Float, Tensor
from regard.model.embedding import Embedding, Projection


class VectorEmbedding(nn.Module):
    """What a decoder reads at a step: a linear layer of a vector with the mark of the start.

    dim   of the decoder
    """

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.proj = nn.Linear(size + 1, dim)

    def forward(self, read: Float[Tensor, "*lead E"]) -> Float[Tensor, "*lead W"]:
        embedded: Tensor = self.proj(read)
        return embedded


class VectorProjection(nn.Linear):
    """From the states of a decoder to vectors."""

    def next_inputs(self, vectors: Float[Tensor, "*lead D"]) -> Float[Tensor, "*lead E"]:
        """What the next step reads of these outputs, without their gradient."""
        return as_inputs(vectors.detach())


def as_inputs(vectors: Float[Tensor, "*lead D"]) -> Float[Tensor, "*lead E"]:
    """Vectors as a decoder reads them.

    A number that is missing is read as 0, the mean of the training data.
    """
    return F.pad(vectors.nan_to_num(0.0), (0, 1))


def start_inputs(batch: int, like: Float[Tensor, "*lead D"]) -> Float[Tensor, "batch E"]:
    """What a decoder reads at its first step."""
    return F.pad(like.new_zeros(batch, like.shape[-1]), (0, 1), value=1.0)


def shifted_inputs(targets: Float[Tensor, "B T D"]) -> Float[Tensor, "B T E"]:
    """What a decoder reads to predict these vectors: the start, and all but the last."""
    first = start_inputs(len(targets), targets)[:, None]  # (B, 1, D + 1)
    return torch.cat((first, as_inputs(targets[:, :-1])), 1)


def packed_inputs(targets: PackedVectors) -> PackedVectors:
    """What a decoder reads to predict packed vectors."""
    values = targets.values
    shifted = torch.cat((values[:1], values[:-1]))  # (N, D)
    is_first = targets.offsets.positions == 0
    start = start_inputs(1, values)  # (1, D + 1)
    read = torch.where(is_first[:, None], start, as_inputs(shifted))
    return PackedVectors(read, targets.offsets)


# The ends of a decoder: of tokens, or of vectors.
TargetEmbedding = Embedding | VectorEmbedding
TargetProjection = Projection | VectorProjection
