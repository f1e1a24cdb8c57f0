"""How many threads compute together with this one."""

import threading

import torch

_own = threading.local()


def compute_threads() -> int:
    """The threads of a step of a compiled model: those that this thread was given, or all of PyTorch's."""
    return getattr(_own, "count", None) or torch.get_num_threads()


def use_threads(count: int) -> None:
    """Compute with so many from now on, in this thread: others compute something else at the same time."""
    _own.count = count
