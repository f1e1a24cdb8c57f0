"""Exact rows and summaries of dot products on a GPU: each in one kernel that reads the keys past blocks of rows."""

from typing import Any

import torch

from regard.core.shapes import Float, LogSumExp, Tensor
from regard.kernels import triton_launch
from regard.kernels.attention import sdpa
from regard.kernels.attention.mask import RowRange
from regard.kernels.attention.score_function import DotScoreFunction
from regard.kernels.attention.spec import AttentionSpec

ROWS, KEYS, WARPS = 64, 64, 4  # of a tile
WIDEST, MOST = 256, 64  # the width of queries, and how many of a row's weights stay in registers


def supports(spec: AttentionSpec) -> bool:
    fits = isinstance(spec.score_function, DotScoreFunction) and spec.bias is None and spec.query.shape[-1] <= WIDEST
    return fits and triton_launch.can_launch(spec.query, spec.key)


def weights(spec: AttentionSpec, rows: RowRange, lse: LogSumExp) -> Float[Tensor, "B H R M"]:
    from regard.kernels.attention.additive_triton import dot_rows

    batch, heads = spec.query.shape[:2]
    picks = torch.arange(spec.n, device=spec.query.device)[rows]
    found = lse.new_empty(batch, heads, len(picks), spec.m, dtype=torch.float32)
    if len(picks):
        tensors, numbers, sizes, constants = _arguments(spec)
        grid = batch * heads * -(-len(picks) // ROWS), -(-spec.m // KEYS)
        with triton_launch.on_device_of(found):
            dot_rows[grid](*tensors, lse.contiguous(), picks, found, *numbers, len(picks), *sizes, **constants)
    return found


def summarise(
    spec: AttentionSpec, top: int, on: Float[Tensor, " M"] | None, lse: LogSumExp | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """The fields of a `Summary`. Of equal weights the first keys count as the largest."""
    from regard.kernels.attention.additive_triton import dot_summary

    if lse is None:
        _, lse = sdpa.attend(spec, spec.key)
    shape = spec.query.shape[:3]
    entropy, distance, mass = (lse.new_empty(shape, dtype=torch.float32) for _ in range(3))
    top_weights = entropy.new_empty(*shape, top)
    top_keys = entropy.new_empty(*shape, top, dtype=torch.int64)
    tensors, numbers, sizes, constants = _arguments(spec)
    with triton_launch.on_device_of(entropy):
        dot_summary[(shape[0] * shape[1] * -(-spec.n // ROWS),)](
            *tensors, lse.contiguous(), entropy if on is None else on, entropy, distance, mass, top_weights, top_keys,
            *numbers, top, *sizes, **constants,
            WHOLE=spec.m % KEYS == 0 and spec.visible.allowed is None and not spec.visible.banded,
            ON=on is not None, TOP=triton_launch.next_power_of_2(top, 1) if top else 0,
        )  # fmt: skip
    return entropy, distance, top_weights, top_keys, None if on is None else mass


def _arguments(spec: AttentionSpec) -> tuple[list[Any], list[Any], list[int], dict[str, Any]]:
    """Queries and keys with their strides; who sees whom, and the scale; sizes; constants."""
    assert isinstance(spec.score_function, DotScoreFunction)
    query, key = (x if x.stride(-1) == 1 else x.contiguous() for x in (spec.query, spec.key))
    sight, constants = triton_launch.mask_arguments(spec.visible, query)
    width, heads = query.shape[-1], query.shape[1]
    return (
        [query, *query.stride()[:3], key, *key.stride()[:3]],
        [*sight, spec.score_function.scale],
        [spec.n, spec.m, width, heads, heads // key.shape[1]],
        constants | {"R": ROWS, "C": KEYS, "D": triton_launch.next_power_of_2(width), "num_warps": WARPS},
    )
