"""Cross-entropy with label smoothing and R-Drop, summed over tokens, without materializing all logits.

Logits are the largest tensor of a small model: thousands of numbers per token. Here they exist for a chunk of rows at
a time, from hidden states to the gradients of states and projection, while the chunk is still in the cache.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

from regard.core.shapes import Float, Int, Tensor
from regard.kernels import triton_launch
from regard.kernels.layers.cross_entropy import cross_entropy_
from regard.kernels.layers.linear import activation_backward, matmul_float32
from regard.model.embedding import Projection

CHUNK = 2**22  # logits in memory at once, on a CPU
BYTES_PER_LOGIT = 128  # of a GPU's memory: its chunks have as many logits as this allows


class Losses(NamedTuple):
    """Sums over tokens: the training loss, and the negative log-likelihood in it, which has no gradient.

    The latter is without label smoothing and R-Drop: its mean is the loss that perplexity and validation are of.
    """

    loss: Float[Tensor, ""]
    nll: Float[Tensor, ""]


def token_loss(
    states: Float[Tensor, "N W"],
    project: Projection,
    gold: Int[Tensor, " N"],
    *,
    label_smoothing: float = 0.0,
    r_drop: float = 0.0,
) -> Losses:
    """The summed cross-entropy of the projected states with the gold tokens, of which those below 0 are ignored.

    With `r_drop`, rows come in pairs of the same token under two dropout masks, and the loss of each row is increased
    by `r_drop` times the mean of the two KL divergences of its pair. Equals `plain_token_loss` with less memory.
    """
    if not triton_launch.can_launch(states) and bool((gold < 0).any()):
        states = states[gold >= 0]
        gold = gold[gold >= 0]
    weight = project.weight
    settings = (label_smoothing, r_drop)
    bias = weight.new_zeros(len(weight)) if project.bias is None else project.bias
    return Losses(*_Chunked.apply(project.scaled(states), weight, bias, gold, *settings))  # type: ignore[no-untyped-call]


def plain_token_loss(
    states: Float[Tensor, "N W"],
    project: Projection,
    gold: Int[Tensor, " N"],
    *,
    label_smoothing: float = 0.0,
    r_drop: float = 0.0,
) -> Losses:
    """The reference of `token_loss`, with all logits at once."""
    return logit_loss(project(states).float(), gold, label_smoothing=label_smoothing, r_drop=r_drop)


def logit_loss(
    logits: Float[Tensor, "N V"],
    gold: Int[Tensor, " N"],
    *,
    label_smoothing: float = 0.0,
    r_drop: float = 0.0,
) -> Losses:
    """`token_loss` of logits that are computed already."""
    loss = F.cross_entropy(logits, gold, reduction="sum", label_smoothing=label_smoothing)
    nll = loss.detach()
    if label_smoothing:
        plain = logits.detach()
        nll = (plain.logsumexp(-1) - plain.gather(1, gold[:, None]).squeeze(1)).sum()
    if not r_drop:
        return Losses(loss, nll)
    one, other = logits.log_softmax(-1).view(-1, 2, logits.shape[-1]).unbind(1)
    return Losses(loss + r_drop * ((one.exp() - other.exp()) * (one - other)).sum(), nll)


class _Chunked(torch.autograd.Function):
    """Computes the gradients together with the loss; the backward pass only scales them."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor,
        gold: Tensor,
        label_smoothing: float,
        r_drop: float,
    ) -> tuple[Tensor, Tensor]:
        device = states.device.type
        if torch.is_autocast_enabled(device):
            low = torch.get_autocast_dtype(device)
            states = states.to(low)
            matrix = weight.to(low)
            shift = bias.to(low)
        else:
            matrix = weight
            shift = bias
        wanted = ctx.needs_input_grad
        total, nll = (states.new_zeros((), dtype=torch.float32) for _ in range(2))
        d_states = torch.empty_like(states) if wanted[0] else None
        d_weight = torch.zeros_like(weight) if wanted[1] else None
        d_bias = torch.zeros_like(bias) if wanted[2] else None
        vocab_size = weight.shape[0]
        rows = max(1, chunk_size(states.device) // vocab_size)
        rows += rows % 2  # R-Drop pairs stay together
        if triton_launch.can_launch(states):
            parts = _on_gpu(states, matrix, shift, gold, label_smoothing, r_drop, rows, wanted)
            ctx.save_for_backward(*parts[2:])
            ctx.mark_non_differentiable(parts[1])
            return parts[:2]
        share = label_smoothing / vocab_size
        for start in range(0, len(gold), rows):
            chunk = slice(start, start + rows)
            inputs = states[chunk]
            labels = gold[chunk, None]
            logits = torch.addmm(shift, inputs, matrix.mT)  # (rows, V)
            gold_logits = logits.gather(1, labels).float()
            log_p = F.log_softmax(logits, -1, dtype=torch.float32)
            gold_log_p = log_p.gather(1, labels)
            chunk_nll = -gold_log_p.sum()
            nll += chunk_nll
            total += (1 - label_smoothing) * chunk_nll - label_smoothing * (
                gold_log_p - gold_logits
            ).sum()
            if r_drop:
                divergence, d_divergence = _symmetric_kl(log_p)
                total += r_drop * divergence
            if not any(wanted[:3]):
                continue
            d_logits = log_p.exp_()
            if r_drop:
                d_logits.add_(d_divergence, alpha=r_drop)
            d_logits.scatter_add_(
                1, labels, d_logits.new_full((1, 1), label_smoothing - 1).expand(len(labels), 1)
            )
            d_low = d_logits.to(states.dtype)
            if d_states is not None:
                torch.mm(d_low, matrix, out=d_states[chunk])
            if d_weight is not None:
                d_weight.addmm_(d_low.mT.to(d_weight.dtype), inputs.to(d_weight.dtype))
            if d_bias is not None:
                d_bias += d_logits.sum(0)
        if (
            label_smoothing
        ):  # the share of every token is linear in the logits: no pass over them is needed
            wide = torch.promote_types(states.dtype, torch.float32)
            state_sum = states.sum(0, dtype=wide)
            row_sum = matrix.sum(0, dtype=wide)
            total -= share * (state_sum @ row_sum + len(gold) * shift.sum(dtype=wide))
            if d_states is not None:
                d_states -= (share * row_sum).to(d_states.dtype)
            if d_weight is not None:
                d_weight -= (share * state_sum).to(d_weight.dtype)
            if d_bias is not None:
                d_bias -= share * len(gold)
        ctx.save_for_backward(d_states, d_weight, d_bias)
        ctx.mark_non_differentiable(nll)
        return total, nll

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, scale: Tensor, _nll: Tensor) -> tuple[Tensor | None, ...]:
        scaled = (None if d is None else d * scale.to(d.dtype) for d in ctx.saved_tensors)
        return (*scaled, None, None, None)


def chunk_size(device: torch.device) -> int:
    """How many logits exist at a time."""
    if device.type != "cuda":
        return CHUNK
    return max(CHUNK, torch.cuda.get_device_properties(device).total_memory // BYTES_PER_LOGIT)


def _on_gpu(
    states: Tensor, matrix: Tensor, shift: Tensor, gold: Tensor, label_smoothing: float, r_drop: float, rows: int,
    wanted: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """Loss, negative log-likelihood, and gradients of states, matrix and bias.

    A kernel turns logits into their gradients in place.
    """
    losses, nlls = (states.new_empty(len(gold), dtype=torch.float32) for _ in range(2))
    d_states = states.new_empty(states.shape) if wanted[0] else None
    d_matrix: Tensor | None = None
    d_shift: Tensor | None = None
    for start in range(0, len(gold), rows):
        chunk = slice(start, start + rows)
        inputs = states[chunk]
        labels = gold[chunk]
        d_logits = torch.addmm(shift, inputs, matrix.mT)
        cross_entropy_(
            d_logits,
            labels,
            losses[chunk],
            nlls[chunk],
            label_smoothing=label_smoothing,
            r_drop=r_drop,
        )
        if d_states is not None:
            torch.mm(d_logits, matrix, out=d_states[chunk])
        if wanted[1]:
            d_matrix = _plus(d_matrix, matmul_float32(d_logits.mT, inputs))
        if wanted[2]:
            d_shift = _plus(d_shift, activation_backward(d_logits, None, None)[1])
    return losses.sum(), nlls.sum(), d_states, d_matrix, d_shift


def _plus(total: Tensor | None, more: Tensor) -> Tensor:
    return more if total is None else total.add_(more)


def _symmetric_kl(log_p: Float[Tensor, "N V"]) -> tuple[Float[Tensor, ""], Float[Tensor, "N V"]]:
    """The KL divergences of all pairs of rows, both ways, and their gradient for the logits."""
    pairs = log_p.view(-1, 2, log_p.shape[-1])  # (pairs, 2, V)
    p = pairs.exp()
    ratio = pairs - pairs.flip(1)
    divergences = (p * ratio).sum(-1, keepdim=True)  # of either row from the other
    gradient = p * ratio.sub_(divergences).add_(1.0) - p.flip(1)
    return divergences.sum(), gradient.flatten(0, 1)
