"""Attention in blocks of query rows, forwards and backwards, for any energy, mask, bias and dropout.

A block sees its whole run of keys at once, so its softmax is the plain one, and only a block of scores exists at a
time: memory grows with N + M. The backward recomputes each block from the log-sum-exp instead of keeping it.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from regard.kernels import bias as biases
from regard.kernels.lookup import Lookup, spread, widened
from regard.shapes import LogSumExp, Outputs, Tensor, Values

# How many scores exist at a time. Sixty-four rows of 4,096 keys in eight heads: the fastest of those tried on a CPU.
BLOCK = 2**21


def attend(lookup: Lookup, value: Values, dropout: float = 0.0) -> tuple[Outputs, LogSumExp]:
    heads = lookup.query.shape[1]
    lookup, value = replace(lookup, key=spread(lookup.key, heads)), spread(value, heads)
    values_of_bias = None if lookup.bias is None else biases.bias_values(lookup.bias)
    # Drawn on the CPU so that no device is waited for, and only when it will be used.
    seed = int(torch.randint(2**62, ())) if dropout > 0 else 0
    out, lse = _Streamed.apply(
        lookup.query, lookup.key, value, lookup.energy.weight, values_of_bias, lookup, dropout, seed
    )  # type: ignore[no-untyped-call]
    return out, lse


def blocks(lookup: Lookup) -> Iterator[tuple[slice, slice, int, int]]:
    """Pieces of the batch × rows, each with the run of keys that its rows can see."""
    batch, heads, n, _ = lookup.query.shape
    a_row = max(1, heads * lookup.m)
    rows = max(1, min(n, 64, BLOCK // a_row))
    items = max(1, BLOCK // (a_row * rows))
    for b in range(0, batch, items):
        for i in range(0, n, rows):
            low, high = lookup.visible.span(i, min(i + rows, n), n, lookup.m)
            if high > low:
                yield slice(b, b + items), slice(i, min(i + rows, n)), low, high


def batch_part(lookup: Lookup, part: slice) -> Lookup:
    allowed = lookup.visible.allowed
    if allowed is not None and allowed.shape[0] > 1:
        allowed = allowed[part]
    bias = lookup.bias
    if bias is not None and biases.bias_values(bias).shape[0] > 1:
        bias = biases.with_values(bias, biases.bias_values(bias)[part])
    return replace(
        lookup,
        query=lookup.query[part],
        key=lookup.key[part],
        visible=replace(lookup.visible, allowed=allowed),
        bias=bias,
    )


def normalise(scores: Tensor) -> tuple[Tensor, Tensor]:
    """The weights, overwriting the scores, and the log-sum-exp; a row of −∞ gives zeros and a log-sum-exp of zero."""
    peak = scores.amax(-1, keepdim=True)
    peak.masked_fill_(peak == -torch.inf, 0.0)
    weights = scores.sub_(peak).exp_()
    total = weights.sum(-1, keepdim=True)
    blind = total == 0
    weights /= total.masked_fill(blind, 1.0)
    return weights, (peak + total.log()).masked_fill(blind, 0.0).squeeze(-1)


class _Dropout:
    """Which weights live, drawn block by block; the same seed draws the same again for the backward.

    Sixteen random bits decide about a weight: five times as fast on a CPU as PyTorch's own dropout, which spends a
    float on it, and as unbiased, since the survivors are scaled by the probability that sixteen bits can express.
    """

    def __init__(self, probability: float, seed: int, device: torch.device) -> None:
        self.dropped = round(probability * 2**16)  # of 65,536 outcomes
        self.generator = torch.Generator(device).manual_seed(seed)

    def scales(self, like: Tensor) -> Tensor | None:
        if self.dropped == 0:
            return None
        bits = torch.empty(-(-like.numel() // 4), dtype=torch.int64, device=like.device)
        bits.random_(-(2**63), None, generator=self.generator)
        lives = bits.view(torch.int16)[: like.numel()] >= self.dropped - 2**15
        return lives.to(like.dtype).mul_(2**16 / (2**16 - self.dropped)).view(like.shape)


class _Streamed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        lookup: Lookup,
        dropout: float,
        seed: int,
    ) -> tuple[Tensor, Tensor]:
        wide = widened(query[:0])
        out = value.new_zeros(*query.shape[:3], value.shape[3])
        lse = wide.new_zeros(query.shape[:3])
        drop = _Dropout(dropout, seed, query.device)
        for part, rows, low, high in blocks(lookup):
            weights, lse[part, :, rows] = normalise(batch_part(lookup, part).scores(rows, low, high))
            scales = drop.scales(weights)
            if scales is not None:
                weights *= scales
            out[part, :, rows] = (weights @ widened(value[part, :, low:high])).to(out.dtype)
        ctx.save_for_backward(query, key, value, weight, bias, out, lse)
        ctx.visible, ctx.energy, ctx.bias_kind = lookup.visible, lookup.energy, lookup.bias
        ctx.dropout, ctx.seed = dropout, seed
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weight, bias, out, lse = ctx.saved_tensors
        lookup = Lookup(
            energy=ctx.energy.with_weight(weight),
            query=query,
            key=key,
            visible=ctx.visible,
            bias=None if bias is None else biases.with_values(ctx.bias_kind, bias),
        )
        d_query, d_key, d_value = (torch.zeros_like(widened(x)) for x in (query, key, value))
        d_weight = None if weight is None else torch.zeros_like(widened(weight))
        d_bias = torch.zeros_like(widened(bias)) if bias is not None and ctx.needs_input_grad[4] else None
        drop = _Dropout(ctx.dropout, ctx.seed, query.device)
        for part, rows, low, high in blocks(lookup):
            here = batch_part(lookup, part)
            weights = here.scores(rows, low, high).sub_(lse[part, :, rows, None]).exp_()
            d_rows = widened(d_out[part, :, rows])
            d_weights = d_rows @ widened(value[part, :, low:high]).mT
            scales = drop.scales(weights)
            d_value[part, :, low:high] += (weights if scales is None else weights * scales).mT @ d_rows
            if scales is not None:
                d_weights *= scales
            # The softmax's own gradient: what each row would gain on average is no gain at all.
            average = (d_rows * widened(out[part, :, rows])).sum(-1, keepdim=True)
            d_scores = d_weights.sub_(average).mul_(weights)
            if d_bias is not None:
                here_bias = d_bias if d_bias.shape[0] == 1 else d_bias[part]
                biases.add_gradient(here_bias, ctx.bias_kind, d_scores, rows, low, high, lookup.n)
            d_query[part, :, rows], d_keys, d_part = lookup.energy.gradients(
                d_scores, widened(query[part, :, rows]), widened(key[part, :, low:high])
            )
            d_key[part, :, low:high] += d_keys
            if d_weight is not None and d_part is not None:
                d_weight += d_part
        return (
            d_query.to(query.dtype),
            d_key.to(key.dtype),
            d_value.to(value.dtype),
            None if d_weight is None else d_weight.to(weight.dtype),
            None if d_bias is None else d_bias.to(bias.dtype),
            None,
            None,
            None,
        )
