"""The obvious version: every score, every weight, in memory. Slow on purpose; the others must equal it."""

import torch

from regard.core.shapes import Float, LogSumExp, Outputs, Tensor, Values
from regard.kernels.attention import bias as biases
from regard.kernels.attention.spec import AttentionSpec, spread, widened


def scores(spec: AttentionSpec) -> Float[Tensor, "B H N M"]:
    everything = slice(0, spec.n)
    query, key = spec.query, spread(spec.key, spec.query.shape[1])
    out = spec.score_function.plain(widened(query), widened(key))
    if spec.bias is not None:
        out = out + biases.tile(spec.bias, everything, 0, spec.m, spec.n)
    seen = spec.visible.tile(everything, 0, spec.m, spec.n, spec.m, query.device)
    return out if seen is None else out.masked_fill(~seen, -torch.inf)


def softmax(scores: Float[Tensor, "B H R C"]) -> Float[Tensor, "B H R C"]:
    """Zeros, and no gradient, in a row that may see nothing."""
    blind = (scores == -torch.inf).all(-1, keepdim=True)
    return scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)


def attend(spec: AttentionSpec, value: Values) -> tuple[Outputs, LogSumExp]:
    every = scores(spec)
    lse = every.detach().logsumexp(-1)
    out = softmax(every) @ widened(spread(value, spec.query.shape[1]))
    return out.to(value.dtype), lse.masked_fill(lse == -torch.inf, 0.0)
