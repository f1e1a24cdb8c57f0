"""Which Transformers the CPU engine implements."""

from torch import nn

from regard.generation.engines.cpu.weight_layout import KINDS
from regard.generation.engines.plain_transformer import (
    attentions,
    is_evaluating_transformer,
    part,
)
from regard.model.positions import Rotary
from regard.model.scores import Dot, ScaledDot
from regard.model.transformer_block import FeedForward, TransformerBlock, TransformerStack


def decodes(module: nn.Module) -> bool:
    """Whether a module is an evaluating Transformer whose steps the CPU engine implements.

    With dot products, scaled or not; heads of any dim and grouped key heads, norms of queries and keys, absolute or
    rotary positions and biases of distances, gated feed-forward layers; without a sliding window.
    """
    if not is_evaluating_transformer(module):
        return False
    stack = module.stack
    assert isinstance(stack, TransformerStack)
    return all(_compiled_block(block) for block in stack.layers)


def _compiled_block(block: TransformerBlock) -> bool:
    of_block = attentions(block)
    ffn = part(block, "ffn")
    dot_products = {type(part(attention, "score")) for attention in of_block} in (
        {ScaledDot},
        {Dot},
    )
    rotary = part(of_block[0], "rotary")
    assert isinstance(ffn, FeedForward)
    # The caches of the compiled step hold keys and values of one dim.
    one_dim = all(each.value_dim == each.head_dim for each in of_block)
    return (
        one_dim
        and dot_products
        and (rotary is None or type(rotary) is Rotary)
        and ffn.activation in KINDS
    )
