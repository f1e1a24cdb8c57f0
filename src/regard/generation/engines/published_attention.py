"""Publishes the attention of an engine's kernels to captures: the queries, keys and values that they used."""

from math import sqrt

import torch
from torch import nn

from regard.core.shapes import Bool, Float, Int, Tensor
from regard.kernels.attention.mask import AttentionMask
from regard.kernels.attention.score_function import DotScoreFunction
from regard.kernels.attention.spec import AttentionSpec
from regard.model import capture


def publish(
    source: nn.Module | None,
    query: Float[Tensor, "B N W"],
    key_value: Float[Tensor, "B M 2 C"],
    visible: Bool[Tensor, "B rows M"],
    heads: int,
    kv_heads: int | None = None,
    bias: Float[Tensor, "1 H 1 M"] | None = None,
    *,
    scaled: bool = True,
) -> None:
    """Publish dot-product attention of N queries to the visible ones of M keys, as `MultiHead` does.

    `visible` is of each query, or one row for all; `kv_heads` are as many as heads by default. Without `scaled`, dot
    products are not divided by the root of their dim.
    """
    split = (*key_value.shape[:3], heads if kv_heads is None else kv_heads, -1)
    key, value = key_value.reshape(split).permute(2, 0, 3, 1, 4)  # (B, G, M, D) each
    query = query.reshape(*query.shape[:2], heads, -1).transpose(1, 2)  # (B, H, N, D)
    mask = AttentionMask(visible[:, None])
    spec = AttentionSpec(
        DotScoreFunction(1 / sqrt(query.shape[-1]) if scaled else 1.0), query, key, mask, bias
    )
    lse = spec.scores(slice(0, spec.n), 0, spec.m).logsumexp(-1)
    capture.publish(source, spec, lse, (len(query), heads), value)


def publish_step(
    source: nn.Module | None,
    query: Float[Tensor, "rows W"],
    cache: Float[Tensor, "B M K 2 C"],
    parents: Int[Tensor, "B K M"],
    admitted: Int[Tensor, " B"],
    heads: int,
    kv_heads: int | None = None,
    bias: Float[Tensor, "M H"] | None = None,
    *,
    scaled: bool = True,
) -> None:
    """Publish the self-attention of one step: of K hypotheses of each sequence to their ancestors of M steps.

    bias   of each step, added to the scores
    """
    batch, steps, beams = cache.shape[:3]
    ancestors = parents[..., None] == torch.arange(beams, device=parents.device)  # (B, K, M, K)
    present = torch.arange(steps, device=parents.device) >= admitted[:, None]  # (B, M)
    visible = (ancestors & present[:, None, :, None]).flatten(2)
    keys = cache.flatten(1, 2)
    spread = None if bias is None else bias.T.repeat_interleave(beams, -1)[None, :, None]
    publish(
        source, query.view(batch, beams, -1), keys, visible, heads, kv_heads, spread, scaled=scaled
    )
