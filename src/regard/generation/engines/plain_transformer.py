"""Transformers of plain blocks, which every engine implements."""

from torch import nn

from regard.kernels.layers.linear import ACTIVATIONS
from regard.model.embedding import Embedding
from regard.model.multihead import MultiHead
from regard.model.positions import Add
from regard.model.scores import ScaledDot
from regard.model.transformer_block import (
    FeedForward,
    InputLayer,
    TransformerBlock,
    TransformerStack,
)


def is_plain(module: nn.Module) -> bool:
    """Whether a module is an evaluating Transformer of plain blocks.

    Plain: scaled dot products, one key head per query head, absolute or no positions, an ungated feed-forward layer.
    """
    if not is_evaluating_transformer(module):
        return False
    stack = module.stack
    input_layer = module.input_layer
    assert isinstance(stack, TransformerStack)
    assert isinstance(input_layer, InputLayer)
    return (
        input_layer.relative_bias is None
        and isinstance(input_layer.norm, nn.Identity)
        and all(_is_plain_block(block) for block in stack.layers)
    )


def is_evaluating_transformer(module: nn.Module) -> bool:
    """Whether a module is a Transformer over tokens, not in training, without a sliding window."""
    input_layer = part(module, "input_layer")
    return (
        isinstance(part(module, "stack"), TransformerStack)
        and isinstance(input_layer, InputLayer)
        and isinstance(part(module, "embed_tokens"), Embedding)
        and not module.training
        and getattr(module, "window", None) is None
        and (
            input_layer.position_encoding is None or isinstance(input_layer.position_encoding, Add)
        )
        and input_layer.position_proj is None
        and input_layer.token_types is None
    )


def is_plain_attention(attention: nn.Module) -> bool:
    """Whether attention is of scaled dot products, with one key head per query head and without positions."""
    assert isinstance(attention, MultiHead)
    return (
        isinstance(part(attention, "score"), ScaledDot)
        and attention.kv_heads == attention.heads
        and attention.heads * attention.head_dim == attention.dim
        and attention.value_dim == attention.head_dim
        and part(attention, "rotary") is None
        and part(attention, "q_norm") is None
    )


def part(module: nn.Module, name: str) -> nn.Module | None:
    """A submodule, or None; as an attribute, in a fraction of its time, because every search looks at all blocks."""
    return module._modules.get(name)


def attentions(block: TransformerBlock) -> list[nn.Module]:
    return [each for name in ("self_attn", "cross_attn") if (each := part(block, name)) is not None]


def _is_plain_block(block: TransformerBlock) -> bool:
    ffn = part(block, "ffn")
    return (
        all(map(is_plain_attention, attentions(block)))
        and isinstance(ffn, FeedForward)
        and part(ffn, "gate") is None
        and ffn.activation in ACTIVATIONS.values()
    )
