"""Attention in blocks of query rows, for every score function, mask, bias and dropout, on every device.

A block holds the scores of its rows with all their keys, so its softmax needs no correction, and one block exists at a
time: memory grows with N + M. The backward pass recomputes each block from the log-sum-exp.
"""

from collections.abc import Iterator
from typing import Any

import torch

from regard.core.errors import RegardError
from regard.core.interruption import check_interruption
from regard.core.shapes import LogSumExp, Outputs, Tensor, Values
from regard.kernels.attention import bias as biases
from regard.kernels.attention.spec import AttentionSpec, Frame, repeat_heads, widened
from regard.kernels.layers.dropout import dropout_scales, dropped_outcomes

# Scores that exist at a time. Sixty-four rows of 4,096 keys in eight heads: the fastest of those tried on a CPU.
BLOCK = 2**21


def supports(spec: AttentionSpec, value: Values, dropout: float) -> bool:
    return True


def attend(spec: AttentionSpec, value: Values, dropout: float = 0.0) -> tuple[Outputs, LogSumExp]:
    heads = spec.query.shape[1]
    query, key, *others = spec.tensors
    value = repeat_heads(value, heads)
    key = repeat_heads(key, heads)
    # Drawn on the CPU, to wait for no device, and only when it is used.
    seed = 0
    if dropout > 0:
        seed = int(torch.randint(2**62, ()))
    out, lse = _Blockwise.apply(spec.frame, dropout, seed, value, query, key, *others)  # type: ignore[no-untyped-call]
    return out, lse


def blocks(spec: AttentionSpec) -> Iterator[tuple[slice, slice, int, int]]:
    """Slices of the batch and of the rows, each with the range of keys that its rows may attend to."""
    batch, heads, n, _ = spec.query.shape
    row_size = max(1, heads * spec.m)
    rows = max(1, min(n, 64, BLOCK // row_size))
    items = max(1, BLOCK // (row_size * rows))
    for b in range(0, batch, items):
        for i in range(0, n, rows):
            end = min(i + rows, n)
            low, high = spec.visible.span(i, end, n, spec.m)
            if high > low:
                check_interruption()
                yield slice(b, b + items), slice(i, end), low, high


def softmax_(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax, overwriting the scores, and the log-sum-exp; both are zero for a row of −∞."""
    peak = scores.amax(-1, keepdim=True)
    peak.masked_fill_(peak == -torch.inf, 0.0)
    weights = scores.sub_(peak).exp_()
    total = weights.sum(-1, keepdim=True)
    empty = total == 0
    weights /= total.masked_fill(empty, 1.0)
    lse = (peak + total.log()).masked_fill(empty, 0.0)
    return weights, lse.squeeze(-1)


class _Dropout:
    """Dropout factors drawn block by block from a seed, so that the backward pass draws the same."""

    def __init__(self, probability: float, seed: int, device: torch.device) -> None:
        self.dropped = dropped_outcomes(probability)
        self.generator: torch.Generator | None = None
        if self.dropped:
            self.generator = torch.Generator(device).manual_seed(seed)

    def scales(self, like: Tensor) -> Tensor | None:
        if self.generator is None:
            return None
        return dropout_scales(like, self.dropped, self.generator)


class _Blockwise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, frame: Frame, dropout: float, seed: int, value: Tensor, *tensors: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        spec = frame.around(*tensors)  # type: ignore[arg-type]
        query = spec.query
        out = value.new_zeros(*query.shape[:3], value.shape[3])
        lse = widened(query[:0]).new_zeros(query.shape[:3])
        drop = _Dropout(dropout, seed, query.device)
        with torch.autocast(query.device.type, enabled=False):
            for part, rows, low, high in blocks(spec):
                scores = spec.for_batch(part).scores(rows, low, high)  # (b, H, R, C)
                weights, block_lse = softmax_(scores)
                lse[part, :, rows] = block_lse
                scales = drop.scales(weights)
                if scales is not None:
                    weights *= scales
                block_out = weights @ widened(value[part, :, low:high])  # (b, H, R, E)
                out[part, :, rows] = block_out.to(out.dtype)
        ctx.save_for_backward(value, out, lse, *tensors)
        ctx.frame = frame
        ctx.dropout = dropout
        ctx.seed = seed
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, d_out: Tensor, _d_lse: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        value, out, lse, *tensors = ctx.saved_tensors
        spec: AttentionSpec = ctx.frame.around(*tensors)
        query, key, weight, _allowed, bias = spec.tensors
        d_query = torch.zeros_like(widened(query))
        d_key = torch.zeros_like(widened(key))
        d_value = torch.zeros_like(widened(value))
        d_weight = None
        if weight is not None:
            d_weight = torch.zeros_like(widened(weight))
        d_bias = None
        if bias is not None and ctx.needs_input_grad[8]:
            d_bias = torch.zeros_like(widened(bias))
        drop = _Dropout(ctx.dropout, ctx.seed, query.device)
        with torch.autocast(query.device.type, enabled=False):
            for part, rows, low, high in blocks(spec):
                scores = spec.for_batch(part).scores(rows, low, high)  # (b, H, R, C)
                weights = scores.sub_(lse[part, :, rows, None]).exp_()
                d_rows = widened(d_out[part, :, rows])  # (b, H, R, E)
                d_weights = d_rows @ widened(value[part, :, low:high]).mT  # (b, H, R, C)
                scales = drop.scales(weights)
                if scales is None:
                    d_value[part, :, low:high] += weights.mT @ d_rows
                else:
                    d_value[part, :, low:high] += (weights * scales).mT @ d_rows
                    d_weights *= scales
                # Backward of softmax: subtract each row's mean gradient, weighted by its weights.
                average = (d_rows * widened(out[part, :, rows])).sum(-1, keepdim=True)
                d_scores = d_weights.sub_(average).mul_(weights)
                if d_bias is not None and spec.bias is not None:
                    d_bias_part = d_bias if d_bias.shape[0] == 1 else d_bias[part]
                    biases.add_gradient(d_bias_part, spec.bias, d_scores, rows, low, high, spec.n)
                query_rows = widened(query[part, :, rows])  # (b, H, R, D)
                key_block = widened(key[part, :, low:high])  # (b, H, C, D)
                d_queries, d_keys, d_part = spec.score_function.gradients(
                    d_scores, query_rows, key_block
                )
                d_query[part, :, rows] = d_queries
                d_key[part, :, low:high] += d_keys
                if d_weight is not None and d_part is not None:
                    d_weight += d_part
        pairs = (
            (d_value, value),
            (d_query, query),
            (d_key, key),
            (d_weight, weight),
            (None, None),
            (d_bias, bias),
        )
        # Frame, dropout and seed have no gradient.
        gradients = [None if d_x is None or x is None else d_x.to(x.dtype) for d_x, x in pairs]
        return None, None, None, *gradients


def refuse_second_derivative() -> None:
    """A backward pass runs with gradients enabled only under create_graph=True, which these kernels do not support."""
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise RegardError(
            "attention, or a layer with a hand-written backward pass: wanted first derivatives; got "
            "create_graph=True. Use regard.attention_weights(...) @ value, which PyTorch differentiates twice."
        )
