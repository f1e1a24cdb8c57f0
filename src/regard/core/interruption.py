"""Ending a long computation from outside: it asks between its steps whether it should go on.

A thread whose result may no longer be wanted opens `interruptible` with a function. Code that takes long
calls `check_interruption` between its layers, blocks and batches, in whichever thread it runs, and that calls the
function, which raises to end the computation or waits to let others compute. In all other threads, and where nothing
is interruptible, a check is one comparison.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

Check = Callable[[], None]

_here = threading.local()
_count = 0  # of blocks that are open in any thread: torch.compile can trace it, and not a thread-local variable
_counting = threading.Lock()


class Interrupted(BaseException):
    """Ends a computation whose result nobody waits for. No fault: `except Exception` must not swallow it."""


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
    """Whether this thread's computation should go on: returns if so, and raises `Interrupted` if not."""
    if _count == 0 or torch.compiler.is_compiling():
        return
    check: Check | None = getattr(_here, "check", None)
    if check is not None:
        check()


def is_interruptible() -> bool:
    """Whether code in this thread should return from time to time, to ask."""
    return _count > 0 and getattr(_here, "check", None) is not None


def _add(blocks: int) -> None:
    global _count
    with _counting:
        _count += blocks
