"""A product of a layer's input and its weights, with bias and activation: in half precision on a GPU, in fewer passes.

There the backward of activation and bias is one kernel, and the gradient of the weights is never rounded to half.
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
    "relu": F.relu_,  # in place: nobody needs what comes before it
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}
KINDS = {None: 0, "relu": 1, "gelu": 2, "gelu_tanh": 3}  # of which kernels know the derivative
ROWS, COLUMNS = 32, 128  # of a tile


def product(
    x: Float[Tensor, "*lead X"], weight: Float[Tensor, "Y X"], bias: Float[Tensor, " Y"] | None,
    activation: str | None = None,
) -> Float[Tensor, "*lead Y"]:  # fmt: skip
    low = triton_launch.cast_to(x)
    if (
        bias is not None
        and activation in KINDS
        and low in triton_launch.HALF
        and torch.is_grad_enabled()
        and triton_launch.takes(x)
    ):
        out: Tensor = _Product.apply(x, weight, bias, activation, low)  # type: ignore[no-untyped-call]
        return out
    out = F.linear(x, weight, bias)
    return out if activation is None else ACTIVATIONS[activation](out)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, activation: str | None, low: torch.dtype) -> Tensor:
        given, matrix, shift = x.reshape(-1, x.shape[-1]).to(low), weight.to(low), bias.to(low)
        with torch.autocast(x.device.type, enabled=False):
            if activation == "relu":
                before = out = torch._addmm_activation(shift, given, matrix.mT)
            else:
                before = torch.addmm(shift, given, matrix.mT)
                out = before if activation is None else ACTIVATIONS[activation](before)
        ctx.save_for_backward(given, matrix, None if activation is None else before)
        ctx.plain = x.shape, x.dtype, activation
        return out.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        given, matrix, before = ctx.saved_tensors
        shape, dtype, activation = ctx.plain
        d_before, d_bias = d_activated(d_out.reshape(-1, len(matrix)).contiguous(), before, activation)
        d_x = (d_before @ matrix).view(shape).to(dtype) if ctx.needs_input_grad[0] else None
        d_weight = wide_product(d_before.mT, given) if ctx.needs_input_grad[1] else None
        return d_x, d_weight, d_bias, None, None


def d_activated(
    d_out: Float[Tensor, "N Y"], before: Float[Tensor, "N Y"] | None, activation: str | None
) -> tuple[Float[Tensor, "N Y"], Float[Tensor, " Y"]]:
    """The gradient of what was activated, and its sum over all rows; of a ReLU, `before` may be what came of it."""
    from regard.kernels.layers.training_triton import d_activate

    count, width = d_out.shape
    d_before = d_out if activation is None else d_out.new_empty(d_out.shape)
    splits, unroll = (64, 2) if activation is None else (128, 1)  # among which rows are divided; tiles on their way
    each = -(-count // splits)
    each += -each % ROWS
    splits = -(-count // each)
    sums = d_out.new_empty(splits, width, dtype=torch.float32)
    with triton_launch.on_device_of(d_out):
        d_activate[(-(-width // COLUMNS), splits)](
            d_out, d_out if before is None else before, d_before, sums, count, width, each,
            KIND=KINDS[activation], R=ROWS, C=COLUMNS, UNROLL=unroll,
        )  # fmt: skip
    return d_before, sums.sum(0)


def wide_product(x: Float[Tensor, "*lead X N"], y: Float[Tensor, "*lead N Y"]) -> Float[Tensor, "*lead X Y"]:
    """A product, or several, whose sums are never rounded to half precision."""
    if x.is_cuda and x.dtype in triton_launch.HALF:
        return (torch.mm if x.dim() == 2 else torch.bmm)(x, y, out_dtype=torch.float32)
    return widened(x) @ widened(y)
