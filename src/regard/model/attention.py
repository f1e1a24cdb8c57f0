"""Attention over queries, keys and values: the one entry through which every model of the family attends."""

from math import prod, sqrt

import torch
from torch import nn

from regard.core.errors import InvalidArgument
from regard.core.shapes import LogSumExp, Tensor
from regard.kernels.attention import additive, blockwise, sdpa, small_kv
from regard.kernels.attention.bias import Bias, DistanceBias, bias_values, with_values
from regard.kernels.attention.mask import AttentionMask
from regard.kernels.attention.score_function import DotScoreFunction, ScoreFunction
from regard.kernels.attention.spec import AttentionSpec
from regard.kernels.attention.weights import Summary
from regard.model import capture
from regard.model.capture import Pick
from regard.model.scores import Dot, ProjectedKeys, ScaledDot, Score, Scoring

Window = int | tuple[int | None, int | None]


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    score: Scoring | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    window: Window | None = None,
    bias: Bias | None = None,
    dropout: float = 0.0,
    source: nn.Module | None = None,
) -> Tensor:
    """For each query, the mean of the values, weighted by how well the query fits each key.

    query (..., N, D), key (..., M, D) and value (..., M, E) give (..., N, E). Leading axes broadcast; N and M are free.

    score     how a query and a key fit; None is the scaled dot product
    mask      boolean, True = may attend, broadcastable to (..., N, M)
    causal    no query sees a key after its own place; the last query stands at the last key, whatever N and M are
    window    how many keys before and after its own place a query sees: one number, or a pair (None: no limit)
    bias      added to the scores: a tensor that broadcasts to (..., N, M), or a `DistanceBias`
    dropout   the probability with which a weight is dropped; pass 0.0 outside training
    source    the module that asks, for those who listen

    A query that may see nothing gets zeros, and sends no gradient. Memory grows with N + M, never with N × M.

    >>> import regard, torch
    >>> query, key, value = torch.randn(2, 3, 8), torch.randn(2, 5, 8), torch.randn(2, 5, 4)
    >>> regard.attend(query, key, value).shape
    torch.Size([2, 3, 4])
    """
    if not 0 <= dropout < 1:
        raise InvalidArgument(
            "dropout", wanted="a probability p, 0 ≤ p < 1", got=str(dropout), remedy="0.0 drops nothing."
        )
    query, key, value = _autocast(query, key, value)
    check_tensors({"query": query, "key": key, "value": value})
    _check_values(key, value)
    spec, lead = _spec(query, key, value, score, mask, causal, window, bias)
    out = attend_spec(spec, _fold_batch(value, _folding(lead, spec.score_function)), dropout, source, lead)
    return out.reshape(*lead, *out.shape[2:])


def attention_weights(
    query: Tensor,
    key: Tensor,
    value: Tensor | None = None,
    *,
    score: Scoring | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    window: Window | None = None,
    bias: Bias | None = None,
    rows: Pick = None,
    heads: Pick = None,
    lse: Tensor | None = None,
) -> Tensor:
    """The exact weights (..., rows, M) that `attend` gives these rows and heads, before dropout.

    Arguments are those of `attend`. Weights do not depend on the value; given, it is checked as `attend` would.
    `rows` and `heads` (the axis before the queries) choose; memory grows with what is asked for.
    `lse` (..., N) is the log-sum-exp of each row where it is known already; the weights then carry no gradient.
    """
    query, key, *values = _autocast(query, key, *(() if value is None else (value,)))
    check_tensors(dict(zip(("query", "key", "value"), (query, key, *values), strict=False)))
    if values:
        _check_values(key, values[0])
    spec, lead = _spec(query, key, values[0] if values else None, score, mask, causal, window, bias)
    with torch.set_grad_enabled(torch.is_grad_enabled() and lse is None):
        return capture.weights(spec, lead, rows, heads, _fold_lse(lse, spec, lead))


@torch.no_grad()
def attention_summary(
    query: Tensor,
    key: Tensor,
    *,
    score: Scoring | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    window: Window | None = None,
    bias: Bias | None = None,
    top: int = 16,
    on: Tensor | None = None,
    lse: Tensor | None = None,
) -> Summary:
    """Entropy, mean distance, the `top` largest weights and the mass `on` some keys, for every row of weights.

    Streamed: memory grows with N + M. `on` marks keys with True, shape (M,); the other arguments are `attend`'s.
    """
    query, key = _autocast(query, key)
    check_tensors({"query": query, "key": key})
    spec, lead = _spec(query, key, None, score, mask, causal, window, bias)
    return capture.summary(spec, lead, top, on, _fold_lse(lse, spec, lead))


def self_attend(
    x: Tensor,
    *,
    scaled: bool = False,
    mask: Tensor | None = None,
    causal: bool = False,
    window: Window | None = None,
) -> Tensor:
    """Self-attention without parameters, softmax(X Xᵀ) X: each row of x (..., N, W) asks all rows for their mean."""
    return attend(x, x, x, score=ScaledDot() if scaled else Dot(), mask=mask, causal=causal, window=window)


def attend_spec(
    spec: AttentionSpec, value: Tensor, dropout: float, source: nn.Module | None, lead: tuple[int, ...]
) -> Tensor:
    """Run a look-up through the best kernel there is for it, tell whoever listens, and let whoever changes it do so."""
    kernel = next((each for each in (small_kv, sdpa, additive) if each.supports(spec, value, dropout)), blockwise)
    out: Tensor
    lse: LogSumExp
    out, lse = kernel.attend(spec, value, dropout)
    capture.publish(source, spec, lse, lead, value)
    return capture.intercept(source, spec, value, out)


def visibility(mask: Tensor | None, causal: bool, window: Window | None) -> AttentionMask:
    behind, ahead = _window(window)
    return AttentionMask(mask, behind, 0 if causal else ahead)


def _spec(
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    score: Scoring | None,
    mask: Tensor | None,
    causal: bool,
    window: Window | None,
    bias: Bias | None,
) -> tuple[AttentionSpec, tuple[int, ...]]:
    """The look-up, and the leading axes that all broadcast to; a score with heads may have added to the query's."""
    score_function: ScoreFunction
    if score is None:
        score_function = DotScoreFunction(1 / sqrt(max(1, query.shape[-1])))
    elif not isinstance(score, Score | ProjectedKeys):
        raise InvalidArgument(
            "score",
            wanted="a score such as regard.Additive(8, 8, 4), or None",
            got=repr(score),
            remedy="Make one: regard.Dot() and not regard.Dot or 'dot'.",
        )
    else:
        dtype = query.dtype
        query, key = score.queries(query), score.keys(key)
        if not query.dtype == key.dtype == dtype:  # a score of wider parameters answers in their precision
            query, key = query.to(dtype), key.to(dtype)
        score_function = score.score_function(query.shape[-1])
    lead = _lead({"query": query, "key": key} | ({} if value is None else {"value": value}))
    if query.shape[-1] != key.shape[-1]:
        name = "ScaledDot" if score is None else type(score).__name__
        raise InvalidArgument(
            "key",
            wanted=f"the query's width, {query.shape[-1]}, as {name} needs it",
            got=f"width {key.shape[-1]} in shape {tuple(key.shape)}",
            remedy="Project one of them, or use a score that joins two widths: Bilinear, ReducedRank or Additive.",
        )
    folding = _folding(lead, score_function)
    shape = (*lead, query.shape[-2], key.shape[-2])
    if mask is not None:
        check_mask(mask, shape, query.device)
        mask = _fold(mask, folding)
    if bias is not None:
        bias = fold_bias(bias, shape, query, folding)
    spec = AttentionSpec(
        score_function=score_function,
        query=_fold_batch(query if query.shape[:-2] == lead else query.expand(*lead, -1, -1), folding),
        key=_fold_batch(key, folding),
        visible=visibility(mask, causal, window),
        bias=bias,
    )
    return spec, lead


def _folding(lead: tuple[int, ...], score_function: ScoreFunction) -> tuple[int, ...]:
    """A single leading axis is the batch, unless the score has heads."""
    heads = 1 if score_function.weight is None else len(score_function.weight)
    assert heads in (1, *lead[-1:])  # the score has checked its own
    return (1, *lead) if len(lead) == 1 and heads > 1 else lead


def _fold(tensor: Tensor, lead: tuple[int, ...]) -> Tensor:
    """Leading axes as two, (batch, heads), heads being the last of two or more; of size one where they broadcast."""
    if tensor.dim() == 4 and len(lead) == 2:
        return tensor
    axes = (*(1,) * (len(lead) + 2 - tensor.dim()), *tensor.shape)
    if len(lead) < 2:
        return tensor.reshape(prod(axes[:-2]), 1, *axes[-2:])  # (B, 1, …)
    batch = (1,) * (len(lead) - 1) if prod(axes[: len(lead) - 1]) == 1 else lead[:-1]
    return tensor.reshape(axes).expand(*batch, *axes[-3:]).reshape(prod(batch), *axes[-3:])  # (B, H, …)


def _fold_batch(tensor: Tensor, lead: tuple[int, ...]) -> Tensor:
    """The same with the batch at full size."""
    folded = _fold(tensor, lead)
    batch = prod(lead) if len(lead) < 2 else prod(lead[:-1])
    return folded if folded.shape[0] == batch else folded.expand(batch, *folded.shape[1:])


def fold_bias(bias: Bias, shape: tuple[int, ...], query: Tensor, folding: tuple[int, ...]) -> Bias:
    lead, n, m = shape[:-2], shape[-2], shape[-1]
    values = bias_values(bias)
    if not isinstance(values, Tensor) or not values.is_floating_point() or values.device != query.device:
        raise InvalidArgument(
            "bias",
            wanted=f"numbers to add to the scores, floating point, on {query.device}",
            got=f"{values.dtype} on {values.device}" if isinstance(values, Tensor) else repr(values),
            remedy="A boolean that says who may attend belongs in mask=.",
        )
    values = values.to(query.dtype)
    if isinstance(bias, DistanceBias):
        wanted = (*lead, n + m - 1)
        if values.dim() > 0 and values.shape[-1] == n + m - 1 and _broadcasts(values, wanted):
            return with_values(bias, _fold(values[..., None, :], folding)[:, :, 0])
    else:
        wanted = shape
        if _broadcasts(values, wanted):
            return _fold(values, folding)
    raise InvalidArgument(
        "bias",
        wanted=f"a shape that broadcasts to {wanted}",
        got=str(tuple(values.shape)),
        remedy="The last axes are queries and keys; a DistanceBias has one number for each of N + M - 1 distances.",
    )


def _fold_lse(lse: Tensor | None, spec: AttentionSpec, lead: tuple[int, ...]) -> Tensor | None:
    if lse is None:
        return None
    if lse.shape != (*lead, spec.n):
        raise InvalidArgument(
            "lse",
            wanted=f"one number a query, shape {(*lead, spec.n)}",
            got=str(tuple(lse.shape)),
            remedy="Leave it out and it is computed for the rows asked for.",
        )
    return lse.reshape(spec.query.shape[:3])


def _autocast(*tensors: Tensor) -> list[Tensor]:
    """What torch.autocast does for PyTorch's own attention."""
    if not all(isinstance(t, Tensor) and t.is_floating_point() for t in tensors):
        return list(tensors)  # left for the checks to name
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return list(tensors)
    return [t.to(torch.get_autocast_dtype(device)) if t.dtype != torch.float64 else t for t in tensors]


def check_tensors(tensors: dict[str, Tensor]) -> None:
    """Refuse what is not a floating-point tensor (..., positions, width) like the first."""
    first = next(iter(tensors.values()))
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point() or tensor.dim() < 2:
            got = f"{tensor.dtype} of shape {tuple(tensor.shape)}" if isinstance(tensor, Tensor) else repr(tensor)
            raise InvalidArgument(
                name,
                wanted="a floating-point tensor (..., positions, width)",
                got=got,
                remedy="Embed tokens first; give a single vector as x[None].",
            )
        if tensor.dtype != first.dtype or tensor.device != first.device:
            raise InvalidArgument(
                name,
                wanted=f"{first.dtype} on {first.device}, as the query",
                got=f"{tensor.dtype} on {tensor.device}",
                remedy="Move or convert it with .to(query).",
            )


def _lead(tensors: dict[str, Tensor]) -> tuple[int, ...]:
    """The leading axes that all broadcast to."""
    lead = tuple(tensors["query"].shape[:-2])
    if all(tensor.shape[:-2] == lead for tensor in tensors.values()):
        return lead
    depth = max(tensor.dim() for tensor in tensors.values()) - 2
    shapes = [(*(1,) * (depth + 2 - tensor.dim()), *tensor.shape[:-2]) for tensor in tensors.values()]
    axes = [{size for size in sizes if size != 1} or {1} for sizes in zip(*shapes, strict=True)]
    if any(len(sizes) > 1 for sizes in axes):
        raise InvalidArgument(
            ", ".join(tensors),
            wanted="leading axes that broadcast",
            got=", ".join(f"{name} {tuple(t.shape)}" for name, t in tensors.items()),
            remedy="All axes but the last two are batch axes: make them equal, or of size one.",
        )
    return tuple(size for (size,) in axes)


def _check_values(key: Tensor, value: Tensor) -> None:
    if key.shape[-2] != value.shape[-2]:
        raise InvalidArgument(
            "value",
            wanted=f"one value a key, {key.shape[-2]} of them",
            got=f"{value.shape[-2]} in shape {tuple(value.shape)}",
            remedy="Keys and values come in pairs, from the same sequence.",
        )


def check_mask(mask: Tensor, shape: tuple[int, ...], device: torch.device) -> None:
    """Refuse what is not a boolean mask on this device that broadcasts to (..., N, M)."""
    if isinstance(mask, Tensor) and mask.device != device:
        raise InvalidArgument(
            "mask",
            wanted=f"a mask on {device}, as the query",
            got=f"one on {mask.device}",
            remedy="Move it with .to().",
        )
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        floating = isinstance(mask, Tensor) and mask.is_floating_point()
        raise InvalidArgument(
            "mask",
            wanted="a boolean tensor, True = may attend",
            got=str(mask.dtype) if isinstance(mask, Tensor) else repr(mask),
            remedy="What is added to scores belongs in bias=; for 0 / -inf use mask == 0."
            if floating
            else "Use mask.bool() if non-zero means that it may attend.",
        )
    if not _broadcasts(mask, shape):
        raise InvalidArgument(
            "mask",
            wanted=f"a shape that broadcasts to {shape}: batch axes, queries, keys",
            got=str(tuple(mask.shape)),
            remedy="A padding mask (batch, keys) goes in as mask[:, None, :], or mask[:, None, None, :] with heads.",
        )


def _broadcasts(tensor: Tensor, shape: tuple[int, ...]) -> bool:
    axes = zip(reversed(tensor.shape), reversed(shape), strict=False)
    return tensor.dim() <= len(shape) and all(size in (1, wanted) for size, wanted in axes)


def _window(window: Window | None) -> tuple[int | None, int | None]:
    if window is None:
        return None, None
    pair = window if isinstance(window, tuple | list) else (window, window)
    if len(pair) != 2 or not all(size is None or (type(size) is int and size >= 0) for size in pair):
        raise InvalidArgument(
            "window",
            wanted="a number of keys ≥ 0, or a pair of such numbers (None: no limit)",
            got=repr(window),
            remedy="window=2 sees two keys on each side; with causal=True, the two before and its own.",
        )
    behind, ahead = pair
    return behind, ahead
