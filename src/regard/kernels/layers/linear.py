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
# The activations whose derivative the kernel implements.
KINDS = {
    None: 0,
    "relu": 1,
    "gelu": 2,
    "gelu_tanh": 3,
}
# Of a tile.
ROWS = 32
COLUMNS = 128
Linear = Callable[..., Tensor]  # a function with the arguments of `linear`


def linear(
    x: Float[Tensor, "*lead X"], weight: Float[Tensor, "Y X"], bias: Float[Tensor, " Y"] | None,
    activation: str | None = None,
) -> Float[Tensor, "*lead Y"]:  # fmt: skip
    """activation(x weightᵀ + bias), with the name of one of ACTIVATIONS."""
    dtype = triton_launch.autocast_dtype(x)
    kernel_has_it = bias is not None and activation in KINDS and dtype in triton_launch.HALF
    if kernel_has_it and torch.is_grad_enabled() and triton_launch.can_launch(x):
        out: Tensor = _Linear.apply(x, weight, bias, activation, dtype)  # type: ignore[no-untyped-call]
        return out
    out = F.linear(x, weight, bias)
    if activation is None:
        return out
    return ACTIVATIONS[activation](out)


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
        flat = x.reshape(-1, x.shape[-1]).to(dtype)
        weight = weight.to(dtype)
        bias = bias.to(dtype)
        with torch.autocast(x.device.type, enabled=False):
            if activation == "relu":
                # The backward of a ReLU needs only its output.
                out = torch._addmm_activation(bias, flat, weight.mT)
                kept = out
            elif activation is None:
                out = torch.addmm(bias, flat, weight.mT)
                kept = None
            else:
                kept = torch.addmm(bias, flat, weight.mT)
                out = ACTIVATIONS[activation](kept)
        ctx.save_for_backward(flat, weight, kept)
        ctx.constants = (x.shape, x.dtype, activation)
        return out.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        flat, weight, preactivation = ctx.saved_tensors
        shape, dtype, activation = ctx.constants
        d_flat = d_out.reshape(-1, len(weight)).contiguous()
        d_out, d_bias, _ = activation_backward(d_flat, preactivation, activation)
        d_x = None
        if ctx.needs_input_grad[0]:
            d_x = (d_out @ weight).view(shape).to(dtype)
        d_weight = None
        if ctx.needs_input_grad[1]:
            d_weight = matmul_float32(d_out.mT, flat)
        return d_x, d_weight, d_bias, None, None


def activation_backward(
    d_out: Float[Tensor, "N Y"], preactivation: Float[Tensor, "N Y"] | None, activation: str | None,
    *, magnitude: bool = False,
) -> tuple[Float[Tensor, "N Y"], Float[Tensor, " Y"], Float[Tensor, ""] | None]:  # fmt: skip
    """The gradient before the activation, its sum over rows, and its largest magnitude if `magnitude` is set.

    For a ReLU, `preactivation` may be its output.
    """
    from regard.kernels.layers.linear_triton import activation_backward

    count, width = d_out.shape
    # Splits of the rows, and tiles in flight. Without an activation only the sums are computed.
    if activation is None:
        d_preactivation = d_out
        splits = 64
        unroll = 2
    else:
        d_preactivation = d_out.new_empty(d_out.shape)
        splits = 128
        unroll = 1
    each = -(-count // splits)
    each += -each % ROWS
    splits = -(-count // each)
    grid = (-(-width // COLUMNS), splits)
    sums = d_out.new_empty(splits, width, dtype=torch.float32)
    maxima = d_out.new_empty(grid if magnitude else 1, dtype=torch.float32)
    # Without an activation, the kernel does not read its pointer.
    before = d_out if preactivation is None else preactivation
    with triton_launch.on_device_of(d_out):
        activation_backward[grid](
            d_out, before, d_preactivation, sums, maxima, count, width, each,
            KIND=KINDS[activation], MAGNITUDE=magnitude, R=ROWS, C=COLUMNS, UNROLL=unroll,
        )  # fmt: skip
    return d_preactivation, sums.sum(0), maxima.amax() if magnitude else None


def matmul_float32(
    x: Float[Tensor, "*lead X N"], y: Float[Tensor, "*lead N Y"]
) -> Float[Tensor, "*lead X Y"]:
    """A (batched) matrix product, accumulated and returned in float32 also for half-precision factors."""
    if x.is_cuda and x.dtype in triton_launch.HALF:
        multiply = torch.mm if x.dim() == 2 else torch.bmm
        return multiply(x, y, out_dtype=torch.float32)
    return widened(x) @ widened(y)
