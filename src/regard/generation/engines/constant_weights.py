"""Weights that do not change: engines that have copied or packed them need not compare them again."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_constant = threading.local()


@contextmanager
def constant_weights() -> Iterator[None]:
    """In this thread, weights do not change: engines that have copied or packed them do not compare them again."""
    before = weights_are_constant()
    _constant.weights = True
    try:
        yield
    finally:
        _constant.weights = before


def weights_are_constant() -> bool:
    return getattr(_constant, "weights", False)
