"""A linear layer with bias and activation. In half precision on a GPU, its backward needs fewer passes.

There one kernel computes the gradients of activation and bias, and the weight's gradient is accumulated in float32.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from regard.core.shapes import Float, Tensor
from regard.kernels import triton_launch
from regard.kernels.attention.blockwise import refuse_second_derivative
from regard.kernels.attention.spec import widened

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu_,  # in place: its backward needs only the output
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}
KINDS = {
    None: 0,
    "relu": 1,
    "gelu": 2,
    "gelu_tanh": 3,
}  # activations whose derivative the kernel implements
ROWS, COLUMNS = 32, 128  # of a tile
Linear = Callable[..., Tensor]  # a function with the arguments of `linear`


def linear(
    x: Float[Tensor, "*lead X"], weight: Float[Tensor, "Y X"], bias: Float[Tensor, " Y"] | None,
    activation: str | None = None,
) -> Float[Tensor, "*lead Y"]:  # fmt: skip
    """activation(x weightᵀ + bias), with the name of one of ACTIVATIONS."""
    dtype = triton_launch.autocast_dtype(x)
    if (
        bias is not None
        and activation in KINDS
        and dtype in triton_launch.HALF
        and torch.is_grad_enabled()
        and triton_launch.can_launch(x)
    ):
        out: Tensor = _Linear.apply(x, weight, bias, activation, dtype)  # type: ignore[no-untyped-call]
        return out
    out = F.linear(x, weight, bias)
    return out if activation is None else ACTIVATIONS[activation](out)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        activation: str | None,
        dtype: torch.dtype,
    ) -> Tensor:
        flat, weight, bias = x.reshape(-1, x.shape[-1]).to(dtype), weight.to(dtype), bias.to(dtype)
        with torch.autocast(x.device.type, enabled=False):
            if activation == "relu":
                preactivation = out = torch._addmm_activation(bias, flat, weight.mT)
            else:
                preactivation = torch.addmm(bias, flat, weight.mT)
                out = (
                    preactivation if activation is None else ACTIVATIONS[activation](preactivation)
                )
        ctx.save_for_backward(flat, weight, None if activation is None else preactivation)
        ctx.constants = x.shape, x.dtype, activation
        return out.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        flat, weight, preactivation = ctx.saved_tensors
        shape, dtype, activation = ctx.constants
        d_out, d_bias, _ = activation_backward(
            d_out.reshape(-1, len(weight)).contiguous(), preactivation, activation
        )
        d_x = (d_out @ weight).view(shape).to(dtype) if ctx.needs_input_grad[0] else None
        d_weight = matmul_float32(d_out.mT, flat) if ctx.needs_input_grad[1] else None
        return d_x, d_weight, d_bias, None, None


def activation_backward(
    d_out: Float[Tensor, "N Y"], preactivation: Float[Tensor, "N Y"] | None, activation: str | None,
    *, magnitude: bool = False,
) -> tuple[Float[Tensor, "N Y"], Float[Tensor, " Y"], Float[Tensor, ""] | None]:  # fmt: skip
    """The gradient before the activation, its sum over rows, and where `magnitude` is set its largest magnitude.

    For a ReLU, `preactivation` may be its output.
    """
    from regard.kernels.layers.linear_triton import activation_backward

    count, width = d_out.shape
    d_preactivation = d_out if activation is None else d_out.new_empty(d_out.shape)
    splits, unroll = (64, 2) if activation is None else (128, 1)  # of the rows; tiles in flight
    each = -(-count // splits)
    each += -each % ROWS
    splits = -(-count // each)
    grid = -(-width // COLUMNS), splits
    sums = d_out.new_empty(splits, width, dtype=torch.float32)
    maxima = d_out.new_empty(grid if magnitude else 1, dtype=torch.float32)
    with triton_launch.on_device_of(d_out):
        activation_backward[grid](
            d_out, d_out if preactivation is None else preactivation, d_preactivation, sums, maxima, count, width, each,
            KIND=KINDS[activation], MAGNITUDE=magnitude, R=ROWS, C=COLUMNS, UNROLL=unroll,
        )  # fmt: skip
    return d_preactivation, sums.sum(0), maxima.amax() if magnitude else None


def matmul_float32(
    x: Float[Tensor, "*lead X N"], y: Float[Tensor, "*lead N Y"]
) -> Float[Tensor, "*lead X Y"]:
    """A (batched) matrix product, accumulated and returned in float32 also for half-precision factors."""
    if x.is_cuda and x.dtype in triton_launch.HALF:
        return (torch.mm if x.dim() == 2 else torch.bmm)(x, y, out_dtype=torch.float32)
    return widened(x) @ widened(y)
