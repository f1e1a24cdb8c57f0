"""Exact attention weights of chosen rows, and summaries of all rows, without materialising (N, M).

A weight is exp(score − log-sum-exp), and the kernel that computed the output returned the log-sum-exp. On a GPU,
dot-product scores without a bias take one Triton kernel each.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from regard.core.shapes import Float, Int, LogSumExp, Tensor
from regard.kernels import triton_launch
from regard.kernels.attention import sdpa
from regard.kernels.attention.blockwise import blocks, softmax_
from regard.kernels.attention.mask import RowRange
from regard.kernels.attention.reference import softmax
from regard.kernels.attention.score_function import DotScoreFunction
from regard.kernels.attention.spec import AttentionSpec, repeat_heads

# Of a tile.
ROWS = 64
KEYS = 64
WARPS = 4
# The head dim, and the number of largest weights of a row, that fit into registers.
MAX_DIM = 256
MAX_TOP = 64


@dataclass(frozen=True)
class Summary:
    """Statistics of each row of weights (..., N, M).

    entropy       (..., N), in nats: 0 for one key, log M for equal weights
    distance      (..., N), the weighted mean of |key position − query position|
    top_weights   (..., N, top), the largest weights, in descending order
    top_keys      (..., N, top), their keys; -1 where the weight is zero
    mass          (..., N), the total weight of the keys `on`; None if none were given
    """

    entropy: Float[Tensor, "*lead N"]
    distance: Float[Tensor, "*lead N"]
    top_weights: Float[Tensor, "*lead N top"]
    top_keys: Int[Tensor, "*lead N top"]
    mass: Float[Tensor, "*lead N"] | None


def weights(
    spec: AttentionSpec, rows: RowRange, lse: LogSumExp | None = None
) -> Float[Tensor, "B H R M"]:
    """The weights of these rows; without the log-sum-exp they are differentiable."""
    if lse is not None and triton_supports(spec):
        return triton_weights(spec, rows, lse)
    with torch.autocast(spec.query.device.type, enabled=False):
        scores = spec.scores(rows, 0, spec.m)
        if lse is None:
            return softmax(scores)
        return scores.sub_(lse[:, :, rows, None]).exp_()


def summarize(
    spec: AttentionSpec,
    *,
    top: int,
    on: Float[Tensor, " M"] | None = None,
    lse: LogSumExp | None = None,
) -> Summary:
    """The summary of every row, streamed; `on` is 1 at the keys whose mass is wanted. Of equal weights, any are top."""
    if triton_supports(spec) and top <= MAX_TOP:
        return triton_summary(spec, top, on, lse)
    shape = spec.query.shape[:3]
    dtype = torch.promote_types(spec.query.dtype, torch.float32)
    zeros = spec.query.new_zeros(shape, dtype=dtype)
    summary = Summary(
        entropy=zeros,
        distance=zeros.clone(),
        top_weights=zeros.new_zeros(*shape, top),
        top_keys=torch.full((*shape, top), -1, device=zeros.device),
        mass=None if on is None else zeros.clone(),
    )
    for part, rows, low, block in weight_blocks(spec, lse):
        high = low + block.shape[-1]
        keys = torch.arange(low, high, device=block.device)  # (C,)
        position = torch.arange(spec.n, device=block.device)[rows, None] + (spec.m - spec.n)
        distances = (keys - position).abs()  # (R, C)
        summary.entropy[part, :, rows] = entropy(block)
        summary.distance[part, :, rows] = (block * distances).sum(-1)
        best = block.topk(min(top, len(keys)), dim=-1)
        count = best.values.shape[-1]
        best_keys = (best.indices + low).where(best.values > 0, -1)
        summary.top_weights[part, :, rows, :count] = best.values
        summary.top_keys[part, :, rows, :count] = best_keys
        if on is not None and summary.mass is not None:
            summary.mass[part, :, rows] = block @ on[low:high]
    return summary


def weight_blocks(
    spec: AttentionSpec, lse: LogSumExp | None = None
) -> Iterator[tuple[slice, slice, int, Tensor]]:
    """All weights, one block at a time: batch slice, row slice, first key, and the weights (b, H, R, C)."""
    spec = replace(spec, key=repeat_heads(spec.key, spec.query.shape[1]))
    for part, rows, low, high in blocks(spec):
        with torch.autocast(spec.query.device.type, enabled=False):
            scores = spec.for_batch(part).scores(rows, low, high)
            if lse is None:
                block, _ = softmax_(scores)
            else:
                block = scores.sub_(lse[part, :, rows, None]).exp_()
        yield part, rows, low, block


def entropy(weights: Float[Tensor, "*lead C"]) -> Float[Tensor, "*lead"]:
    """The entropy of each row, 0 · log 0 being 0. Seven times as fast as torch.special.entr on a CPU."""
    tiny = torch.finfo(weights.dtype).tiny
    logarithms = weights.clamp(min=tiny).log_()
    return logarithms.mul_(weights).sum(-1).neg_()


def triton_supports(spec: AttentionSpec) -> bool:
    """Whether the Triton kernels compute the weights of this call."""
    if not isinstance(spec.score_function, DotScoreFunction) or spec.query.shape[-1] > MAX_DIM:
        return False
    if spec.bias is not None or spec.fixed is not None:
        return False
    return triton_launch.can_launch(spec.query, spec.key)


def triton_weights(spec: AttentionSpec, rows: RowRange, lse: LogSumExp) -> Float[Tensor, "B H R M"]:
    from regard.kernels.attention.weights_triton import dot_weights

    batch, heads = spec.query.shape[:2]
    picks = torch.arange(spec.n, device=spec.query.device)[rows]
    out = lse.new_empty(batch, heads, len(picks), spec.m, dtype=torch.float32)
    if len(picks):
        tensors, numbers, sizes, constants = _arguments(spec)
        row_tiles = -(-len(picks) // ROWS)
        grid = (batch * heads * row_tiles, -(-spec.m // KEYS))
        with triton_launch.on_device_of(out):
            dot_weights[grid](
                *tensors, lse.contiguous(), picks, out, *numbers, len(picks), *sizes, **constants
            )
    return out


def triton_summary(
    spec: AttentionSpec, top: int, on: Float[Tensor, " M"] | None, lse: LogSumExp | None
) -> Summary:
    from regard.kernels.attention.weights_triton import dot_summary

    if lse is None:
        _, lse = sdpa.attend(spec, spec.key)
    shape = spec.query.shape[:3]
    entropies = lse.new_empty(shape, dtype=torch.float32)
    distance = lse.new_empty(shape, dtype=torch.float32)
    mass = lse.new_empty(shape, dtype=torch.float32)
    top_weights = entropies.new_empty(*shape, top)
    top_keys = entropies.new_empty(*shape, top, dtype=torch.int64)
    tensors, numbers, sizes, constants = _arguments(spec)
    programs = shape[0] * shape[1] * -(-spec.n // ROWS)
    top_tile = triton_launch.next_power_of_2(top, 1) if top else 0
    # Every key is in range and may be attended to: no tile needs a mask.
    is_whole = spec.m % KEYS == 0 and spec.visible.allowed is None and not spec.visible.banded
    # Without `on`, the kernel does not read its pointer.
    marked = entropies if on is None else on
    with triton_launch.on_device_of(entropies):
        dot_summary[(programs,)](
            *tensors, lse.contiguous(), marked, entropies, distance, mass,
            top_weights, top_keys, *numbers, top, *sizes, **constants,
            WHOLE=is_whole, ON=on is not None, TOP=top_tile,
        )  # fmt: skip
    return Summary(entropies, distance, top_weights, top_keys, None if on is None else mass)


def _arguments(spec: AttentionSpec) -> tuple[list[Any], list[Any], list[int], dict[str, Any]]:
    """Queries and keys with their strides; the mask and the scale; sizes; constants."""
    assert isinstance(spec.score_function, DotScoreFunction)
    # The kernels read consecutive numbers of a query or key.
    query, key = (x if x.stride(-1) == 1 else x.contiguous() for x in (spec.query, spec.key))
    mask, flags = triton_launch.mask_arguments(spec.visible, query)
    dim = query.shape[-1]
    heads = query.shape[1]
    tensors = [query, *query.stride()[:3], key, *key.stride()[:3]]
    numbers = [*mask, spec.score_function.scale]
    sizes = [spec.n, spec.m, dim, heads, heads // key.shape[1]]
    dim_tile = triton_launch.next_power_of_2(dim)
    constants = {**flags, "R": ROWS, "C": KEYS, "D": dim_tile, "num_warps": WARPS}
    return tensors, numbers, sizes, constants
