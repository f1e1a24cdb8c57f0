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
    of_part = [each for each in maps if each.part == part and each.source == source]
    layers = [each for each in of_part if each.kind == "self"]
    if not layers:
        wanted = f"self-attention in the {part}"
        remedy = "Try part='encoder' or 'decoder'."
        raise InvalidArgument("rollout", wanted=wanted, got="none", remedy=remedy)
    n = layers[0].size[0]
    if rows is None:
        chosen = torch.arange(n)
    else:
        chosen = picked("rows", rows, n, torch.device("cpu"))
    # From the last layer to the first, so that only the chosen rows are multiplied.
    relevance = torch.zeros(len(chosen), n)
    relevance[torch.arange(len(chosen)), chosen] = 1.0
    for layer in reversed(layers):
        attended = torch.zeros_like(relevance)
        for tile_rows, low, weights, _ in layer.tiles():
            mean = weights.mean(0).float().cpu()  # (R, C)
            high = low + mean.shape[1]
            attended[:, low:high] += relevance[:, tile_rows] @ mean
        relevance = (relevance + attended) / 2
    return relevance
