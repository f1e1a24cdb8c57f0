"""Encoders without order, which others build on or are compared with: a label, and a bag of words."""

from dataclasses import dataclass

import torch
from torch import nn

from regard.core.config import Config, Count
from regard.core.sequence import Tokens
from regard.core.shapes import Int, Tensor
from regard.model.embedding import Embedding
from regard.model.memory import Memory, masked_mean


@dataclass(frozen=True)
class LabelConfig(Config):
    dim: Count = 256


@dataclass(frozen=True)
class BagConfig(Config):
    dim: Count = 256


class LabelEncoder(nn.Module):
    """A label is a memory of one state."""

    causal = False

    def __init__(self, config: LabelConfig, embedding: Embedding) -> None:
        super().__init__()
        self.embed_tokens, self.dim = embedding, embedding.dim

    def forward(self, labels: Int[Tensor, " B"]) -> Memory:
        state = self.embed_tokens(labels)
        return Memory(state[:, None], torch.ones_like(labels, dtype=torch.bool)[:, None], state)


class BagEncoder(nn.Module):
    """The embeddings themselves, and their mean."""

    causal = False

    def __init__(self, config: BagConfig, embedding: Embedding) -> None:
        super().__init__()
        self.embed_tokens, self.dim = embedding, embedding.dim

    def forward(self, source: Tokens) -> Memory:
        states = self.embed_tokens(source.ids)
        return Memory(states, source.mask, masked_mean(states, source.mask))
