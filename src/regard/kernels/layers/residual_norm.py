"""Residual addition with dropout, fused with the norm that follows it: one pass on a GPU."""

from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from regard.core.shapes import Float, Tensor
from regard.kernels import triton_launch
from regard.kernels.attention.blockwise import refuse_second_derivative
from regard.kernels.layers.dropout import Dropout, dropped_outcomes

MAX_WIDTH = 4096  # columns that one program holds
TILE = 4096  # numbers that one program holds
BACKWARD_TILE = 1024  # numbers that each warp of a program of the backward holds
PROGRAMS = 1056  # of the backward: eight for each multiprocessor of an H200


class PendingResidual(NamedTuple):
    """The residual stream x, and a sublayer's output that has not been added to it yet."""

    x: Float[Tensor, "*lead W"]
    added: Float[Tensor, "*lead W"] | None = None


class OffsetRMSNorm(nn.RMSNorm):
    """RMSNorm whose gain is 1 + weight, as in Gemma (https://arxiv.org/abs/2403.08295)."""

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)

    def forward(self, x: Float[Tensor, "*lead W"]) -> Float[Tensor, "*lead W"]:
        return F.rms_norm(x, self.normalized_shape, norm_gain(self), self.eps)


def norm_gain(norm: nn.LayerNorm | nn.RMSNorm) -> Float[Tensor, " W"]:
    """The factor of each column after normalization."""
    if isinstance(norm, OffsetRMSNorm):
        return 1 + norm.weight
    return norm.weight


def add_norm(
    given: PendingResidual, dropout: Dropout, norm: nn.Module
) -> tuple[Float[Tensor, "*lead W"], Float[Tensor, "*lead W"]]:
    """The sum x + dropout(added), and its norm."""
    (x, added) = given
    shape = given.x.shape
    width = shape[-1]
    tensors = [x] if added is None else [x, added]
    if (
        not isinstance(norm, nn.LayerNorm | nn.RMSNorm)
        or width > MAX_WIDTH
        or not triton_launch.can_launch(*tensors)
    ):
        if added is not None:
            x = dropout.onto(x, added)
        return x, norm(x)
    dropped = 0
    if added is not None and dropout.training:
        dropped = dropped_outcomes(dropout.p)
    # Drawn on the device: without synchronization, and again on every replay of a CUDA graph.
    if dropped:
        seed = torch.randint(2**62, (1,), device=x.device)
    else:
        seed = x.new_empty(1, dtype=torch.int64)
    bias = norm.bias if isinstance(norm, nn.LayerNorm) else None
    eps = norm.eps
    if eps is None:
        eps = torch.finfo(torch.float32).eps
    flat = x.reshape(-1, width)  # (N, W)
    flat_added = None
    if added is not None:
        flat_added = added.reshape(-1, width)
    dtype = triton_launch.autocast_dtype(x)
    settings = (seed, eps, dropped, dtype)
    total, normed = _AddNorm.apply(flat, flat_added, norm_gain(norm), bias, *settings)  # type: ignore[no-untyped-call]
    if total is not None:
        x = total.view(shape)
    return x, normed.view(shape)


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, added: Tensor | None, weight: Tensor, bias: Tensor | None,
        seed: Tensor,
        eps: float, dropped: int, dtype: torch.dtype,
    ) -> tuple[Tensor | None, Tensor]:  # fmt: skip
        from regard.kernels.layers.residual_norm_triton import add_norm

        x = x.contiguous()
        count, width = x.shape
        # Without a residual, the sum is x itself. The kernel reads no pointer of a tensor that is missing.
        offset = weight if bias is None else bias
        total = x
        residual = x
        if added is not None:
            total = x.new_empty(x.shape)
            residual = added.contiguous()
        normed = x.new_empty(count, width, dtype=dtype)
        mean, rstd = x.new_empty(2, count, dtype=torch.float32)
        columns = triton_launch.next_power_of_2(width)
        rows = max(1, TILE // columns)
        grid = (-(-count // rows),)
        with triton_launch.on_device_of(x):
            add_norm[grid](
                x, residual, weight, offset, seed, total,
                normed, mean, rstd, eps, dropped, count, width,
                ADD=added is not None, DROP=dropped > 0, LAYER=bias is not None, R=rows, W=columns,
            )  # fmt: skip
        ctx.save_for_backward(total, weight, mean, rstd, seed)
        added_dtype = None if added is None else added.dtype
        ctx.constants = (added_dtype, bias is not None, dropped)
        ctx.set_materialize_grads(False)
        if added is None:
            return None, normed
        return total, normed

    @staticmethod
    def backward(
        ctx: Any, d_total: Tensor | None, d_normed: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        from regard.kernels.layers.residual_norm_triton import add_norm_backward

        refuse_second_derivative()
        total, weight, mean, rstd, seed = ctx.saved_tensors
        added_dtype, layer, dropped = ctx.constants
        count, width = total.shape
        if d_normed is None:
            d_normed = torch.zeros_like(total)
        d_x = total.new_empty(total.shape)
        d_added = d_x
        if added_dtype is not None:
            d_added = total.new_empty(count, width, dtype=added_dtype)
        columns = triton_launch.next_power_of_2(width)
        warps = 4 if columns > 512 else 2
        rows = max(1, BACKWARD_TILE * warps // columns)
        each = -(-count // PROGRAMS)
        each += -each % rows
        programs = -(-count // each)
        partial = total.new_empty(2, programs, width, dtype=torch.float32)
        # Without a gradient of the sum, the kernel does not read its pointer.
        d_sum = d_x if d_total is None else d_total.contiguous()
        with triton_launch.on_device_of(total):
            add_norm_backward[(programs,)](
                d_normed.contiguous(), d_sum, total, weight, mean, rstd,
                seed, d_x, d_added, *partial, dropped, count, width, each,
                ADD=added_dtype is not None, DROP=dropped > 0, LAYER=layer,
                TOTAL=d_total is not None, R=rows,
                W=columns, num_warps=warps,
            )  # fmt: skip
        # The sums of weight and, in a LayerNorm, bias.
        sums = partial[: 1 + layer].sum(1).to(weight.dtype)
        d_weight = sums[0]
        d_bias = sums[1] if layer else None
        d_residual = None if added_dtype is None else d_added
        return d_x, d_residual, d_weight, d_bias, None, None, None, None
