"""A linear layer whose three products, of the forward and the backward pass, are computed in 8-bit floating point.

Activations and weights are quantized to e4m3, gradients to e5m2 (https://arxiv.org/abs/2209.05433). Each tensor has one
scale, which maps its largest magnitude in this very batch to the format's largest number; it stays on the device.
"""

from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

from regard.core.shapes import Float, Tensor
from regard.kernels import triton_launch
from regard.kernels.attention.blockwise import refuse_second_derivative
from regard.kernels.layers.linear import ACTIVATIONS, KINDS, activation_backward, linear

E4M3 = torch.float8_e4m3fn
E5M2 = torch.float8_e5m2
MULTIPLE = 16  # of the dimensions of a float8 product
MIN_CAPABILITY = (9, 0)  # Hopper
# The smallest magnitude that scales are computed from: the scale of a tensor of zeros must be finite.
SMALLEST = 1e-30
# The programs that find the largest magnitude, eight for each multiprocessor of an H200, and their tile.
PROGRAMS = 1056
BLOCK = 4096
TILE = 128  # rows and columns of a tile that is quantized


def unsupported_device(device: str) -> str | None:
    """The kind of this device if it does not multiply in float8; None if it does."""
    if device != "cuda" or not torch.cuda.is_available():
        return "a CPU"
    capability = torch.cuda.get_device_capability()
    if capability >= MIN_CAPABILITY:
        return None
    return f"a GPU of compute capability {'.'.join(map(str, capability))}"


class Quantized(NamedTuple):
    """A matrix in float8, in both orders of memory, as products along either dimension need it."""

    rows: Float[Tensor, "N X"]
    # Transposed and contiguous; M is N padded with zeros to a multiple of MULTIPLE.
    columns: Float[Tensor, "X M"]
    scale: Float[Tensor, ""]  # quantized numbers times this are the matrix


def linear_fp8(
    x: Float[Tensor, "*lead X"], weight: Float[Tensor, "Y X"], bias: Float[Tensor, " Y"] | None,
    activation: str | None = None,
) -> Float[Tensor, "*lead Y"]:  # fmt: skip
    """As `linear`, with products in float8 where gradients are computed. X and Y are multiples of MULTIPLE."""
    if not torch.is_grad_enabled():
        return linear(x, weight, bias, activation)
    fused = activation if activation in KINDS else None
    out: Tensor = _LinearFp8.apply(x, weight, bias, fused, triton_launch.autocast_dtype(x))  # type: ignore[no-untyped-call]
    if fused == activation:
        return out
    return ACTIVATIONS[activation](out)  # type: ignore[index]


class _LinearFp8(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        activation: str | None,
        dtype: torch.dtype,
    ) -> Tensor:
        flat = quantize(x.reshape(-1, x.shape[-1]), E4M3)
        w = quantize(weight, E4M3)
        preactivation = multiply(flat.rows, flat.scale, w.rows, w.scale, dtype, bias, fast=True)
        out = preactivation
        kept = None
        if activation is not None:
            out = ACTIVATIONS[activation](preactivation)
            kept = preactivation
        ctx.save_for_backward(flat.columns, flat.scale, w.columns, w.scale, kept)
        ctx.constants = (x.shape, x.dtype, activation, bias is not None)
        return out.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        x_columns, x_scale, w_columns, w_scale, preactivation = ctx.saved_tensors
        shape, dtype, activation, biased = ctx.constants
        d_out = d_out.reshape(-1, w_columns.shape[1]).contiguous()
        d_bias = None
        largest = None
        if not triton_launch.can_launch(d_out):
            d_out = _plain_activation_backward(d_out, preactivation, activation)
            d_bias = d_out.float().sum(0)
        elif biased or activation is not None:
            d_out, d_bias, largest = activation_backward(
                d_out, preactivation, activation, magnitude=True
            )
        d = quantize(d_out, E5M2, largest)
        d_x = None
        if ctx.needs_input_grad[0]:
            product = multiply(d.rows, d.scale, w_columns, w_scale, d_out.dtype, fast=False)
            d_x = product.view(shape).to(dtype)
        d_weight = None
        if ctx.needs_input_grad[1]:
            d_weight = multiply(d.columns, d.scale, x_columns, x_scale, torch.float32, fast=False)
        return d_x, d_weight, d_bias if biased else None, None, None


def multiply(
    x: Float[Tensor, "N K"], x_scale: Tensor, y: Float[Tensor, "M K"], y_scale: Tensor, dtype: torch.dtype,
    bias: Float[Tensor, " M"] | None = None, *, fast: bool = False,
) -> Float[Tensor, "N M"]:  # fmt: skip
    """The product x yᵀ + bias of quantized matrices. `fast`: sums are rounded to the tensor cores' own precision."""
    if bias is not None:
        bias = bias.to(dtype)
    with torch.autocast(x.device.type, enabled=False):
        return torch._scaled_mm(
            x, y.mT, x_scale, y_scale, bias, out_dtype=dtype, use_fast_accum=fast
        )


def quantize(
    x: Float[Tensor, "N X"], dtype: torch.dtype, largest: Float[Tensor, ""] | None = None
) -> Quantized:
    """A matrix in float8, given its largest magnitude where that is known. Numbers that are not finite stay so."""
    if triton_launch.can_launch(x):
        # Triton 3.6 transposes tiles of float32 as float8, with wrong results.
        if x.dtype == torch.float32:
            x = x.bfloat16()
        x = x.contiguous()
        if largest is None:
            largest = largest_magnitude(x)
        return _cast_transpose(x, dtype, largest)
    bound = torch.finfo(dtype).max
    if largest is None:
        largest = x.abs().amax().float()
    largest = largest.clamp(min=SMALLEST)
    rows = (x.float() * (bound / largest)).to(dtype)  # (N, X)
    columns = F.pad(rows.float().mT, (0, -len(x) % MULTIPLE)).to(dtype)  # (X, M)
    return Quantized(rows, columns.contiguous(), largest / bound)


def largest_magnitude(x: Float[Tensor, "N X"]) -> Float[Tensor, ""]:
    from regard.kernels.layers.linear_fp8_triton import largest_magnitude

    each = -(-x.numel() // PROGRAMS)
    each += -each % BLOCK
    maxima = x.new_empty(-(-x.numel() // each), dtype=torch.float32)
    with triton_launch.on_device_of(x):
        largest_magnitude[(len(maxima),)](x, maxima, x.numel(), each, BLOCK=BLOCK)
    return maxima.amax()


def _cast_transpose(
    x: Float[Tensor, "N X"], dtype: torch.dtype, largest: Float[Tensor, ""]
) -> Quantized:
    from regard.kernels.layers.linear_fp8_triton import cast_transpose

    count, width = x.shape
    padded = count + -count % MULTIPLE
    rows = x.new_empty(count, width, dtype=dtype)
    columns = x.new_empty(width, padded, dtype=dtype)
    scale = torch.empty_like(largest)
    grid = (-(-padded // TILE), -(-width // TILE))
    with triton_launch.on_device_of(x):
        cast_transpose[grid](
            x,
            largest,
            scale,
            rows,
            columns,
            count,
            width,
            padded,
            SMALLEST,
            torch.finfo(dtype).max,
            TILE=TILE,
        )
    return Quantized(rows, columns, scale)


def _plain_activation_backward(
    d_out: Tensor, preactivation: Tensor | None, activation: str | None
) -> Tensor:
    """The gradient before an activation. For a ReLU, `preactivation` is its output."""
    if activation is None:
        return d_out
    with torch.enable_grad():
        x = preactivation.detach().clone().requires_grad_()  # type: ignore[union-attr]
        # A product with 1, because an activation in place cannot overwrite a leaf.
        out = ACTIVATIONS[activation](x * 1)
        (d_x,) = torch.autograd.grad(out, x, d_out)
        return d_x
