"""Exact weights of the rows you name, and summaries of every row, without ever laying out N × M.

A weight is exp(score − log-sum-exp), and the kernel that computed the output already had the log-sum-exp.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from regard.core.shapes import Float, Int, LogSumExp, Tensor
from regard.kernels.attention import weights_cuda
from regard.kernels.attention.blockwise import batch_part, blocks, normalise
from regard.kernels.attention.mask import RowRange
from regard.kernels.attention.reference import softmax
from regard.kernels.attention.spec import AttentionSpec, spread


def weights(spec: AttentionSpec, rows: RowRange, lse: LogSumExp | None = None) -> Float[Tensor, "B H R M"]:
    if lse is not None and weights_cuda.supports(spec):
        return weights_cuda.weights(spec, rows, lse)
    with torch.autocast(spec.query.device.type, enabled=False):
        scores = spec.scores(rows, 0, spec.m)
        if lse is None:
            return softmax(scores)
        return scores.sub_(lse[:, :, rows, None]).exp_()


@dataclass(frozen=True)
class Summary:
    """What each row of weights comes to. Every row has a number here; no row is kept."""

    entropy: Float[Tensor, "*lead N"]  # in nats: 0 looks at one key, log M looks at all alike
    distance: Float[Tensor, "*lead N"]  # the mean of |key position − query position|
    top_weights: Float[Tensor, "*lead N top"]  # the largest weights, largest first
    top_keys: Int[Tensor, "*lead N top"]  # and where they are; -1 beside a weight of zero
    mass: Float[Tensor, "*lead N"] | None  # the share of weight on the keys asked about


def summarise(
    spec: AttentionSpec, *, top: int, on: Float[Tensor, " M"] | None = None, lse: LogSumExp | None = None
) -> Summary:
    if weights_cuda.supports(spec) and top <= weights_cuda.MOST:
        return Summary(*weights_cuda.summarise(spec, top, on, lse))
    shape = spec.query.shape[:3]
    empty = spec.query.new_zeros(shape, dtype=torch.promote_types(spec.query.dtype, torch.float32))
    summary = Summary(
        entropy=empty,
        distance=empty.clone(),
        top_weights=empty.new_zeros(*shape, top),
        top_keys=torch.full((*shape, top), -1, device=empty.device),
        mass=None if on is None else empty.clone(),
    )
    for part, rows, low, seen in tiles(spec, lse):
        keys = torch.arange(low, low + seen.shape[-1], device=seen.device)
        position = torch.arange(spec.n, device=seen.device)[rows, None] + (spec.m - spec.n)
        summary.entropy[part, :, rows] = entropy(seen)
        summary.distance[part, :, rows] = (seen * (keys - position).abs()).sum(-1)
        best = seen.topk(min(top, len(keys)), dim=-1)
        summary.top_weights[part, :, rows, : best.values.shape[-1]] = best.values
        summary.top_keys[part, :, rows, : best.values.shape[-1]] = (best.indices + low).where(best.values > 0, -1)
        if on is not None and summary.mass is not None:
            summary.mass[part, :, rows] = seen @ on[low : low + len(keys)]
    return summary


def tiles(spec: AttentionSpec, lse: LogSumExp | None = None) -> Iterator[tuple[slice, slice, int, Tensor]]:
    """All weights, a block at a time: which items of the batch, which rows, from which key on, and their weights."""
    spec = replace(spec, key=spread(spec.key, spec.query.shape[1]))
    for part, rows, low, high in blocks(spec):
        with torch.autocast(spec.query.device.type, enabled=False):
            scores = batch_part(spec, part).scores(rows, low, high)
            seen = normalise(scores)[0] if lse is None else scores.sub_(lse[part, :, rows, None]).exp_()
        yield part, rows, low, seen


def entropy(seen: Float[Tensor, "*lead C"]) -> Float[Tensor, "*lead"]:
    """Of each row; a weight of zero adds nothing. Seven times as fast as torch.special.entr on a CPU."""
    return seen.clamp(min=torch.finfo(seen.dtype).tiny).log_().mul_(seen).sum(-1).neg_()
