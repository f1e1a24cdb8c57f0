"""An encoder whose queries are parameters:
the number of its states does not depend on the length of the source.

Latent vectors, one for each learned query, attend to the source by cross-attention, and then to
each other (https://arxiv.org/abs/2103.03206).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import nn

from regard.core.config import Count, Probability, Range, doc
from regard.core.errors import InvalidRecipe, Problem
from regard.core.shapes import Bool, Float, Tensor
from regard.kernels.layers.dropout import Dropout
from regard.kernels.layers.residual_norm import PendingResidual, add_norm
from regard.model.inputs import InputModule, InputVectors
from regard.model.interfaces import SequenceEncoder
from regard.model.memory import Memory
from regard.model.module_list import TypedModuleList
from regard.model.multihead import MultiHead
from regard.model.part_config import EncoderConfig, UnusedKeys
from regard.model.positions import POSITIONS, PositionEncoding, PositionName
from regard.model.scores import ScoreName
from regard.model.transformer_block import (
    FeedForward,
    InputLayer,
    PaddedInputs,
    TransformerBlock,
    norm_of,
    post_norm,
    pre_norm,
)
from regard.model.transformer_config import TransformerConfig


@dataclass(frozen=True)
class PerceiverConfig(EncoderConfig):
    queries: Count = doc(32, "learned queries: the states of the memory, whatever the source")
    dim: Count = doc(256, "dimension of the embeddings and of the states")
    layers: Count = doc(3, "blocks of self-attention among the states")
    repeat_cross_attention: bool = doc(
        False, "attend to the source before every block, not before the first alone"
    )
    heads: Count = doc(4, "attention heads")
    value_dim: Count | None = doc(
        None, "dimension of the values of an attention head; left out: dim / heads"
    )
    ffn_dim: Count = doc(1024, "hidden dimension of the feed-forward networks")
    dropout: Probability = doc(0.1, "dropout of embeddings and of each sublayer's output")
    attention_dropout: Probability = doc(0.0, "dropout of attention weights")
    ffn_dropout: Probability = doc(0.0, "dropout inside the feed-forward networks")
    norm: Literal["layer", "rms"] = doc("layer", "LayerNorm or RMSNorm", arxiv="1910.07467")
    norm_first: bool = doc(True, "pre-norm instead of post-norm", arxiv="2002.04745")
    norm_eps: Annotated[float, Range(0.0)] = doc(1e-5, "added to the variance in norms")
    activation: Literal["relu", "gelu", "gelu_tanh", "silu", "swiglu", "geglu"] = doc(
        "relu", "activation of the feed-forward networks; swiglu and geglu are gated"
    )
    positions: PositionName = doc(
        "sinusoidal", "position encoding of the source: sinusoidal, learned or none"
    )
    max_positions: Count = doc(512, "largest source length of learned positions")
    score: ScoreName = doc("scaled_dot", "attention score function")

    @property
    def blocks(self) -> TransformerConfig:
        """The configuration of its Transformer blocks, and of how the source enters."""
        return TransformerConfig(
            dim=self.dim,
            layers=self.layers,
            heads=self.heads,
            value_dim=self.value_dim,
            ffn_dim=self.ffn_dim,
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
            ffn_dropout=self.ffn_dropout,
            norm=self.norm,
            norm_first=self.norm_first,
            norm_eps=self.norm_eps,
            activation=self.activation,
            positions=self.positions,
            max_positions=self.max_positions,
            score=self.score,
        )

    def conflicts(self) -> Iterator[Problem]:
        positions = POSITIONS[self.positions]
        if not issubclass(positions, PositionEncoding) and self.positions != "none":
            yield Problem(
                "positions",
                "'sinusoidal', 'learned' or 'none': a learned query is at no distance from a token",
                repr(self.positions),
                "Change it.",
            )
            return
        try:
            _ = self.blocks
        except InvalidRecipe as error:
            yield from error.problems

    def block_dims(self) -> dict[str, int]:
        return self.blocks.block_dims()

    def unused_as_encoder(self, decoder: object) -> UnusedKeys:
        if not POSITIONS[self.positions].limited:
            yield "max_positions", "only learned positions have a longest sequence"


class SourceAttention(nn.Module):
    """Cross-attention of the latent vectors to the source and a feed-forward network,
    each with its residual.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.residual = pre_norm if config.norm_first else post_norm
        # Pre-norm blocks leave no normalized states,
        # so the keys and values get a norm as the queries do.
        self.source_norm = norm_of(config) if config.norm_first else nn.Identity()
        self.cross_attn = MultiHead(
            config.dim,
            config.heads,
            value_dim=config.value_dim,
            score=config.score,
            dropout=config.attention_dropout,
            norm_eps=config.norm_eps,
        )
        self.cross_attn.attention_kind = "pool"
        self.norm1 = norm_of(config)
        self.ffn = FeedForward(config)
        self.norm2 = norm_of(config)
        self.dropout = Dropout(config.dropout)

    def forward(
        self,
        latents: PendingResidual,
        states: Float[Tensor, "B S W"],
        mask: Bool[Tensor, "B S"],
    ) -> PendingResidual:
        source = self.source_norm(states)

        def attend(queries: Tensor) -> Tensor:
            attended: Tensor = self.cross_attn(queries, source, mask=mask[:, None])
            return attended

        attended = self.residual(latents, self.norm1, self.dropout, attend)
        return self.residual(attended, self.norm2, self.dropout, self.ffn)


class LatentLayer(nn.Module):
    """A Transformer block of the latent vectors, after attention to the source if it has any."""

    def __init__(self, config: TransformerConfig, *, reads_source: bool) -> None:
        super().__init__()
        self.cross = SourceAttention(config) if reads_source else None
        self.block = TransformerBlock(config)

    def forward(
        self,
        latents: PendingResidual,
        states: Float[Tensor, "B S W"],
        mask: Bool[Tensor, "B S"],
    ) -> PendingResidual:
        if self.cross is not None:
            latents = self.cross(latents, states, mask)
        changed: PendingResidual = self.block(latents, PaddedInputs())
        return changed


class PerceiverEncoder(SequenceEncoder):
    """Learned queries that attend to the source,
    then to each other (https://arxiv.org/abs/2103.03206).

    The memory has a state for each query and none for a token of the source; its mask is True
    everywhere. The queries of an empty source attend to nothing, which adds the bias of the output
    projection alone.
    """

    keeps_positions = False

    def __init__(self, config: PerceiverConfig, input_module: InputModule) -> None:
        super().__init__(input_module)
        blocks = config.blocks
        self.dim = config.dim
        self.input_layer = InputLayer(blocks, bidirectional=True)
        # Unit variance: near zero, all queries would start as the mean of the source.
        self.queries = nn.Parameter(torch.randn(config.queries, config.dim))
        self.layers = TypedModuleList[LatentLayer](
            LatentLayer(blocks, reads_source=i == 0 or config.repeat_cross_attention)
            for i in range(config.layers)
        )
        self.norm = norm_of(blocks) if config.norm_first else nn.Identity()
        self.dropout = Dropout(config.dropout)

    def encode(self, vectors: InputVectors) -> Memory:
        states = vectors.states()  # (B, S, W)
        mask = vectors.mask
        source = self.input_layer(states)
        queries = self.queries.to(source.dtype).expand(states.shape[0], -1, -1)  # (B, Q, W)
        latents = PendingResidual(queries)
        for layer in self.layers:
            latents = layer(latents, source, mask)
        found = add_norm(latents, self.dropout, self.norm)[1]
        return Memory(found, mask.new_ones(found.shape[:2]), found.mean(1))
