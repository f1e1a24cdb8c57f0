"""Exact rows and summaries of dot products on a GPU: each in one kernel that reads the keys past blocks of rows."""

from typing import Any

import torch

from regard.core.shapes import Float, LogSumExp, Tensor
from regard.kernels import triton_launch
from regard.kernels.attention import sdpa
from regard.kernels.attention.mask import Rows
from regard.kernels.attention.score_function import DotEnergy
from regard.kernels.attention.spec import Lookup

ROWS, KEYS, WARPS = 64, 64, 4  # of a tile
WIDEST, MOST = 256, 64  # the width of queries, and how many of a row's weights stay in registers


def supports(lookup: Lookup) -> bool:
    fits = isinstance(lookup.energy, DotEnergy) and lookup.bias is None and lookup.query.shape[-1] <= WIDEST
    return fits and triton_launch.takes(lookup.query, lookup.key)


def weights(lookup: Lookup, rows: Rows, lse: LogSumExp) -> Float[Tensor, "B H R M"]:
    from regard.kernels.attention.additive_triton import dot_rows

    batch, heads = lookup.query.shape[:2]
    picks = torch.arange(lookup.n, device=lookup.query.device)[rows]
    found = lse.new_empty(batch, heads, len(picks), lookup.m, dtype=torch.float32)
    if len(picks):
        tensors, numbers, sizes, constants = _arguments(lookup)
        grid = batch * heads * -(-len(picks) // ROWS), -(-lookup.m // KEYS)
        with triton_launch.on_device_of(found):
            dot_rows[grid](*tensors, lse.contiguous(), picks, found, *numbers, len(picks), *sizes, **constants)
    return found


def summarise(
    lookup: Lookup, top: int, on: Float[Tensor, " M"] | None, lse: LogSumExp | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """The fields of a `Summary`. Of equal weights the first keys count as the largest."""
    from regard.kernels.attention.additive_triton import dot_summary

    if lse is None:
        _, lse = sdpa.attend(lookup, lookup.key)
    shape = lookup.query.shape[:3]
    entropy, distance, mass = (lse.new_empty(shape, dtype=torch.float32) for _ in range(3))
    top_weights = entropy.new_empty(*shape, top)
    top_keys = entropy.new_empty(*shape, top, dtype=torch.int64)
    tensors, numbers, sizes, constants = _arguments(lookup)
    with triton_launch.on_device_of(entropy):
        dot_summary[(shape[0] * shape[1] * -(-lookup.n // ROWS),)](
            *tensors, lse.contiguous(), entropy if on is None else on, entropy, distance, mass, top_weights, top_keys,
            *numbers, top, *sizes, **constants,
            WHOLE=lookup.m % KEYS == 0 and lookup.visible.allowed is None and not lookup.visible.banded,
            ON=on is not None, TOP=triton_launch.power(top, 1) if top else 0,
        )  # fmt: skip
    return entropy, distance, top_weights, top_keys, None if on is None else mass


def _arguments(lookup: Lookup) -> tuple[list[Any], list[Any], list[int], dict[str, Any]]:
    """Queries and keys with their strides; who sees whom, and the scale; sizes; constants."""
    assert isinstance(lookup.energy, DotEnergy)
    query, key = (x if x.stride(-1) == 1 else x.contiguous() for x in (lookup.query, lookup.key))
    sight, constants = triton_launch.sight(lookup.visible, query)
    width, heads = query.shape[-1], query.shape[1]
    return (
        [query, *query.stride()[:3], key, *key.stride()[:3]],
        [*sight, lookup.energy.scale],
        [lookup.n, lookup.m, width, heads, heads // key.shape[1]],
        constants | {"R": ROWS, "C": KEYS, "D": triton_launch.power(width), "num_warps": WARPS},
    )
