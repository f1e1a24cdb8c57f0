"""Reference attention: the whole (N, M) score matrix in memory, for tests to compare the other kernels with."""

import torch

from regard.core.shapes import Float, LogSumExp, Outputs, Tensor, Values
from regard.kernels.attention import bias as biases
from regard.kernels.attention.spec import AttentionSpec, repeat_heads, widened


def supports(spec: AttentionSpec, value: Values, dropout: float) -> bool:
    return dropout == 0


def scores(spec: AttentionSpec) -> Float[Tensor, "B H N M"]:
    """All scores, −∞ where masked."""
    all_rows = slice(None)
    query = spec.query
    key = repeat_heads(spec.key, spec.query.shape[1])  # (B, H, M, D)
    out = spec.score_function.scores(widened(query), widened(key))  # (B, H, N, M)
    if spec.bias is not None:
        # By index: a slice of rows has a range in Python numbers, which torch.export would turn into constants.
        rows = torch.arange(spec.n, device=query.device)
        out = out + biases.tile(spec.bias, rows, 0, spec.m, spec.n)
    visible = spec.visible.tile(all_rows, 0, spec.m, spec.n, spec.m, query.device)
    if visible is None:
        return out
    return out.masked_fill(~visible, -torch.inf)


def softmax(scores: Float[Tensor, "B H R C"]) -> Float[Tensor, "B H R C"]:
    """Softmax over keys; zeros, and zero gradient, in a row that may attend to nothing."""
    empty = (scores == -torch.inf).all(-1, keepdim=True)
    return scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)


def attend(spec: AttentionSpec, value: Values, dropout: float = 0.0) -> tuple[Outputs, LogSumExp]:
    assert dropout == 0
    all_scores = scores(spec)  # (B, H, N, M)
    lse = all_scores.detach().logsumexp(-1)  # (B, H, N)
    values = widened(repeat_heads(value, spec.query.shape[1]))  # (B, H, M, E)
    out = softmax(all_scores) @ values  # (B, H, N, E)
    # A row that may attend to nothing has 0 instead of −∞.
    lse = lse.masked_fill(lse == -torch.inf, 0.0)
    return out.to(value.dtype), lse
