"""Attention over queries, keys and values: the entry through which every model attends,
padded or packed.
"""

from math import prod, sqrt

import torch
from torch import nn

from regard.core.errors import InvalidArgument
from regard.core.interruption import check_interruption
from regard.core.shapes import Tensor
from regard.kernels.attention import additive, blockwise, reference, sdpa, small_kv, varlen
from regard.kernels.attention.bias import Bias, DistanceBias, bias_values, with_values
from regard.kernels.attention.mask import AttentionMask
from regard.kernels.attention.score_function import DotScoreFunction, ScoreFunction
from regard.kernels.attention.spec import AttentionKernel, AttentionSpec
from regard.kernels.attention.varlen import PackedAttentionSpec
from regard.kernels.attention.weights import Summary
from regard.model import capture
from regard.model.capture import AttentionResult, Pick
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
    """Attention: for each query the mean of the values,
    weighted by the softmax of the scores of query and keys.

    query (..., N, D), key (..., M, D) and value (..., M, E) give (..., N, E). Leading axes
    broadcast.

    score     score of a query and a key; None is the scaled dot product
    mask      boolean, True = may attend, broadcastable to (..., N, M)
    causal    mask keys after the query's position; the last query is aligned with the last key
    window    attend to so many keys before and after the query's position: one number, or a pair
              (None: no limit)
    bias      added to the scores: a tensor that broadcasts to (..., N, M), or a `DistanceBias`
    dropout   probability of dropping a weight; pass 0.0 outside training
    source    the module that attends, recorded in captured calls

    A query that may attend to nothing gives zeros and zero gradient. Memory grows with N + M, never
    with N × M.

    >>> import regard, torch
    >>> query, key, value = torch.randn(2, 3, 8), torch.randn(2, 5, 8), torch.randn(2, 5, 4)
    >>> regard.attend(query, key, value).shape
    torch.Size([2, 3, 4])
    """
    check_dropout(dropout)
    tensors = {"query": query, "key": key, "value": value}
    spec, lead, folded = _spec(tensors, score, mask, causal, window, bias)
    assert folded is not None
    out = attend_spec(spec, folded, dropout, source, lead)
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

    query, key, score, mask, causal, window, bias   as of `attend`
    value   does not matter; if given, it is checked as in `attend`
    rows    which queries: an index, indices or a slice; None: all. Memory grows with the selection
    heads   likewise, of the axis before the queries
    lse     (..., N), the log-sum-exp of each row, where it is known; the weights then carry no
            gradient
    """
    tensors = {"query": query, "key": key}
    if value is not None:
        tensors["value"] = value
    spec, lead, _ = _spec(tensors, score, mask, causal, window, bias)
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
    """Entropy, mean distance, the largest weights and the mass on some keys,
    for every row of weights.

    query, key, score, mask, causal, window, bias   as of `attend`
    top   how many of the largest weights
    on    (M,), True at the keys whose total weight is wanted
    lse   (..., N), the log-sum-exp of each row, where it is known

    Computed in blocks: memory grows with N + M. Returns a `Summary`.
    """
    spec, lead, _ = _spec({"query": query, "key": key}, score, mask, causal, window, bias)
    return capture.summary(spec, lead, top, on, _fold_lse(lse, spec, lead))


def self_attend(
    x: Tensor,
    *,
    scaled: bool = False,
    mask: Tensor | None = None,
    causal: bool = False,
    window: Window | None = None,
) -> Tensor:
    """Self-attention without parameters, softmax(X Xᵀ) X, of x (..., N, W).

    scaled                 divide the scores by √W
    mask, causal, window   as of `attend`
    """
    score = ScaledDot() if scaled else Dot()
    return attend(x, x, x, score=score, mask=mask, causal=causal, window=window)


def attend_spec(
    spec: AttentionSpec,
    value: Tensor,
    dropout: float,
    source: nn.Module | None,
    lead: tuple[int, ...],
) -> Tensor:
    """Attention (B, H, N, E) by the first kernel that supports the call;
    interceptors may change it, captures get it.

    `lead` are the caller's batch axes, heads last, which the spec folds into (batch, heads).
    """
    check_interruption()
    computed = AttentionResult(
        spec, value, *_first_supporting(spec, value, dropout).attend(spec, value, dropout)
    )
    spec, value, out, lse = capture.intercept(source, computed)
    capture.publish(source, spec, lse, lead, value)
    return out


def attention_result(spec: AttentionSpec, value: Tensor) -> AttentionResult:
    """Attention without dropout, for interceptors: neither published nor intercepted."""
    return AttentionResult(spec, value, *_first_supporting(spec, value, 0.0).attend(spec, value))


def _first_supporting(spec: AttentionSpec, value: Tensor, dropout: float) -> AttentionKernel:
    if torch.compiler.is_exporting():
        # Plain operations, which every backend of torch.export knows.
        return reference
    return next(kernel for kernel in KERNELS if kernel.supports(spec, value, dropout))


def attend_packed(packed: PackedAttentionSpec, source: nn.Module | None) -> Tensor:
    """As `attend_spec`, for packed sequences.

    Captures and interceptors get the call as it would be padded.
    """
    out = varlen.attend(packed)
    if capture.capturing() or capture.intercepted():
        spec, value = packed.padded()
        with torch.no_grad():
            lse = attention_result(spec, value).lse
        by_head = out.unflatten(1, (packed.layout.heads, -1))  # type: ignore[no-untyped-call]
        padded = packed.offsets.pad(by_head).transpose(1, 2)  # (B, H, N, D)
        spec, value, replaced, lse = capture.intercept(
            source, AttentionResult(spec, value, padded, lse)
        )
        capture.publish(source, spec, lse, tuple(spec.query.shape[:2]), value)
        if replaced is not padded:
            out = packed.pack(replaced)
    return out


def attention_mask(mask: Tensor | None, causal: bool, window: Window | None) -> AttentionMask:
    pair = window if isinstance(window, tuple | list) else (window, window)
    if len(pair) != 2 or not all(
        size is None or (type(size) is int and size >= 0) for size in pair
    ):
        wanted = "a number of keys ≥ 0, or a pair of such numbers (None: no limit)"
        remedy = "window=2 is two keys on each side; with causal=True, the two before and its own."
        raise InvalidArgument("window", wanted=wanted, got=repr(window), remedy=remedy)
    behind, ahead = pair
    return AttentionMask(mask, behind, 0 if causal else ahead)


def _spec(
    tensors: dict[str, Tensor],
    score: Scoring | None,
    mask: Tensor | None,
    causal: bool,
    window: Window | None,
    bias: Bias | None,
) -> tuple[AttentionSpec, tuple[int, ...], Tensor | None]:
    """The spec of a query, a key and perhaps a value; the leading axes that all broadcast to;
    the folded value.
    """
    tensors = _autocast(tensors)
    _check_tensors(tensors)
    query = tensors["query"]
    key = tensors["key"]
    value = tensors.get("value")
    score_function: ScoreFunction
    if score is None:
        score_function = DotScoreFunction(1 / sqrt(max(1, query.shape[-1])))
    elif not isinstance(score, Score | ProjectedKeys):
        wanted = "a score such as regard.Additive(8, 8, 4), or None"
        remedy = "Make one: regard.Dot() and not regard.Dot or 'dot'."
        raise InvalidArgument("score", wanted=wanted, got=repr(score), remedy=remedy)
    else:
        # The projections of a score may have a wider type.
        dtype = query.dtype
        query = score.queries(query).to(dtype)
        key = score.keys(key).to(dtype)
        score_function = score.score_function(query.shape[-1])
    # A score with heads may have added an axis.
    lead = _lead(tensors | {"query": query, "key": key})
    if query.shape[-1] != key.shape[-1]:
        name = "ScaledDot" if score is None else type(score).__name__
        got = f"dim {key.shape[-1]} in shape {tuple(key.shape)}"
        remedy = (
            "Project one of them, or use a score of two dims: Bilinear, ReducedRank or Additive."
        )
        raise InvalidArgument(
            "key", wanted=f"the query's dim, {query.shape[-1]}, for {name}", got=got, remedy=remedy
        )
    heads = 1 if score_function.weight is None else len(score_function.weight)
    assert heads in (1, *lead[-1:])  # checked by the score
    # A single axis is the batch unless there are heads.
    folding = lead
    if len(lead) == 1 and heads > 1:
        folding = (1, *lead)
    shape = (*lead, query.shape[-2], key.shape[-2])
    if mask is not None:
        check_mask(mask, shape, query.device)
        mask = _fold(mask, folding)
    if query.shape[:-2] != lead:
        query = query.expand(*lead, -1, -1)
    if bias is not None:
        bias = fold_bias(bias, shape, query, folding)
    spec = AttentionSpec(
        score_function=score_function,
        query=_fold_batch(query, folding),
        key=_fold_batch(key, folding),
        visible=attention_mask(mask, causal, window),
        bias=bias,
    )
    if value is not None:
        value = _fold_batch(value, folding)
    return spec, lead, value


def _fold(tensor: Tensor, lead: tuple[int, ...]) -> Tensor:
    """Leading axes folded into (batch, heads): the last of two or more is heads.

    Broadcast axes stay of size one.
    """
    if tensor.dim() == 4 and len(lead) == 2:
        return tensor
    axes = (*(1,) * (len(lead) + 2 - tensor.dim()), *tensor.shape)
    if len(lead) < 2:
        return tensor.reshape(prod(axes[:-2]), 1, *axes[-2:])  # (B, 1, …)
    batch = lead[:-1]
    if prod(axes[: len(lead) - 1]) == 1:
        batch = (1,) * (len(lead) - 1)
    expanded = tensor.reshape(axes).expand(*batch, *axes[-3:])
    return expanded.reshape(prod(batch), *axes[-3:])  # (B, H, …)


def _fold_batch(tensor: Tensor, lead: tuple[int, ...]) -> Tensor:
    """As `_fold`, with the batch axis expanded."""
    folded = _fold(tensor, lead)
    batch = prod(lead) if len(lead) < 2 else prod(lead[:-1])
    if folded.shape[0] == batch:
        return folded
    return folded.expand(batch, *folded.shape[1:])


def fold_bias(bias: Bias, shape: tuple[int, ...], query: Tensor, folding: tuple[int, ...]) -> Bias:
    """The bias in the query's dtype with leading axes folded,
    or InvalidArgument unless it broadcasts to `shape`.
    """
    values = bias_values(bias)
    if (
        not isinstance(values, Tensor)
        or not values.is_floating_point()
        or values.device != query.device
    ):
        wanted = f"a floating-point tensor on {query.device}, added to the scores"
        got = f"{values.dtype} on {values.device}" if isinstance(values, Tensor) else repr(values)
        raise InvalidArgument(
            "bias", wanted=wanted, got=got, remedy="A boolean mask goes in mask=."
        )
    values = values.to(query.dtype)
    by_distance = isinstance(bias, DistanceBias)
    target = shape
    if by_distance:
        target = (*shape[:-2], shape[-2] + shape[-1] - 1)
    if not _broadcasts(values, target) or (by_distance and values.shape[-1:] != target[-1:]):
        wanted = f"a shape that broadcasts to {target}"
        got = str(tuple(values.shape))
        remedy = (
            "The last axes are queries and keys; "
            "a DistanceBias has one number for each of N + M - 1 distances."
        )
        raise InvalidArgument("bias", wanted=wanted, got=got, remedy=remedy)
    if isinstance(bias, DistanceBias):
        return with_values(bias, _fold(values[..., None, :], folding)[:, :, 0])
    return _fold(values, folding)


def _fold_lse(lse: Tensor | None, spec: AttentionSpec, lead: tuple[int, ...]) -> Tensor | None:
    if lse is None:
        return None
    if lse.shape != (*lead, spec.n):
        wanted = f"one number per query, shape {(*lead, spec.n)}"
        got = str(tuple(lse.shape))
        raise InvalidArgument(
            "lse", wanted=wanted, got=got, remedy="Leave it out and it is computed."
        )
    return lse.reshape(spec.query.shape[:3])


def _autocast(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Cast as torch.autocast does for PyTorch's own attention.

    What is not a floating-point tensor is refused later.
    """
    if not all(isinstance(t, Tensor) and t.is_floating_point() for t in tensors.values()):
        return tensors
    device = tensors["query"].device.type
    if not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return {name: t.to(dtype) if t.dtype != torch.float64 else t for name, t in tensors.items()}


def _check_tensors(tensors: dict[str, Tensor]) -> None:
    """Refuse anything but floating-point tensors (..., positions, dim) of the query's dtype
    and device.
    """
    first = tensors["query"]
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point() or tensor.dim() < 2:
            got = repr(tensor)
            if isinstance(tensor, Tensor):
                got = f"{tensor.dtype} of shape {tuple(tensor.shape)}"
            remedy = "Embed tokens first; give a single vector as x[None]."
            raise InvalidArgument(
                name, wanted="a floating-point tensor (..., positions, dim)", got=got, remedy=remedy
            )
        if tensor.dtype != first.dtype or tensor.device != first.device:
            wanted = f"{first.dtype} on {first.device}, as the query"
            remedy = "Move or convert it with .to(query)."
            raise InvalidArgument(
                name, wanted=wanted, got=f"{tensor.dtype} on {tensor.device}", remedy=remedy
            )
    keys, values = (tensors.get(name, tensors["key"]).shape for name in ("key", "value"))
    if keys[-2] != values[-2]:
        got = f"{values[-2]} in shape {tuple(values)}"
        remedy = "Keys and values come in pairs, from the same sequence."
        raise InvalidArgument(
            "value", wanted=f"one value per key, {keys[-2]} of them", got=got, remedy=remedy
        )


def _lead(tensors: dict[str, Tensor]) -> tuple[int, ...]:
    """The leading axes that all broadcast to."""
    leads = [tensor.shape[:-2] for tensor in tensors.values()]
    if all(lead == leads[0] for lead in leads):
        return tuple(leads[0])
    try:
        return tuple(torch.broadcast_shapes(*leads))  # type: ignore[no-untyped-call]
    except RuntimeError:
        got = ", ".join(f"{name} {tuple(t.shape)}" for name, t in tensors.items())
        remedy = "All axes but the last two are batch axes: make them equal, or of size one."
        wanted = "leading axes that broadcast"
        raise InvalidArgument(", ".join(tensors), wanted=wanted, got=got, remedy=remedy) from None


def check_dropout(dropout: float) -> None:
    if not 0 <= dropout < 1:
        wanted = "a probability p, 0 ≤ p < 1"
        remedy = "0.0 drops nothing."
        raise InvalidArgument("dropout", wanted=wanted, got=str(dropout), remedy=remedy)


def check_mask(mask: Tensor, shape: tuple[int, ...], device: torch.device) -> None:
    """Refuse anything but a boolean mask on this device that broadcasts to (..., N, M)."""
    if isinstance(mask, Tensor) and mask.device != device:
        wanted = f"a mask on {device}, as the query"
        raise InvalidArgument(
            "mask", wanted=wanted, got=f"one on {mask.device}", remedy="Move it with .to()."
        )
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        remedy = "Use mask.bool() if non-zero means that it may attend."
        if isinstance(mask, Tensor) and mask.is_floating_point():
            remedy = "What is added to scores goes in bias=; for 0 / -inf use mask == 0."
        got = str(mask.dtype) if isinstance(mask, Tensor) else repr(mask)
        raise InvalidArgument(
            "mask", wanted="a boolean tensor, True = may attend", got=got, remedy=remedy
        )
    if not _broadcasts(mask, shape):
        wanted = f"a shape that broadcasts to {shape}: batch axes, queries, keys"
        remedy = (
            "A padding mask (batch, keys) goes in as mask[:, None, :], "
            "or mask[:, None, None, :] with heads."
        )
        raise InvalidArgument("mask", wanted=wanted, got=str(tuple(mask.shape)), remedy=remedy)


def _broadcasts(tensor: Tensor, shape: tuple[int, ...]) -> bool:
    axes = zip(reversed(tensor.shape), reversed(shape), strict=False)
    return tensor.dim() <= len(shape) and all(size in (1, wanted) for size, wanted in axes)
