"""The weights of a Transformer's blocks in the order in which engines copy them."""

from typing import NamedTuple

import torch
from torch import nn

from regard.core.shapes import Float, Tensor
from regard.model.embedding import Projection
from regard.model.transformer_block import TransformerBlock


def block_projections(block: TransformerBlock) -> list[tuple[nn.Linear, ...]]:
    """The linear layers of a block in the order of `LayerTable`, each with those it is fused with; () for none."""
    self_attn = block.self_attn
    cross = block.cross_attn
    ffn = block.ffn
    qkv = self_attn.q_proj, self_attn.k_proj, self_attn.v_proj
    of_cross = [(), ()] if cross is None else [(cross.q_proj,), (cross.out_proj,)]
    return [qkv, (self_attn.out_proj,), *of_cross, (ffn.up,), (ffn.down,)]


def head_norms(block: TransformerBlock) -> list[nn.RMSNorm | None]:
    """The norms of queries and keys of a block, and of the queries of its cross-attention."""
    cross = block.cross_attn
    return [block.self_attn.q_norm, block.self_attn.k_norm, None if cross is None else cross.q_norm]


def block_norms(block: TransformerBlock) -> list[nn.Module | None]:
    """The norms of a block, one per sublayer; None for the cross-attention's where there is none."""
    return [block.norm1, None if block.cross_attn is None else block.norm2, block.ffn_norm]


class LinearWeights(NamedTuple):
    """The weights of a linear layer that is no module of its own."""

    weight: Float[Tensor, "out in"]
    bias: Float[Tensor, " out"] | None = None


def weight_and_bias(
    *layers: nn.Linear | Projection | LinearWeights,
) -> tuple[Float[Tensor, "out in"], Float[Tensor, " out"]]:
    """The weight and bias of linear layers of one input side by side, zeros where a layer has no bias."""
    scales = [layer.scale if isinstance(layer, Projection) else 1.0 for layer in layers]
    weights = [layer.weight.detach() for layer in layers]
    biases = [
        w.new_zeros(len(w)) if b is None else b.detach()
        for w, b in ((x.weight, x.bias) for x in layers)
    ]
    scaled = [w if s == 1.0 else w * s for w, s in zip(weights, scales, strict=True)]
    return torch.cat(scaled), torch.cat(biases)
