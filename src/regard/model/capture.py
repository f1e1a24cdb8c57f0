"""Capture attention: every attention call of a block of code,
with its exact weights computed on request.

Capturing changes no kernel and no bit of the output. An `AttentionCall` holds references to the
kernel's inputs and to the log-sum-exp it returned; weights are recomputed from these for the rows
and heads asked for. While nothing is captured, the cost is one check of a boolean per call.
`intercepting` is the counterpart that does change outputs, for edits of attention, head ablation,
and gradients with respect to attention weights; captures show its result.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

from regard.core.errors import InvalidArgument
from regard.core.shapes import Int, LogSumExp, Outputs, Tensor, Values
from regard.kernels.attention import weights as exact
from regard.kernels.attention.spec import AttentionSpec
from regard.kernels.attention.weights import Summary

if TYPE_CHECKING:
    from regard.model.memory import Memory

Pick = int | Sequence[int] | Tensor | slice | None  # rows or heads by index; None: all


@dataclass(frozen=True)
class AttentionCall:
    """One captured attention call. Its weights are those before dropout.

    source   the module that attended, if it was given
    spec     score function, queries, keys, mask and bias, with all batch axes folded into (batch,
             heads)
    lse      (batch, heads, N), the log-sum-exp of each row
    lead     the caller's batch axes, heads last
    value    the values; None where they were not kept

    It references the tensors of the call without copying them: compute weights before any of these
    tensors is changed in place (an optimizer step changes the parameters of an additive score, for
    example).
    """

    source: nn.Module | None
    spec: AttentionSpec
    lse: LogSumExp
    lead: tuple[int, ...]
    value: Values | None = None

    def of_sequence(self, index: int) -> "AttentionCall":
        """The call for one sequence of the batch.

        index   of the sequence, from 0
        """
        part = slice(index, index + 1)
        return replace(
            self,
            spec=self.spec.for_batch(part),
            lse=self.lse[part],
            lead=(1, *self.lead[1:]),
            value=None if self.value is None else self.value[part],
        )

    @torch.no_grad()
    def weights(self, *, rows: Pick = None, heads: Pick = None) -> Tensor:
        """Exact weights (*lead, rows, keys) of the given rows and heads;
        memory is linear in the selection.
        """
        return weights(self.spec, self.lead, rows, heads, self.lse)

    @torch.no_grad()
    def summary(self, *, top: int = 16, on: Tensor | None = None) -> Summary:
        """Per row: entropy, mean distance, the `top` largest weights,
        and the weight of the keys `on`; streamed.
        """
        return summary(self.spec, self.lead, top, on, self.lse)


class AttentionResult(NamedTuple):
    """What one attention call computed, with gradient."""

    spec: AttentionSpec
    value: Values
    out: Outputs
    lse: LogSumExp


CaptureCallback = Callable[[AttentionCall], object]
# Called for each module with its result; returns the result to use instead.
Interceptor = Callable[[nn.Module | None, AttentionResult], AttentionResult]
MemoryCallback = Callable[["Memory"], object]
# Of the queries of a call, each sequence's,
# where they are hypotheses at one position and not the first N positions.
QueryPosition = int | Int[Tensor, " B"]

_position: ContextVar[QueryPosition | None] = ContextVar("regard_query_position", default=None)
_interceptor: ContextVar[Interceptor | None] = ContextVar("regard_interceptor", default=None)
_callbacks: ContextVar[tuple[CaptureCallback, ...]] = ContextVar(
    "regard_capture_callbacks", default=()
)
_memory_callbacks: ContextVar[tuple[MemoryCallback, ...]] = ContextVar(
    "regard_memory_callbacks", default=()
)

# Process-wide flags, checked before the context variables: torch.compile can trace a boolean,
# not a context variable.
_capturing = _intercepting = _observing = False
_capture_blocks = _intercept_blocks = _observe_blocks = 0
_counting = Lock()


@contextmanager
def capture_attention(callback: CaptureCallback | None = None) -> Iterator[list[AttentionCall]]:
    """Capture every attention call made inside the block, in this thread (or task) only.

    Captures nest.

    Yields the list of calls, in order. With a `callback`, each call is passed to it instead and the
    list stays empty, so that the tensors of a call can be released as soon as the callback returns.

    >>> import regard, torch
    >>> x = torch.randn(2, 5, 8)
    >>> with regard.capture_attention() as calls:
    ...     y = regard.attend(x, x, x, causal=True)
    >>> calls[0].weights(rows=[4]).shape
    torch.Size([2, 1, 5])
    """
    global _publisher
    # Nothing is compiled before torch._dynamo is imported, and importing it takes seconds.
    if "torch._dynamo" in sys.modules:
        _publisher = torch.compiler.disable(_publish)  # type: ignore[no-untyped-call]
    calls: list[AttentionCall] = []
    token = _callbacks.set((*_callbacks.get(), callback or calls.append))
    _count(captures=+1)
    try:
        yield calls
    finally:
        _count(captures=-1)
        _callbacks.reset(token)


@contextmanager
def intercepting(interceptor: Interceptor) -> Iterator[None]:
    """Replace the output of every attention call inside the block,
    in this thread (or task) only.
    """
    global _replacer
    if "torch._dynamo" in sys.modules:
        _replacer = torch.compiler.disable(_replace)  # type: ignore[no-untyped-call]
    token = _interceptor.set(interceptor)
    _count(intercepts=+1)
    try:
        yield
    finally:
        _count(intercepts=-1)
        _interceptor.reset(token)


@contextmanager
def observing_memory(callback: MemoryCallback) -> Iterator[None]:
    """Pass the memory of every encoder that runs inside the block, in this thread (or task) only,
    to the callback.

    A forward hook of the encoder would also be called for the inputs of other threads.
    """
    global _memory_publisher
    if "torch._dynamo" in sys.modules:
        _memory_publisher = torch.compiler.disable(_publish_memory)  # type: ignore[no-untyped-call]
    token = _memory_callbacks.set((*_memory_callbacks.get(), callback))
    _count(observers=+1)
    try:
        yield
    finally:
        _count(observers=-1)
        _memory_callbacks.reset(token)


def publish_memory(memory: "Memory") -> None:
    """Pass what an encoder computed to those who observe it."""
    if _observing:
        _memory_publisher(memory)


def _publish_memory(memory: "Memory") -> None:
    for callback in _memory_callbacks.get():
        callback(memory)


_memory_publisher = _publish_memory


def _count(*, captures: int = 0, intercepts: int = 0, observers: int = 0) -> None:
    global _capturing, _intercepting, _observing
    global _capture_blocks, _intercept_blocks, _observe_blocks
    with _counting:
        _capture_blocks += captures
        _intercept_blocks += intercepts
        _observe_blocks += observers
        _capturing = _capture_blocks > 0
        _intercepting = _intercept_blocks > 0
        _observing = _observe_blocks > 0


def capturing() -> bool:
    """Whether attention is captured in any thread: whether calls have to be published."""
    return _capturing


def intercepted() -> bool:
    """Whether attention is intercepted in any thread:
    whether every call must go through `attend_spec`.
    """
    return _intercepting


@contextmanager
def suspended() -> Iterator[None]:
    """Capture nothing inside the block, in this thread (or task)."""
    token = _callbacks.set(())
    try:
        yield
    finally:
        _callbacks.reset(token)


def capturing_here() -> bool:
    """Whether attention is captured in this thread (or task)."""
    return bool(_callbacks.get())


def intercepting_here() -> bool:
    """Whether attention is intercepted in this thread (or task)."""
    return _interceptor.get() is not None


@contextmanager
def at_position(position: QueryPosition) -> Iterator[None]:
    """State the position of the queries of all calls inside the block, for interceptors:
    a step of a decoder.
    """
    token = _position.set(position)
    try:
        yield
    finally:
        _position.reset(token)


def query_position() -> QueryPosition | None:
    """The position that `at_position` states; None: queries are those of positions 0, 1, ..."""
    return _position.get()


def intercept(source: nn.Module | None, result: AttentionResult) -> AttentionResult:
    """The result, or what the active interceptor replaces it by."""
    return _replacer(source, result) if _intercepting else result


def _replace(source: nn.Module | None, result: AttentionResult) -> AttentionResult:
    interceptor = _interceptor.get()
    if interceptor is None:
        return result
    return interceptor(source, result)


_replacer = _replace


def publish(
    source: nn.Module | None, spec: AttentionSpec, lse: Tensor, lead: tuple[int, ...], value: Tensor
) -> None:
    """Pass one attention call to the active captures."""
    if _capturing:
        _publisher(source, spec, lse, lead, value)


def _publish(
    source: nn.Module | None, spec: AttentionSpec, lse: Tensor, lead: tuple[int, ...], value: Tensor
) -> None:
    callbacks = _callbacks.get()
    if callbacks:
        call = AttentionCall(source, spec.detached(), lse.detach(), lead, value.detach())
        for callback in callbacks:
            callback(call)


_publisher = _publish


def weights(
    spec: AttentionSpec, lead: tuple[int, ...], rows: Pick, heads: Pick, lse: Tensor | None
) -> Tensor:
    """Exact weights (*lead, rows, keys) of these rows and heads."""
    if heads is not None:
        if len(lead) < 2:
            got = repr(heads)
            remedy = "Give queries of shape (..., heads, N, dim) to choose among heads."
            raise InvalidArgument(
                "heads", wanted="None: this attention has no head axis", got=got, remedy=remedy
            )
        chosen = picked("heads", heads, lead[-1], spec.query.device)
        spec = spec.for_heads(chosen)
        lead = (*lead[:-1], len(chosen))
        if lse is not None:
            lse = lse[:, chosen]
    selected: Tensor | slice = slice(0, spec.n)
    if rows is not None:
        selected = picked("rows", rows, spec.n, spec.query.device)
    out = exact.weights(spec, selected, lse)
    return out.reshape(*lead, *out.shape[2:])


def summary(
    spec: AttentionSpec, lead: tuple[int, ...], top: int, on: Tensor | None, lse: Tensor | None
) -> Summary:
    """The summary of every row, with the caller's leading axes."""
    if type(top) is not int or top < 0:
        raise InvalidArgument("top", wanted="a count", got=str(top), remedy="Use 0 for none.")
    if on is not None:
        if not isinstance(on, Tensor) or on.dtype != torch.bool or on.shape != (spec.m,):
            got = f"{on.dtype} of shape {tuple(on.shape)}" if isinstance(on, Tensor) else repr(on)
            remedy = "Mark with True the keys whose weight is summed."
            raise InvalidArgument(
                "on", wanted=f"one boolean per key, shape ({spec.m},)", got=got, remedy=remedy
            )
        on = on.to(spec.query.device, torch.promote_types(spec.query.dtype, torch.float32))
    folded = exact.summarize(spec, top=min(top, spec.m), on=on, lse=lse)
    rows = {
        name: x.reshape(*lead, *x.shape[2:]) for name, x in vars(folded).items() if x is not None
    }
    return replace(folded, **rows)


def picked(
    argument: str, pick: Pick, size: int, device: torch.device, *, strict: bool = True
) -> Tensor:
    """The indices of a pick. Out-of-range ones are refused, or dropped unless `strict`."""
    if isinstance(pick, slice):
        pick = range(*pick.indices(size))
    try:
        indices = torch.as_tensor(pick, device=device).reshape(-1)
    except (TypeError, ValueError, RuntimeError):
        indices = torch.empty(1, dtype=torch.bool)  # not numbers: refused below
    if indices.numel() == 0:
        indices = indices.long()
    valid = (indices >= -size) & (indices < size)
    if indices.dtype.is_floating_point or indices.dtype in (torch.bool, torch.complex64):
        got = str(indices.dtype) if isinstance(pick, Tensor) else repr(pick)
    elif strict and not valid.all():
        got = str(indices.tolist())
    else:
        return indices[valid].long() % max(1, size)
    remedy = f"There are {size} {argument}; negative numbers count from the end."
    raise InvalidArgument(
        argument, wanted=f"whole numbers from {-size} to {size - 1}", got=got, remedy=remedy
    )
