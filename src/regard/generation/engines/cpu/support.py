"""Which Transformers the compiled engines implement."""

from torch import nn

from regard.generation.engines.cpu.weight_layout import KINDS
from regard.model.embedding import Embedding
from regard.model.multihead import MultiHead
from regard.model.positions import Add, Rotary
from regard.model.scores import Dot, ScaledDot
from regard.model.transformer_block import (
    FeedForward,
    InputLayer,
    TransformerBlock,
    TransformerStack,
)


def supported(module: nn.Module) -> bool:
    """Whether a module is an evaluating Transformer of plain blocks, which all engines implement.

    Plain: scaled dot products, one key head per query head, absolute or no positions, an ungated feed-forward layer.
    """
    if not decodes(module):
        return False
    stack, input_layer = module.stack, module.input_layer
    assert isinstance(stack, TransformerStack)
    assert isinstance(input_layer, InputLayer)
    return (
        input_layer.relative_bias is None
        and isinstance(input_layer.norm, nn.Identity)
        and all(_plain_block(block) for block in stack.layers)
    )


def decodes(module: nn.Module) -> bool:
    """Whether a module is an evaluating Transformer whose steps the CPU engine implements.

    With dot products, scaled or not; heads of any dim and grouped key heads, norms of queries and keys, absolute or
    rotary positions and biases of distances, gated feed-forward layers; without a sliding window.
    """
    stack, input_layer, embedding = (
        part(module, name) for name in ("stack", "input_layer", "embed_tokens")
    )
    return (
        isinstance(stack, TransformerStack)
        and isinstance(input_layer, InputLayer)
        and isinstance(embedding, Embedding)
        and not module.training
        and getattr(module, "window", None) is None
        and (
            input_layer.position_encoding is None or isinstance(input_layer.position_encoding, Add)
        )
        and input_layer.position_proj is None
        and input_layer.token_types is None
        and all(_compiled_block(block) for block in stack.layers)
    )


def plain_attention(attention: nn.Module) -> bool:
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


def _attentions(block: TransformerBlock) -> list[nn.Module]:
    return [each for name in ("self_attn", "cross_attn") if (each := part(block, name)) is not None]


def _plain_block(block: TransformerBlock) -> bool:
    ffn = part(block, "ffn")
    return (
        all(map(plain_attention, _attentions(block)))
        and ffn is not None
        and part(ffn, "gate") is None
    )


def _compiled_block(block: TransformerBlock) -> bool:
    attentions, ffn = _attentions(block), part(block, "ffn")
    dot_products = {type(part(attention, "score")) for attention in attentions} in (
        {ScaledDot},
        {Dot},
    )
    rotary = part(attentions[0], "rotary")
    assert isinstance(ffn, FeedForward)
    # The caches of the compiled step hold keys and values of one dim.
    one_dim = all(each.value_dim == each.head_dim for each in attentions)
    return (
        one_dim
        and dot_products
        and (rotary is None or type(rotary) is Rotary)
        and ffn.activation in KINDS
    )
