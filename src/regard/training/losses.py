"""What training makes small: minus the log-probability of the gold tokens, summed, never averaged on the way.

A vocabulary's logits are the largest tensor of a small model: a row of thousands of numbers for each token. Here they
exist for a few rows at a time. Each chunk of rows goes from states to logits, to probabilities, to the gradient and
back to the states' and the matrix's width while it is still in the cache.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional as F

from regard.core.shapes import Bool, Float, Int, Tensor
from regard.kernels import triton_launch
from regard.kernels.layers.cross_entropy import cross_entropy_
from regard.kernels.layers.linear import activation_backward, matmul_float32
from regard.model.embedding import Projection

CHUNK = 2**22  # logits in memory at once, on a CPU
SHARE_CUDA = 128  # bytes of a GPU's memory for each of them there


def token_loss(
    states: Float[Tensor, "N W"],
    project: Projection,
    gold: Int[Tensor, " N"],
    *,
    label_smoothing: float = 0.0,
    r_drop: float = 0.0,
) -> Float[Tensor, ""]:
    """The sum over rows of the cross-entropy of their logits with the gold ones, some of it spread over all.

    A row whose gold token is below 0 counts for nothing. With agreement, rows come in pairs, each one token that was
    read twice, and each row's loss is larger by so many times its pair's disagreement: the mean of the divergences of
    either prediction from the other. Exactly `plain_token_loss`, in a fraction of the memory.
    """
    if not triton_launch.can_launch(states) and bool((gold < 0).any()):
        states, gold = states[gold >= 0], gold[gold >= 0]
    settings = label_smoothing, r_drop
    loss: Tensor = _Chunked.apply(states, project.weight, project.bias, gold, *settings)  # type: ignore[no-untyped-call]
    return loss


def plain_token_loss(
    states: Float[Tensor, "N W"],
    project: Projection,
    gold: Int[Tensor, " N"],
    *,
    label_smoothing: float = 0.0,
    r_drop: float = 0.0,
) -> Float[Tensor, ""]:
    """The same, with all logits at once."""
    return logit_loss(project(states).float(), gold, label_smoothing=label_smoothing, r_drop=r_drop)


def logit_loss(
    logits: Float[Tensor, "N V"], gold: Int[Tensor, " N"], *, label_smoothing: float = 0.0, r_drop: float = 0.0
) -> Float[Tensor, ""]:
    """The same of logits that are there."""
    loss = F.cross_entropy(logits, gold, reduction="sum", label_smoothing=label_smoothing)
    if not r_drop:
        return loss
    one, other = logits.log_softmax(-1).view(-1, 2, logits.shape[-1]).unbind(1)
    return loss + r_drop * ((one.exp() - other.exp()) * (one - other)).sum()


def unevenness(
    weights: Float[Tensor, "B T S"], steps: Bool[Tensor, "B T"], regions: Bool[Tensor, "B S"]
) -> Float[Tensor, ""]:
    """How far each region is from being looked at once, over all steps: the sum of (1 - its weights)².

    The penalty of doubly stochastic attention (https://arxiv.org/abs/1502.03044).
    """
    looked = (weights * steps[..., None]).sum(1)  # (B, S)
    return ((1 - looked).square() * regions).sum()


class _Chunked(torch.autograd.Function):
    """The gradient is computed with the loss, as its own scale is all that the backward could still change."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor, gold: Tensor, label_smoothing: float, r_drop: float
    ) -> Float[Tensor, ""]:
        kind = states.device.type
        if torch.is_autocast_enabled(kind):
            low = torch.get_autocast_dtype(kind)
            states, matrix, shift = states.to(low), weight.to(low), bias.to(low)
        else:
            matrix, shift = weight, bias
        wanted = ctx.needs_input_grad
        total = states.new_zeros((), dtype=torch.float32)
        d_states = torch.empty_like(states) if wanted[0] else None
        d_weight = torch.zeros_like(weight) if wanted[1] else None
        d_bias = torch.zeros_like(bias) if wanted[2] else None
        vocabulary = weight.shape[0]
        rows = max(1, _at_once(states.device) // vocabulary)
        rows += rows % 2  # pairs stay together
        if triton_launch.can_launch(states):
            parts = _on_gpu(states, matrix, shift, gold, label_smoothing, r_drop, rows, wanted)
            ctx.save_for_backward(*parts[1:])
            return parts[0]
        spread = label_smoothing / vocabulary
        for start in range(0, len(gold), rows):
            chunk = slice(start, start + rows)
            here, answer = states[chunk], gold[chunk, None]
            logits = torch.addmm(shift, here, matrix.mT)  # (rows, V)
            given = logits.gather(1, answer).float()
            log_p = F.log_softmax(logits, -1, dtype=torch.float32)
            right = log_p.gather(1, answer)
            total -= (1 - label_smoothing) * right.sum() + label_smoothing * (right - given).sum()
            if r_drop:
                disagreement, d_apart = _apart(log_p)
                total += r_drop * disagreement
            if not any(wanted[:3]):
                continue
            d_logits = log_p.exp_()
            if r_drop:
                d_logits.add_(d_apart, alpha=r_drop)
            d_logits.scatter_add_(1, answer, d_logits.new_full((1, 1), label_smoothing - 1).expand(len(answer), 1))
            d_low = d_logits.to(states.dtype)
            if d_states is not None:
                torch.mm(d_low, matrix, out=d_states[chunk])
            if d_weight is not None:
                d_weight.addmm_(d_low.mT.to(d_weight.dtype), here.to(d_weight.dtype))
            if d_bias is not None:
                d_bias += d_logits.sum(0)
        if label_smoothing:  # every token's share, which is the same for all: no pass over the logits for it
            wide = torch.promote_types(states.dtype, torch.float32)
            of_states, of_words = states.sum(0, dtype=wide), matrix.sum(0, dtype=wide)
            total -= spread * (of_states @ of_words + len(gold) * shift.sum(dtype=wide))
            if d_states is not None:
                d_states -= (spread * of_words).to(d_states.dtype)
            if d_weight is not None:
                d_weight -= (spread * of_states).to(d_weight.dtype)
            if d_bias is not None:
                d_bias -= spread * len(gold)
        ctx.save_for_backward(d_states, d_weight, d_bias)
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        scaled = (None if d is None else d * scale.to(d.dtype) for d in ctx.saved_tensors)
        return (*scaled, None, None, None)


def _at_once(device: torch.device) -> int:
    """How many logits exist at a time."""
    if device.type != "cuda":
        return CHUNK
    return max(CHUNK, torch.cuda.get_device_properties(device).total_memory // SHARE_CUDA)


def _on_gpu(
    states: Tensor, matrix: Tensor, shift: Tensor, gold: Tensor, label_smoothing: float, r_drop: float, rows: int,
    wanted: Sequence[bool],
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """The loss and the gradients of states, matrix and shift; a kernel turns logits into gradients where they lie."""
    losses = states.new_empty(len(gold), dtype=torch.float32)
    d_states = states.new_empty(states.shape) if wanted[0] else None
    d_matrix: Tensor | None = None
    d_shift: Tensor | None = None
    for start in range(0, len(gold), rows):
        chunk = slice(start, start + rows)
        here, answer = states[chunk], gold[chunk]
        d_logits = torch.addmm(shift, here, matrix.mT)
        cross_entropy_(d_logits, answer, losses[chunk], label_smoothing=label_smoothing, r_drop=r_drop)
        if d_states is not None:
            torch.mm(d_logits, matrix, out=d_states[chunk])
        if wanted[1]:
            d_matrix = _plus(d_matrix, matmul_float32(d_logits.mT, here))
        if wanted[2]:
            d_shift = _plus(d_shift, activation_backward(d_logits, None, None)[1])
    return losses.sum(), d_states, d_matrix, d_shift


def _plus(total: Tensor | None, more: Tensor) -> Tensor:
    return more if total is None else total.add_(more)


def _apart(log_p: Float[Tensor, "N V"]) -> tuple[Float[Tensor, ""], Float[Tensor, "N V"]]:
    """How far the predictions of all pairs of rows are apart, both ways, and its gradient for the logits."""
    pairs = log_p.view(-1, 2, log_p.shape[-1])  # (pairs, 2, V)
    p = pairs.exp()
    ratio = pairs - pairs.flip(1)
    each = (p * ratio).sum(-1, keepdim=True)  # of either from the other
    gradient = p * ratio.sub_(each).add_(1.0) - p.flip(1)
    return each.sum(), gradient.flatten(0, 1)
