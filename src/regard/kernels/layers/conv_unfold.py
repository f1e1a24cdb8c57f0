"""What a convolution sees of sequences laid end to end, so that it is one product: in one pass on a GPU, each way."""

from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

from regard.core.sequence import SequenceOffsets
from regard.core.shapes import Float, Int, Tensor
from regard.kernels import triton_launch
from regard.kernels.attention.blockwise import refuse_second_derivative

ROWS, COLUMNS = 8, 512  # of a tile


class Sides(NamedTuple):
    """How many positions of its own sequence lie before and after each."""

    before: Int[Tensor, " N"]
    after: Int[Tensor, " N"]

    @staticmethod
    def of(ends: SequenceOffsets) -> "Sides":
        return Sides(ends.positions, ends.remaining)


def windows(x: Float[Tensor, "N W"], sides: Sides, taps: range) -> Float[Tensor, "N KW"]:
    """For each position the rows that lie so far from it, side by side: zeros where its own sequence has none."""
    if triton_launch.takes(x):
        out: Tensor = _Windows.apply(x.contiguous(), *sides, taps)  # type: ignore[no-untyped-call]
        return out
    count, far = len(x), torch.arange(taps.start, taps.stop, taps.step, device=x.device)
    there = (far >= -sides.before[:, None]) & (far <= sides.after[:, None])  # (N, K)
    shifts = [max(-count, min(tap, count)) for tap in taps]
    seen = torch.stack([F.pad(x, (0, 0, -shift, shift)) for shift in shifts], 1)  # (N, K, W)
    return seen.masked_fill(~there[..., None], 0.0).flatten(1)


class _Windows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, before: Tensor, after: Tensor, taps: range) -> Tensor:
        from regard.kernels.layers.conv_unfold_triton import gather

        out = x.new_empty(len(x), len(taps) * x.shape[1])
        with triton_launch.on_device_of(x):
            gather[_grid(x)](x, before, after, out, *_common(x, taps), **_tile(x, taps))
        ctx.save_for_backward(before, after)
        ctx.taps = taps
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        from regard.kernels.layers.conv_unfold_triton import d_gather

        refuse_second_derivative()
        before, after = ctx.saved_tensors
        d_x = d_out.new_empty(len(d_out), d_out.shape[1] // len(ctx.taps))
        with triton_launch.on_device_of(d_out):
            d_gather[_grid(d_x)](
                d_out.contiguous(), before, after, d_x, *_common(d_x, ctx.taps), **_tile(d_x, ctx.taps)
            )
        return d_x, None, None, None


def _grid(x: Tensor) -> tuple[int, int]:
    return -(-len(x) // ROWS), -(-x.shape[1] // COLUMNS)


def _common(x: Tensor, taps: range) -> tuple[int, ...]:
    return taps.start, taps.step, *x.shape


def _tile(x: Tensor, taps: range) -> dict[str, int]:
    return {"TAPS": len(taps), "R": ROWS, "C": min(COLUMNS, triton_launch.power(x.shape[1]))}
