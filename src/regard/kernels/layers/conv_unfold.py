"""Unfolds packed sequences into the inputs of a convolution's taps, so that the convolution is one product."""

from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

from regard.core.sequence import SequenceOffsets
from regard.core.shapes import Float, Int, Tensor
from regard.kernels import triton_launch
from regard.kernels.attention.blockwise import refuse_second_derivative

# Of a tile.
ROWS = 8
COLUMNS = 512


class Neighbors(NamedTuple):
    """How many positions of the same sequence lie before and after each position."""

    before: Int[Tensor, " N"]
    after: Int[Tensor, " N"]

    @staticmethod
    def of(offsets: SequenceOffsets) -> "Neighbors":
        return Neighbors(offsets.positions, offsets.remaining)


def unfold(x: Float[Tensor, "N W"], neighbors: Neighbors, taps: range) -> Float[Tensor, "N KW"]:
    """For each position, the rows at these distances from it, concatenated; zeros outside its own sequence."""
    if triton_launch.can_launch(x):
        out: Tensor = _Unfold.apply(x.contiguous(), *neighbors, taps)  # type: ignore[no-untyped-call]
        return out
    count = len(x)
    distance = torch.arange(taps.start, taps.stop, taps.step, device=x.device)
    is_after_start = distance >= -neighbors.before[:, None]  # (N, K)
    is_before_end = distance <= neighbors.after[:, None]  # (N, K)
    inside = is_after_start & is_before_end
    shifts = [max(-count, min(tap, count)) for tap in taps]
    shifted = torch.stack([F.pad(x, (0, 0, -shift, shift)) for shift in shifts], 1)  # (N, K, W)
    return shifted.masked_fill(~inside[..., None], 0.0).flatten(1)


class _Unfold(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, before: Tensor, after: Tensor, taps: range) -> Tensor:
        from regard.kernels.layers.conv_unfold_triton import unfold

        out = x.new_empty(len(x), len(taps) * x.shape[1])
        _launch(unfold, x, before, after, out, x.shape, taps)
        ctx.save_for_backward(before, after)
        ctx.taps = taps
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        from regard.kernels.layers.conv_unfold_triton import unfold_backward

        refuse_second_derivative()
        before, after = ctx.saved_tensors
        d_x = d_out.new_empty(len(d_out), d_out.shape[1] // len(ctx.taps))
        _launch(unfold_backward, d_out.contiguous(), before, after, d_x, d_x.shape, ctx.taps)
        return d_x, None, None, None


def _launch(
    kernel: Any, given: Tensor, before: Tensor, after: Tensor, out: Tensor, shape: torch.Size,
    taps: range
) -> None:  # fmt: skip
    count, width = shape
    columns = min(COLUMNS, triton_launch.next_power_of_2(width))
    tile = {"TAPS": len(taps), "R": ROWS, "C": columns}
    grid = (-(-count // ROWS), -(-width // COLUMNS))
    with triton_launch.on_device_of(given):
        kernel[grid](given, before, after, out, taps.start, taps.step, count, width, **tile)
