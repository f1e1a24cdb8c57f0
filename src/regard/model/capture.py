"""Listening to attention: whoever asks is told what every look-up was, and can compute any weight of it, exactly.

Nobody listening costs one look at a number. Somebody listening changes no kernel and no bit of the output: what is
published is references to what the kernel was given, and the log-sum-exp that it returned. Whoever wants the output
changed, to silence a head or to differentiate by its weights, says so with `changing`.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from threading import Lock

import torch
from torch import nn

from regard.core.errors import InvalidArgument
from regard.core.shapes import LogSumExp, Outputs, Tensor, Values
from regard.kernels.attention import weights as exact
from regard.kernels.attention.spec import Lookup
from regard.kernels.attention.weights import Summary

Pick = int | Sequence[int] | Tensor | slice | None  # which rows or heads; None: all


@dataclass(frozen=True)
class Heard:
    """One look-up, as its listeners hear of it. Weights are those before dropout.

    It refers to the tensors of that call and copies none: ask before any of them is changed in place (as an optimiser's
    step changes the weight of an additive score).
    """

    source: nn.Module | None  # the module that attended, if one did
    lookup: Lookup
    lse: LogSumExp
    lead: tuple[int, ...]  # the batch axes of the caller, heads last; folded into two in the look-up
    value: Values | None = None  # what the weights are the weights of

    @torch.no_grad()
    def weights(self, *, rows: Pick = None, heads: Pick = None) -> Tensor:
        """Exact weights (*lead, rows, keys) of these rows and heads; memory grows with what is asked for."""
        return weights(self.lookup, self.lead, rows, heads, self.lse)

    @torch.no_grad()
    def summary(self, *, top: int = 16, on: Tensor | None = None) -> Summary:
        """Entropy, mean distance, the `top` largest weights and the mass on some keys, for every row, streamed."""
        return summary(self.lookup, self.lead, top, on, self.lse)


Listener = Callable[[Heard], object]
# Who attended, the look-up with its gradient, the values, and what came of them; it says what is to come instead.
Changer = Callable[[nn.Module | None, Lookup, Values, Outputs], Outputs]

_changer: ContextVar[Changer | None] = ContextVar("regard_changer", default=None)
_listeners: ContextVar[tuple[Listener, ...]] = ContextVar("regard_listeners", default=())

# Whether anybody listens in any thread, or changes. Looked at first: torch.compile can trace a boolean and not a
# context variable.
_anyone = _altered = False
_blocks = _changes = 0
_counting = Lock()


@contextmanager
def listen(listener: Listener) -> Iterator[None]:
    """Tell `listener` of every look-up in this block, in this thread (or task) alone; nested listeners all hear.

    >>> import regard, torch
    >>> heard = []
    >>> x = torch.randn(2, 5, 8)
    >>> with regard.listen(heard.append):
    ...     y = regard.attend(x, x, x, causal=True)
    >>> heard[0].weights(rows=[4]).shape
    torch.Size([2, 1, 5])
    """
    global _teller
    if "torch._dynamo" in sys.modules:  # only then can anything be compiled, and to import it takes as long as PyTorch
        _teller = torch.compiler.disable(_tell)  # type: ignore[no-untyped-call]
    token = _listeners.set((*_listeners.get(), listener))
    _count(listeners=+1)
    try:
        yield
    finally:
        _count(listeners=-1)
        _listeners.reset(token)


def _count(*, listeners: int = 0, changers: int = 0) -> None:
    global _anyone, _altered, _blocks, _changes
    with _counting:
        _blocks, _changes = _blocks + listeners, _changes + changers
        _anyone, _altered = _blocks > 0, _changes > 0


def anyone() -> bool:
    """Whether anybody listens, in any thread: whether it pays to tell."""
    return _anyone


@contextmanager
def changing(changer: Changer) -> Iterator[None]:
    """Let `changer` decide what comes of every look-up in this block, in this thread (or task) alone."""
    global _alterer
    if "torch._dynamo" in sys.modules:
        _alterer = torch.compiler.disable(_alter)  # type: ignore[no-untyped-call]
    token = _changer.set(changer)
    _count(changers=+1)
    try:
        yield
    finally:
        _count(changers=-1)
        _changer.reset(token)


def anyone_changes() -> bool:
    """Whether anybody changes look-ups, in any thread: each must be made where it can be."""
    return _altered


def quiet() -> bool:
    """Whether nobody listens and nobody changes anything in this thread (or task)."""
    return not _listeners.get() and _changer.get() is None


def changed(source: nn.Module | None, lookup: Lookup, value: Tensor, out: Tensor) -> Tensor:
    return _alterer(source, lookup, value, out) if _altered else out


def _alter(source: nn.Module | None, lookup: Lookup, value: Tensor, out: Tensor) -> Tensor:
    changer = _changer.get()
    return out if changer is None else changer(source, lookup, value, out)


_alterer = _alter


def publish(source: nn.Module | None, lookup: Lookup, lse: Tensor, lead: tuple[int, ...], value: Tensor) -> None:
    if _anyone:
        _teller(source, lookup, lse, lead, value)


def _tell(source: nn.Module | None, lookup: Lookup, lse: Tensor, lead: tuple[int, ...], value: Tensor) -> None:
    listeners = _listeners.get()
    if listeners:
        heard = Heard(source, lookup.detached(), lse.detach(), lead, value.detach())
        for listener in listeners:
            listener(heard)


_teller = _tell


def weights(lookup: Lookup, lead: tuple[int, ...], rows: Pick, heads: Pick, lse: Tensor | None) -> Tensor:
    if heads is not None:
        if len(lead) < 2:
            raise InvalidArgument(
                "heads",
                wanted="None, since this attention has no head axis",
                got=repr(heads),
                remedy="Give queries of shape (..., heads, N, width) to choose among heads.",
            )
        chosen = picked("heads", heads, lead[-1], lookup.query.device)
        lookup, lead = lookup.for_heads(chosen), (*lead[:-1], len(chosen))
        lse = None if lse is None else lse[:, chosen]
    which = slice(0, lookup.n) if rows is None else picked("rows", rows, lookup.n, lookup.query.device)
    found = exact.weights(lookup, which, lse)
    return found.reshape(*lead, *found.shape[2:])


def summary(lookup: Lookup, lead: tuple[int, ...], top: int, on: Tensor | None, lse: Tensor | None) -> Summary:
    if type(top) is not int or top < 0:
        raise InvalidArgument("top", wanted="a count", got=str(top), remedy="Use 0 for none.")
    if on is not None:
        if not isinstance(on, Tensor) or on.dtype != torch.bool or on.shape != (lookup.m,):
            raise InvalidArgument(
                "on",
                wanted=f"one boolean a key, shape ({lookup.m},)",
                got=f"{on.dtype} of shape {tuple(on.shape)}" if isinstance(on, Tensor) else repr(on),
                remedy="Mark with True the keys whose share of the weight you want.",
            )
        on = on.to(lookup.query.device, torch.promote_types(lookup.query.dtype, torch.float32))
    found = exact.summarise(lookup, top=min(top, lookup.m), on=on, lse=lse)
    return Summary(
        entropy=found.entropy.reshape(*lead, lookup.n),
        distance=found.distance.reshape(*lead, lookup.n),
        top_weights=found.top_weights.reshape(*lead, *found.top_weights.shape[2:]),
        top_keys=found.top_keys.reshape(*lead, *found.top_keys.shape[2:]),
        mass=None if found.mass is None else found.mass.reshape(*lead, lookup.n),
    )


def picked(argument: str, pick: Pick, size: int, device: torch.device, *, strict: bool = True) -> Tensor:
    """The numbers that a pick means, or a refusal; those that are not there are left out unless `strict`."""
    if isinstance(pick, slice):
        pick = range(*pick.indices(size))
    try:
        indices = torch.as_tensor(pick, device=device).reshape(-1)
    except (TypeError, ValueError, RuntimeError):
        indices = torch.empty(1, dtype=torch.bool)  # no numbers at all: refused below with what came
    if indices.numel() == 0:
        indices = indices.long()
    there = (indices >= -size) & (indices < size)
    if indices.dtype.is_floating_point or indices.dtype in (torch.bool, torch.complex64):
        got = str(indices.dtype) if isinstance(pick, Tensor) else repr(pick)
    elif strict and not there.all():
        got = str(indices.tolist())
    else:
        return indices[there].long() % max(1, size)
    raise InvalidArgument(
        argument,
        wanted=f"whole numbers from {-size} to {size - 1}",
        got=got,
        remedy=f"There are {size} {argument}; negative numbers count from the end.",
    )
