"""Transformer blocks, and the stacks of them in encoders, decoders and vision Transformers."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from regard.core.sequence import Packing, SequenceOffsets
from regard.core.shapes import Bool, Float, Int, Tensor
from regard.kernels.attention.bias import Bias, DistanceBias
from regard.kernels.layers.dropout import Dropout
from regard.kernels.layers.linear import ACTIVATIONS, Linear, linear
from regard.kernels.layers.linear_fp8 import linear_fp8
from regard.kernels.layers.residual_norm import OffsetRMSNorm, PendingResidual, add_norm
from regard.model.attention import Window
from regard.model.kv_cache import KeyValue, KeyValueCache
from regard.model.memory import Memory, PackedMemory
from regard.model.module_list import TypedModuleList
from regard.model.multihead import MultiHead
from regard.model.positions import (
    POSITIONS,
    Add,
    Concatenate,
    PositionBias,
    PositionEncoding,
    Rotary,
    Start,
)
from regard.model.transformer_config import TransformerConfig

JOINS: dict[str, type[Add] | type[Concatenate]] = {"add": Add, "concatenate": Concatenate}
NORMS: dict[str, Callable[..., nn.Module]] = {
    "layer": nn.LayerNorm,
    "rms": nn.RMSNorm,
    "rms_offset": OffsetRMSNorm,
}
GATED = {"swiglu": "silu", "geglu": "gelu_tanh"}  # the activation of the gate


class FeedForward(nn.Module):
    """The position-wise feed-forward network: down(activation(up(x))),
    or gated down(activation(gate(x)) * up(x)).
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.kind = GATED.get(config.activation, config.activation)
        self.activation = ACTIVATIONS[self.kind]
        inner = partial(nn.Linear, config.dim, config.ffn_dim, config.ffn_bias)
        self.gate = inner() if config.activation in GATED else None
        self.up = inner()
        self.down = nn.Linear(config.ffn_dim, config.dim, config.ffn_bias)
        self.dropout = Dropout(config.ffn_dropout)
        self.linear: Linear = linear

    def forward(self, x: Float[Tensor, "*lead W"]) -> Float[Tensor, "*lead W"]:
        if self.gate is None:
            hidden = self.linear(x, self.up.weight, self.up.bias, self.kind)
        else:
            gate = self.linear(x, self.gate.weight, self.gate.bias, self.kind)
            hidden = gate * self.linear(x, self.up.weight, self.up.bias)
        return self.linear(self.dropout(hidden), self.down.weight, self.down.bias)


class PaddedInputs(NamedTuple):
    """What the attentions of every block read, for padded sequences,
    or their tokens alone with `packing`.
    """

    mask: Tensor | None = None
    causal: bool = False
    bias: DistanceBias | None = None
    packing: Packing | None = None
    memory: Float[Tensor, "*lead D"] | None = None  # states, packed if there is a `memory_packing`
    memory_mask: Tensor | None = None
    memory_packing: Packing | None = None
    window: int | None = None  # keys before the query's position

    def with_memory(self, memory: Memory) -> "PaddedInputs":
        packing = Packing.where_useful(memory.mask)
        states = memory.states
        if packing is not None:
            states = packing.pack(states)
        return self._replace(
            memory=states, memory_mask=memory.mask[:, None], memory_packing=packing
        )

    def attend_self(self, attention: MultiHead, x: Tensor) -> Tensor:
        out: Tensor = attention(
            x,
            mask=self.mask,
            causal=self.causal,
            window=(self.window, None),
            bias=self.bias,
            packing=self.packing,
        )
        return out

    def attend_memory(self, attention: MultiHead, x: Tensor) -> Tensor:
        assert self.memory is not None
        memory = attention.project_memory(self.memory, self.memory_packing)
        return attention.attend_memory(x, memory, mask=self.memory_mask, packing=self.packing)


class PackedInputs(NamedTuple):
    """What the attentions of every block read, for packed sequences."""

    offsets: SequenceOffsets
    causal: bool
    memory: PackedMemory | None = None
    window: int | None = None

    def attend_self(self, attention: MultiHead, x: Tensor) -> Tensor:
        return attention.forward_packed(x, self.offsets, causal=self.causal, window=self.window)

    def attend_memory(self, attention: MultiHead, x: Tensor) -> Tensor:
        assert self.memory is not None
        return attention.forward_packed(x, self.offsets, self.memory.states, self.memory.offsets)


class StepInputs(NamedTuple):
    """What the attentions of one block read in a step of decoding; see `MultiHead.step`."""

    cache: KeyValueCache
    bias: Bias | None
    window: Window | None
    visible: Tensor | None
    position: int | Int[Tensor, " B"] | None
    memory: KeyValue | None
    memory_mask: Tensor | None

    def attend_self(self, attention: MultiHead, x: Tensor) -> Tensor:
        return attention.step(
            x,
            self.cache,
            window=self.window,
            bias=self.bias,
            visible=self.visible,
            position=self.position,
        )

    def attend_memory(self, attention: MultiHead, x: Tensor) -> Tensor:
        assert self.memory is not None
        return attention.attend_memory(x, self.memory, mask=self.memory_mask)


BlockInputs = PaddedInputs | PackedInputs | StepInputs
Sublayer = Callable[[Tensor], Tensor]


def pre_norm(
    given: PendingResidual, norm: nn.Module, dropout: Dropout, sublayer: Sublayer
) -> PendingResidual:
    """Pre-norm, x + sublayer(norm(x)):
    the residual path is never normalized (https://arxiv.org/abs/2002.04745).

    The sublayer's output stays pending and is added where the next norm is computed, in one fused
    kernel on a GPU.
    """
    x, h = add_norm(given, dropout, norm)
    return PendingResidual(x, sublayer(h))


def post_norm(
    given: PendingResidual, norm: nn.Module, dropout: Dropout, sublayer: Sublayer
) -> PendingResidual:
    """Post-norm, norm(x + sublayer(x)) (https://arxiv.org/abs/1706.03762)."""
    return PendingResidual(add_norm(PendingResidual(given.x, sublayer(given.x)), dropout, norm)[1])


class TransformerBlock(nn.Module):
    """Self-attention, cross-attention if there is a memory, and the feed-forward network,
    each with its residual.
    """

    def __init__(self, config: TransformerConfig, memory_dim: int | None = None) -> None:
        super().__init__()
        self.residual = pre_norm if config.norm_first else post_norm
        make = partial(
            MultiHead,
            config.dim,
            config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            value_dim=config.value_dim,
            score=config.score,
            bias=config.attention_bias != "none",
            out_bias=config.attention_bias == "all",
            dropout=config.attention_dropout,
            qk_norm=config.qk_norm,
            norm_eps=config.norm_eps,
        )
        positions = POSITIONS[config.positions]
        options = config.position_options(bidirectional=False)
        rotary = positions.build(options) if issubclass(positions, Rotary) else None
        self.self_attn = make(rotary=rotary)
        self.norm1 = norm_of(config)
        self.cross_attn = None if memory_dim is None else make(source_dim=memory_dim)
        self.norm2 = norm_of(config)
        self.ffn = FeedForward(config)
        self.norm3 = None if memory_dim is None else norm_of(config)
        self.dropout = Dropout(config.dropout)

    @property
    def ffn_norm(self) -> nn.Module:
        """The norm of the last sublayer: norm3 after cross-attention, else norm2."""
        return self.norm2 if self.norm3 is None else self.norm3

    def forward(self, x: PendingResidual, inputs: BlockInputs) -> PendingResidual:
        x = self.residual(x, self.norm1, self.dropout, partial(inputs.attend_self, self.self_attn))
        if inputs.memory is not None:
            assert self.cross_attn is not None
            x = self.residual(
                x, self.norm2, self.dropout, partial(inputs.attend_memory, self.cross_attn)
            )
        return self.residual(x, self.ffn_norm, self.dropout, self.ffn)


def use_fp8(model: nn.Module) -> None:
    """Compute the products of the linear layers
    of its blocks in float8 wherever gradients are computed.
    """
    for block in (module for module in model.modules() if isinstance(module, TransformerBlock)):
        for part in (block.self_attn, block.cross_attn, block.ffn):
            if part is not None:
                part.linear = linear_fp8


class InputLayer(nn.Module):
    """Segment and position encoding,
    optional norm and dropout between the embeddings and the first block.
    """

    def __init__(self, config: TransformerConfig, *, bidirectional: bool) -> None:
        super().__init__()
        self.position_encoding: Add | Concatenate | None = None
        self.position_proj: nn.Linear | None = None
        self.relative_bias: PositionBias | None = None
        positions = POSITIONS[config.positions]
        options = config.position_options(bidirectional=bidirectional)
        if issubclass(positions, PositionEncoding):
            self.position_encoding = JOINS[config.position_mode](positions.build(options))
        elif issubclass(positions, PositionBias):
            self.relative_bias = positions.build(options)
        if config.position_mode == "concatenate":
            self.position_proj = nn.Linear(2 * config.dim, config.dim)
        self.token_types: nn.Parameter | None = None
        if config.token_types:
            self.token_types = nn.Parameter(torch.randn(config.token_types, config.dim) * 0.02)
        self.norm = norm_of(config) if config.norm_input else nn.Identity()
        self.dropout = Dropout(config.dropout)

    def forward(
        self,
        x: Float[Tensor, "*lead W"],
        start: Start = 0,
        types: Int[Tensor, "B S"] | None = None,
    ) -> Float[Tensor, "*lead W"]:
        if self.token_types is not None and types is None:
            x = x + self.token_types[0].to(x.dtype)
        elif self.token_types is not None and types is not None:
            # With one segment, as RoBERTa has, all tokens are of it.
            segments = types.clamp(max=len(self.token_types) - 1)
            x = x + self.token_types[segments].to(x.dtype)
        if self.position_encoding is not None:
            x = self.position_encoding(x, start)
        if self.position_proj is not None:
            x = self.position_proj(x)
        entered: Tensor = self.dropout(self.norm(x))
        return entered

    @property
    def limit(self) -> int | None:
        """The number of positions, where they are learned."""
        if self.position_encoding is None:
            return None
        return self.position_encoding.positions.limit

    def bias(self, n: int, m: int) -> DistanceBias | None:
        if self.relative_bias is None:
            return None
        bias: DistanceBias = self.relative_bias(n, m)
        return bias


class ClsToken(nn.Module):
    """A learned state before the first (https://arxiv.org/abs/1810.04805)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.randn(dim) * 0.02)

    def forward(
        self, x: Float[Tensor, "B S W"], mask: Bool[Tensor, "B S"]
    ) -> tuple[Float[Tensor, "B S1 W"], Bool[Tensor, "B S1"]]:
        first = self.embedding.expand(x.shape[0], 1, -1)
        return torch.cat((first, x), 1), F.pad(mask, (1, 0), value=True)


class TransformerStack(nn.Module):
    """A stack of blocks, with a final norm where they are pre-norm."""

    def __init__(self, config: TransformerConfig, memory_dim: int | None = None) -> None:
        super().__init__()
        self.layers = TypedModuleList[TransformerBlock](
            TransformerBlock(config, memory_dim) for _ in range(config.layers)
        )
        self.norm = norm_of(config) if config.norm_first else nn.Identity()
        self.dropout = Dropout(config.dropout)
        self.activation_checkpointing = config.activation_checkpointing

    def forward(
        self, x: Float[Tensor, "*lead W"], inputs: BlockInputs | list[StepInputs]
    ) -> Float[Tensor, "*lead W"]:
        """The states after the last block.

        `inputs` are those of all blocks, or a list of those of each.
        """
        given = PendingResidual(x)
        recompute = self.activation_checkpointing and self.training and torch.is_grad_enabled()
        for i, block in enumerate(self.layers):
            each = inputs[i] if isinstance(inputs, list) else inputs
            if recompute:
                given = checkpoint(block, given, each, use_reentrant=False)
            else:
                given = block(given, each)
        return add_norm(given, self.dropout, self.norm)[1]


def norm_of(config: TransformerConfig) -> nn.Module:
    """A norm of the kind that the configuration names."""
    return NORMS[config.norm](config.dim, eps=config.norm_eps)
