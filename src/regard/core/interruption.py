"""Ending a long computation from outside: it asks between its steps whether it should go on.

A thread whose result may no longer be wanted opens `interruptible` with a function. Code that takes long calls
`check_interruption` between its layers, blocks and batches. In such a thread this calls the function, which raises to
end the computation, or waits to let others compute. In all other threads, and where nothing is interruptible, a check
costs one comparison.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

Check = Callable[[], None]

_here = threading.local()
# Blocks that are open in any thread. torch.compile can trace this number, but no thread-local variable.
_count = 0
_counting = threading.Lock()


class Interrupted(BaseException):
    """Ends a computation whose result nobody waits for. It is no fault, so `except Exception` must not catch it."""


@contextmanager
def interruptible(check: Check) -> Iterator[None]:
    """Call `check` whenever code inside the block, in this thread, asks whether it should go on."""
    before = getattr(_here, "check", None)
    _here.check = check
    _add(1)
    try:
        yield
    finally:
        _add(-1)
        _here.check = before


def check_interruption() -> None:
    """Return if this thread's computation should go on, and raise `Interrupted` if not."""
    if _count == 0 or torch.compiler.is_compiling():
        return
    check: Check | None = getattr(_here, "check", None)
    if check is not None:
        check()


def is_interruptible() -> bool:
    """Whether code in this thread should call `check_interruption` from time to time."""
    return _count > 0 and getattr(_here, "check", None) is not None


def _add(blocks: int) -> None:
    global _count
    with _counting:
        _count += blocks
