"""Encoders without order: of a label, and of a bag of tokens."""

from dataclasses import dataclass

import torch

from regard.core.config import Count, doc
from regard.core.errors import InvalidArgument
from regard.core.shapes import Tensor
from regard.model.embedding import Embedding
from regard.model.interfaces import Encoder, Source, require_tokens
from regard.model.memory import Memory, masked_mean
from regard.model.part_config import EncoderConfig, Sees


@dataclass(frozen=True)
class LabelConfig(EncoderConfig):
    reads = "label"
    shardable = True

    dim: Count = doc(256, "dimension of the label embedding")


@dataclass(frozen=True)
class BagConfig(EncoderConfig):
    shardable = True

    dim: Count = doc(256, "dimension of the embeddings")

    @property
    def sees(self) -> Sees:
        return "itself"


class LabelEncoder(Encoder):
    """The embedding of a label, as a memory of one state."""

    def __init__(self, config: LabelConfig, embedding: Embedding) -> None:
        super().__init__()
        self.embed_tokens, self.dim = embedding, embedding.dim

    def forward(self, source: Source) -> Memory:
        if not isinstance(source, Tensor) or source.dim() != 1 or source.is_floating_point():
            raise InvalidArgument(
                "source",
                wanted="a tensor (B,) of label ids",
                got=type(source).__name__,
                remedy="Give one id for each sequence.",
            )
        state = self.embed_tokens(source)
        return Memory(state[:, None], torch.ones_like(source, dtype=torch.bool)[:, None], state)


class BagEncoder(Encoder):
    """Token embeddings, with their mean as summary."""

    def __init__(self, config: BagConfig, embedding: Embedding) -> None:
        super().__init__()
        self.embed_tokens, self.dim = embedding, embedding.dim

    def forward(self, source: Source) -> Memory:
        source = require_tokens(source)
        states = self.embed_tokens(source.ids)
        return Memory(states, source.mask, masked_mean(states, source.mask))
