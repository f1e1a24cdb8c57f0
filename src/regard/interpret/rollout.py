"""Attention rollout (https://arxiv.org/abs/2005.00928)."""

from collections.abc import Sequence

import torch

from regard.core.errors import InvalidArgument
from regard.core.shapes import Float, Tensor
from regard.interpret.maps import AttentionMap
from regard.model.capture import Pick, picked


@torch.no_grad()
def rollout(
    maps: Sequence[AttentionMap], rows: Pick = None, part: str = "encoder", source: int = 0
) -> Float[Tensor, "R M"]:
    """The product over the layers of (mean over heads + identity) / 2, for these rows of the last layer.

    The identity stands for the residual path. Memory grows with the number of rows asked for.
    """
    layers = [
        each for each in maps if each.kind == "self" and each.part == part and each.source == source
    ]
    if not layers:
        wanted, remedy = f"self-attention in the {part}", "Try part='encoder' or 'decoder'."
        raise InvalidArgument("rollout", wanted=wanted, got="none", remedy=remedy)
    n = layers[0].size[0]
    chosen = torch.arange(n) if rows is None else picked("rows", rows, n, torch.device("cpu"))
    relevance = torch.zeros(len(chosen), n)
    relevance[torch.arange(len(chosen)), chosen] = 1.0
    for layer in reversed(layers):
        attended = torch.zeros_like(relevance)
        for tile_rows, low, weights, _ in layer.tiles():
            mean = weights.mean(0).float().cpu()  # (R, C)
            attended[:, low : low + mean.shape[1]] += relevance[:, tile_rows] @ mean
        relevance = (relevance + attended) / 2
    return relevance
