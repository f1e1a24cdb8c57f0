"""What is kept for a loaded model from one request to the next, and released with it."""

import weakref
from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

from regard.inference.predictor import Predictor

Kept = TypeVar("Kept")


class ModelCache(Generic[Kept]):
    """One object for each predictor, made when it is first asked for. May be used in any thread.

    The objects are used by several threads at a time: each must guard what it holds. They may refer to the model, and
    are released with the predictor that a server drops when it replaces a model.
    """

    def __init__(self, make: Callable[[], Kept]) -> None:
        self._make = make
        self._lock = Lock()
        self._kept: dict[int, Kept] = {}

    def of(self, predictor: Predictor) -> Kept:
        number = id(predictor)
        with self._lock:
            if number not in self._kept:
                self._kept[number] = self._make()
                weakref.finalize(predictor, self._kept.pop, number, None)
            return self._kept[number]
