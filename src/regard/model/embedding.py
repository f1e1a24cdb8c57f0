"""Token embeddings, and the projection of hidden states to logits."""

from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from regard.core.joined_tokens import JoinedTokens
from regard.core.sequence import Packed, PackedSequences, Tokens
from regard.core.shapes import Float, Int, Tensor
from regard.kernels.layers.dropout import Dropout
from regard.model.inputs import InputModule, InputVectors, require_tokens


class Embedding(InputModule):
    """A learned vector for each token, or for each label.

    vocab_size   number of tokens
    dim          of a vector
    scaled       multiply by √dim, so that components have about unit variance and the matrix can be
                 tied to the output
    dropout      probability that a token's vector is zero, wherever it occurs in a batch:
                 https://arxiv.org/abs/1512.05287
    """

    attribute = "embed_tokens"
    packable = True
    size = "source_vocab_size"

    def __init__(
        self, vocab_size: int, dim: int, *, scaled: bool = True, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.dim = dim
        self.scale = sqrt(dim) if scaled else 1.0
        self.weight = nn.Parameter(torch.randn(vocab_size, dim) / sqrt(dim))
        self.dropout = Dropout(dropout)

    def read(self, source: Any) -> "EmbeddedTokens":
        """The vectors of a batch of tokens; of labels (B,), one for each."""
        if isinstance(source, Tensor) and source.dim() == 1 and not source.is_floating_point():
            source = Tokens(source[:, None], torch.ones_like(source))
        return EmbeddedTokens(self, require_tokens(source))

    def read_packed(self, source: PackedSequences) -> Float[Tensor, "N W"]:
        assert isinstance(source, Packed)
        vectors: Tensor = self(source.ids)
        return vectors

    def forward(self, ids: Int[Tensor, "*lead"]) -> Float[Tensor, "*lead W"]:
        rows = F.embedding(ids, self.weight)
        if self.training and self.dropout.p > 0:
            scales: Tensor = self.dropout(rows.new_ones(self.vocab_size))
            rows = rows * scales[ids][..., None]
        if self.scale == 1.0:
            return rows
        return rows * self.scale


@dataclass
class EmbeddedTokens(InputVectors):
    """The vectors of a batch of tokens; only those that are asked for are looked up."""

    embedding: Embedding
    tokens: Tokens

    @property
    def lengths(self) -> Int[Tensor, " B"]:  # type: ignore[override]
        return self.tokens.lengths

    @property
    def host_lengths(self) -> Int[Tensor, " B"]:  # type: ignore[override]
        return self.tokens.host_lengths

    @property
    def shape(self) -> tuple[int, int]:
        return self.tokens.ids.shape[0], self.tokens.ids.shape[1]

    @property
    def types(self) -> Int[Tensor, "B S"] | None:
        return self.tokens.types if isinstance(self.tokens, JoinedTokens) else None

    def states(self) -> Float[Tensor, "B S W"]:
        vectors: Tensor = self.embedding(self.tokens.ids)
        return vectors

    def rows(self, indices: Int[Tensor, " N"]) -> Float[Tensor, "N W"]:
        vectors: Tensor = self.embedding(self.tokens.ids.flatten()[indices])
        return vectors


def token_embedding(module: nn.Module) -> Embedding:
    """The token embedding of an encoder or a decoder that has one."""
    embedding = module.embed_tokens
    assert isinstance(embedding, Embedding)
    return embedding


class Projection(nn.Module):
    """Hidden states to logits: weight · (scale · state) + bias.

    tied     share the weight of this embedding (https://arxiv.org/abs/1608.05859)
    bias     whether there is a bias
    scaled   the scale is dim^-½ instead of 1, which undoes that of a tied embedding
             (https://arxiv.org/abs/1910.10683)
    """

    def __init__(
        self,
        dim: int,
        vocab_size: int,
        *,
        tied: Embedding | None = None,
        bias: bool = True,
        scaled: bool = False,
    ) -> None:
        super().__init__()
        self.scale = dim**-0.5 if scaled else 1.0
        if tied is None:
            self.weight = nn.Parameter(torch.randn(vocab_size, dim) / sqrt(dim))
        else:
            self.weight = tied.weight
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if bias else None

    def forward(self, states: Float[Tensor, "*lead W"]) -> Float[Tensor, "*lead V"]:
        return F.linear(self.scaled(states), self.weight, self.bias)

    def next_inputs(self, logits: Float[Tensor, "*lead V"]) -> Int[Tensor, "*lead"]:
        """What a decoder reads after it has predicted these logits: the most likely tokens."""
        return logits.argmax(-1)

    def scaled(self, states: Float[Tensor, "*lead W"]) -> Float[Tensor, "*lead W"]:
        """States as the weight is multiplied with."""
        if self.scale == 1.0:
            return states
        return states * self.scale
