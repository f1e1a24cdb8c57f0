"""Attention over queries, keys and values: the entry through which every model attends, padded or packed."""

from math import prod, sqrt

import torch
from torch import nn

from regard.core.errors import InvalidArgument
from regard.core.shapes import Tensor
from regard.kernels.attention import additive, blockwise, sdpa, small_kv, varlen
from regard.kernels.attention.bias import Bias, DistanceBias, bias_values, with_values
from regard.kernels.attention.mask import AttentionMask
from regard.kernels.attention.score_function import DotScoreFunction, ScoreFunction
from regard.kernels.attention.spec import AttentionKernel, AttentionSpec
from regard.kernels.attention.varlen import PackedAttentionSpec
from regard.kernels.attention.weights import Summary
from regard.model import capture
from regard.model.capture import Pick
from regard.model.scores import Dot, ProjectedKeys, ScaledDot, Score, Scoring

Window = int | tuple[int | None, int | None]

# In order of preference; the last one supports every call.
KERNELS: tuple[AttentionKernel, ...] = (small_kv, sdpa, additive, blockwise)


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
    """Attention: for each query the mean of the values, weighted by the softmax of the scores of query and keys.

    query (..., N, D), key (..., M, D) and value (..., M, E) give (..., N, E). Leading axes broadcast.

    score     score of a query and a key; None is the scaled dot product
    mask      boolean, True = may attend, broadcastable to (..., N, M)
    causal    mask keys after the query's position; the last query is aligned with the last key
    window    attend to so many keys before and after the query's position: one number, or a pair (None: no limit)
    bias      added to the scores: a tensor that broadcasts to (..., N, M), or a `DistanceBias`
    dropout   probability of dropping a weight; pass 0.0 outside training
    source    the module that attends, recorded in captured calls

    A query that may attend to nothing gives zeros and zero gradient. Memory grows with N + M, never with N × M.

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
    """The exact weights (..., rows, M) of `attend` for these rows and heads, before dropout.

    Arguments are those of `attend`. The value does not matter; if given, it is checked as in `attend`.
    `rows` and `heads` (the axis before the queries) select; memory grows with the selection.
    `lse` (..., N) is the log-sum-exp of each row, where it is known; the weights then carry no gradient.
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

    Computed in blocks: memory grows with N + M. `on` (M,) is True at the keys of the mass; other arguments as `attend`.
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
    """Self-attention without parameters, softmax(X Xᵀ) X, of x (..., N, W)."""
    return attend(x, x, x, score=ScaledDot() if scaled else Dot(), mask=mask, causal=causal, window=window)


def attend_spec(
    spec: AttentionSpec, value: Tensor, dropout: float, source: nn.Module | None, lead: tuple[int, ...]
) -> Tensor:
    """Attention (B, H, N, E) by the first kernel that supports the call, published to captures and interceptors.

    `lead` are the caller's batch axes, heads last, which the spec folds into (batch, heads).
    """
    out, lse = _first_supporting(spec, value, dropout).attend(spec, value, dropout)
    capture.publish(source, spec, lse, lead, value)
    return capture.intercept(source, spec, value, out)


def _first_supporting(spec: AttentionSpec, value: Tensor, dropout: float) -> AttentionKernel:
    return next(kernel for kernel in KERNELS if kernel.supports(spec, value, dropout))


def attend_packed(packed: PackedAttentionSpec, source: nn.Module | None) -> Tensor:
    """As `attend_spec`, for packed sequences. Captures and interceptors get the call as it would be padded."""
    out = varlen.attend(packed)
    if capture.capturing():
        spec, value = packed.padded()
        with torch.no_grad():
            _, lse = _first_supporting(spec, value, 0.0).attend(spec, value)
        capture.publish(source, spec, lse, tuple(spec.query.shape[:2]), value)
    if capture.intercepted():
        spec, value = packed.padded()
        padded = packed.offsets.pad(out.unflatten(1, (packed.layout.heads, -1))).transpose(1, 2)  # type: ignore[no-untyped-call]
        replaced = capture.intercept(source, spec, value, padded)
        out = out if replaced is padded else packed.pack(replaced)
    return out


def attention_mask(mask: Tensor | None, causal: bool, window: Window | None) -> AttentionMask:
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
    """The spec, and the leading axes that all broadcast to; a score with heads may have added some to the query's."""
    score_function: ScoreFunction
    if score is None:
        score_function = DotScoreFunction(1 / sqrt(max(1, query.shape[-1])))
    elif not isinstance(score, Score | ProjectedKeys):
        wanted = "a score such as regard.Additive(8, 8, 4), or None"
        remedy = "Make one: regard.Dot() and not regard.Dot or 'dot'."
        raise InvalidArgument("score", wanted=wanted, got=repr(score), remedy=remedy)
    else:
        dtype = query.dtype
        query, key = score.queries(query), score.keys(key)
        if not query.dtype == key.dtype == dtype:  # the projections of a score may be wider
            query, key = query.to(dtype), key.to(dtype)
        score_function = score.score_function(query.shape[-1])
    lead = _lead({"query": query, "key": key} | ({} if value is None else {"value": value}))
    if query.shape[-1] != key.shape[-1]:
        name = "ScaledDot" if score is None else type(score).__name__
        got = f"dim {key.shape[-1]} in shape {tuple(key.shape)}"
        remedy = "Project one of them, or use a score of two dims: Bilinear, ReducedRank or Additive."
        raise InvalidArgument("key", wanted=f"the query's dim, {query.shape[-1]}, for {name}", got=got, remedy=remedy)
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
        visible=attention_mask(mask, causal, window),
        bias=bias,
    )
    return spec, lead


def _folding(lead: tuple[int, ...], score_function: ScoreFunction) -> tuple[int, ...]:
    """A single leading axis is the batch, unless the score has heads."""
    heads = 1 if score_function.weight is None else len(score_function.weight)
    assert heads in (1, *lead[-1:])  # checked by the score
    return (1, *lead) if len(lead) == 1 and heads > 1 else lead


def _fold(tensor: Tensor, lead: tuple[int, ...]) -> Tensor:
    """Leading axes folded into (batch, heads): the last of two or more is heads. Broadcast axes stay of size one."""
    if tensor.dim() == 4 and len(lead) == 2:
        return tensor
    axes = (*(1,) * (len(lead) + 2 - tensor.dim()), *tensor.shape)
    if len(lead) < 2:
        return tensor.reshape(prod(axes[:-2]), 1, *axes[-2:])  # (B, 1, …)
    batch = (1,) * (len(lead) - 1) if prod(axes[: len(lead) - 1]) == 1 else lead[:-1]
    return tensor.reshape(axes).expand(*batch, *axes[-3:]).reshape(prod(batch), *axes[-3:])  # (B, H, …)


def _fold_batch(tensor: Tensor, lead: tuple[int, ...]) -> Tensor:
    """As `_fold`, with the batch axis expanded."""
    folded = _fold(tensor, lead)
    batch = prod(lead) if len(lead) < 2 else prod(lead[:-1])
    return folded if folded.shape[0] == batch else folded.expand(batch, *folded.shape[1:])


def fold_bias(bias: Bias, shape: tuple[int, ...], query: Tensor, folding: tuple[int, ...]) -> Bias:
    """The bias in the query's dtype with leading axes folded, or InvalidArgument unless it broadcasts to `shape`."""
    lead, n, m = shape[:-2], shape[-2], shape[-1]
    values = bias_values(bias)
    if not isinstance(values, Tensor) or not values.is_floating_point() or values.device != query.device:
        raise InvalidArgument(
            "bias",
            wanted=f"a floating-point tensor on {query.device}, added to the scores",
            got=f"{values.dtype} on {values.device}" if isinstance(values, Tensor) else repr(values),
            remedy="A boolean mask goes in mask=.",
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
    got = str(tuple(values.shape))
    remedy = "The last axes are queries and keys; a DistanceBias has one number for each of N + M - 1 distances."
    raise InvalidArgument("bias", wanted=f"a shape that broadcasts to {wanted}", got=got, remedy=remedy)


def _fold_lse(lse: Tensor | None, spec: AttentionSpec, lead: tuple[int, ...]) -> Tensor | None:
    if lse is None:
        return None
    if lse.shape != (*lead, spec.n):
        wanted, got = f"one number per query, shape {(*lead, spec.n)}", str(tuple(lse.shape))
        raise InvalidArgument("lse", wanted=wanted, got=got, remedy="Leave it out and it is computed.")
    return lse.reshape(spec.query.shape[:3])


def _autocast(*tensors: Tensor) -> list[Tensor]:
    """Cast as torch.autocast does for PyTorch's own attention."""
    if not all(isinstance(t, Tensor) and t.is_floating_point() for t in tensors):
        return list(tensors)  # refused by the checks
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return list(tensors)
    return [t.to(torch.get_autocast_dtype(device)) if t.dtype != torch.float64 else t for t in tensors]


def check_tensors(tensors: dict[str, Tensor]) -> None:
    """Refuse anything but floating-point tensors (..., positions, dim) of the first one's dtype and device."""
    first = next(iter(tensors.values()))
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point() or tensor.dim() < 2:
            got = f"{tensor.dtype} of shape {tuple(tensor.shape)}" if isinstance(tensor, Tensor) else repr(tensor)
            remedy = "Embed tokens first; give a single vector as x[None]."
            raise InvalidArgument(name, wanted="a floating-point tensor (..., positions, dim)", got=got, remedy=remedy)
        if tensor.dtype != first.dtype or tensor.device != first.device:
            wanted, remedy = f"{first.dtype} on {first.device}, as the query", "Move or convert it with .to(query)."
            raise InvalidArgument(name, wanted=wanted, got=f"{tensor.dtype} on {tensor.device}", remedy=remedy)


def _lead(tensors: dict[str, Tensor]) -> tuple[int, ...]:
    """The leading axes that all broadcast to."""
    lead = tuple(tensors["query"].shape[:-2])
    if all(tensor.shape[:-2] == lead for tensor in tensors.values()):
        return lead
    depth = max(tensor.dim() for tensor in tensors.values()) - 2
    shapes = [(*(1,) * (depth + 2 - tensor.dim()), *tensor.shape[:-2]) for tensor in tensors.values()]
    axes = [{size for size in sizes if size != 1} or {1} for sizes in zip(*shapes, strict=True)]
    if any(len(sizes) > 1 for sizes in axes):
        got = ", ".join(f"{name} {tuple(t.shape)}" for name, t in tensors.items())
        remedy = "All axes but the last two are batch axes: make them equal, or of size one."
        raise InvalidArgument(", ".join(tensors), wanted="leading axes that broadcast", got=got, remedy=remedy)
    return tuple(size for (size,) in axes)


def _check_values(key: Tensor, value: Tensor) -> None:
    if key.shape[-2] != value.shape[-2]:
        got = f"{value.shape[-2]} in shape {tuple(value.shape)}"
        remedy = "Keys and values come in pairs, from the same sequence."
        raise InvalidArgument("value", wanted=f"one value per key, {key.shape[-2]} of them", got=got, remedy=remedy)


def check_mask(mask: Tensor, shape: tuple[int, ...], device: torch.device) -> None:
    """Refuse anything but a boolean mask on this device that broadcasts to (..., N, M)."""
    if isinstance(mask, Tensor) and mask.device != device:
        wanted = f"a mask on {device}, as the query"
        raise InvalidArgument("mask", wanted=wanted, got=f"one on {mask.device}", remedy="Move it with .to().")
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        floating = isinstance(mask, Tensor) and mask.is_floating_point()
        raise InvalidArgument(
            "mask",
            wanted="a boolean tensor, True = may attend",
            got=str(mask.dtype) if isinstance(mask, Tensor) else repr(mask),
            remedy="What is added to scores goes in bias=; for 0 / -inf use mask == 0."
            if floating
            else "Use mask.bool() if non-zero means that it may attend.",
        )
    if not _broadcasts(mask, shape):
        wanted = f"a shape that broadcasts to {shape}: batch axes, queries, keys"
        remedy = "A padding mask (batch, keys) goes in as mask[:, None, :], or mask[:, None, None, :] with heads."
        raise InvalidArgument("mask", wanted=wanted, got=str(tuple(mask.shape)), remedy=remedy)


def _broadcasts(tensor: Tensor, shape: tuple[int, ...]) -> bool:
    axes = zip(reversed(tensor.shape), reversed(shape), strict=False)
    return tensor.dim() <= len(shape) and all(size in (1, wanted) for size, wanted in axes)


def _window(window: Window | None) -> tuple[int | None, int | None]:
    if window is None:
        return None, None
    pair = window if isinstance(window, tuple | list) else (window, window)
    if len(pair) != 2 or not all(size is None or (type(size) is int and size >= 0) for size in pair):
        wanted = "a number of keys ≥ 0, or a pair of such numbers (None: no limit)"
        remedy = "window=2 is two keys on each side; with causal=True, the two before and its own."
        raise InvalidArgument("window", wanted=wanted, got=repr(window), remedy=remedy)
    behind, ahead = pair
    return behind, ahead
