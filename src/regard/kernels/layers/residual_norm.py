"""x + dropout(change) and its norm, which stand between any two parts of a model: in one pass on a GPU."""

from typing import Any, NamedTuple

import torch
from torch import nn

from regard.core.shapes import Float, Tensor
from regard.kernels import triton_launch
from regard.kernels.attention.blockwise import refuse_second_derivative
from regard.kernels.layers.dropout import Dropout, dropped_of

WIDEST = 4096  # numbers of a row that a program holds
TILE, BACK = 4096, 1024  # numbers that a program holds of all its rows; in the backward, for each warp of it
PROGRAMS = 1056  # among which the rows are divided in the backward: eight for each of an H200's multiprocessors


class PendingResidual(NamedTuple):
    """What goes from part to part, and what is still to be added to it."""

    x: Float[Tensor, "*lead W"]
    added: Float[Tensor, "*lead W"] | None = None


def join(
    given: PendingResidual, dropout: Dropout, norm: nn.Module
) -> tuple[Float[Tensor, "*lead W"], Float[Tensor, "*lead W"]]:
    """The sum, with what is still to be added under dropout; and its norm."""
    x, added = given
    tensors = (x,) if added is None else (x, added)
    if isinstance(norm, nn.LayerNorm | nn.RMSNorm) and x.shape[-1] <= WIDEST and triton_launch.takes(*tensors):
        return _joined(x, added, dropout.p if dropout.training else 0.0, norm)
    if added is not None:
        x = dropout.onto(x, added)
    return x, norm(x)


def _joined(x: Tensor, added: Tensor | None, dropout: float, norm: nn.LayerNorm | nn.RMSNorm) -> tuple[Tensor, Tensor]:
    dropped = dropped_of(dropout) if added is not None else 0
    # Drawn on the device: nobody waits for it, and a recorded draw is another one each time that it is replayed.
    seed = torch.randint(2**62, (1,), device=x.device) if dropped else x.new_empty(1, dtype=torch.int64)
    shape, low = x.shape, triton_launch.cast_to(x)
    bias = norm.bias if isinstance(norm, nn.LayerNorm) else None
    epsilon = torch.finfo(torch.float32).eps if norm.eps is None else norm.eps
    flat = None if added is None else added.reshape(-1, shape[-1])
    total, normed = _Join.apply(x.reshape(-1, shape[-1]), flat, norm.weight, bias, seed, epsilon, dropped, low)  # type: ignore[no-untyped-call]
    return (x if total is None else total.view(shape)), normed.view(shape)


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, added: Tensor | None, weight: Tensor, bias: Tensor | None, seed: Tensor,
        epsilon: float, dropped: int, low: torch.dtype,
    ) -> tuple[Tensor | None, Tensor]:  # fmt: skip
        from regard.kernels.layers.training_triton import join

        x = x.contiguous()
        count, width = x.shape
        total = x if added is None else x.new_empty(x.shape)
        normed = x.new_empty(count, width, dtype=low)
        mean, scale = x.new_empty(2, count, dtype=torch.float32)
        wide = triton_launch.power(width)
        rows = max(1, TILE // wide)
        with triton_launch.on_device_of(x):
            join[(-(-count // rows),)](
                x, x if added is None else added.contiguous(), weight, weight if bias is None else bias, seed, total,
                normed, mean, scale, epsilon, dropped, count, width,
                ADD=added is not None, DROP=dropped > 0, LAYER=bias is not None, R=rows, W=wide,
            )  # fmt: skip
        ctx.save_for_backward(total, weight, mean, scale, seed)
        ctx.plain = None if added is None else added.dtype, bias is not None, dropped
        ctx.set_materialize_grads(False)
        return (None if added is None else total), normed

    @staticmethod
    def backward(ctx: Any, d_total: Tensor | None, d_normed: Tensor | None) -> tuple[Tensor | None, ...]:
        from regard.kernels.layers.training_triton import d_join

        refuse_second_derivative()
        total, weight, mean, scale, seed = ctx.saved_tensors
        kind, layer, dropped = ctx.plain
        count, width = total.shape
        if d_normed is None:
            d_normed = torch.zeros_like(total)
        d_x = total.new_empty(total.shape)
        d_added = d_x if kind is None else total.new_empty(count, width, dtype=kind)
        wide = triton_launch.power(width)
        warps = 4 if wide > 512 else 2
        rows = max(1, BACK * warps // wide)
        each = -(-count // PROGRAMS)
        each += -each % rows
        programs = -(-count // each)
        parts = total.new_empty(2, programs, width, dtype=torch.float32)
        with triton_launch.on_device_of(total):
            d_join[(programs,)](
                d_normed.contiguous(), d_x if d_total is None else d_total.contiguous(), total, weight, mean, scale,
                seed, d_x, d_added, *parts, dropped, count, width, each,
                ADD=kind is not None, DROP=dropped > 0, LAYER=layer, ONWARD=d_total is not None, R=rows, W=wide,
                num_warps=warps,
            )  # fmt: skip
        d_weight, *d_bias = parts[: 1 + layer].sum(1).to(weight.dtype)
        return (
            d_x, None if kind is None else d_added, d_weight, d_bias[0] if layer else None, None, None, None, None
        )  # fmt: skip
