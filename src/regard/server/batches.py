"""Work that needs no search of the engine's: computed in one batch, with the tokens that were read."""

import logging
import threading
from collections.abc import Sequence
from typing import NamedTuple

from regard.core.errors import EngineFailed, RegardError
from regard.inference.load import current_device
from regard.inference.predictor import Predictor
from regard.runtime.interfaces import constant_weights
from regard.server.jobs import BatchedWork, Job, Result, input_tokens

log = logging.getLogger(__name__)


class Computed(NamedTuple):
    """The result of a work, or why it was refused, and the tokens that it has read."""

    result: Result
    read: int = 0


def compute(predictor: Predictor, works: Sequence[BatchedWork]) -> list[Computed]:
    """The results of one batch; where that is refused, the result or the error of each alone."""
    try:
        results = works[0].compute(predictor, works)
        sizes = input_tokens(predictor, works)
        return [
            Computed(result, size + work.more_tokens(result))
            for work, result, size in zip(works, results, sizes, strict=True)
        ]
    except Exception as error:  # whatever a model raises must not end the engine
        if len(works) == 1:
            return [Computed(told(error))]
    return [each for work in works for each in compute(predictor, [work])]


def compute_each(predictor: Predictor, works: Sequence[BatchedWork]) -> list[Computed]:
    """The same, each alone, as on a CPU: a forward pass in PyTorch rounds otherwise in another batch."""
    return [each for work in works for each in compute(predictor, [work])]


class AsideBatch:
    """A batch that is computed in a thread of its own, which takes turns with the engine's: one at a time.

    jobs    those that are computed; none: there is room for others
    found   their results, when they are there: `wake` is notified
    """

    def __init__(self, device: str, wake: threading.Condition) -> None:
        self.device, self.wake = device, wake
        self.jobs: Sequence[Job] = ()
        self.found: Sequence[Computed] = ()

    def begin(self, jobs: Sequence[Job], predictor: Predictor, works: Sequence[BatchedWork]) -> None:
        assert not self.jobs
        self.jobs = jobs

        def run() -> None:
            with constant_weights(), current_device(self.device):
                found = compute(predictor, works)
            with self.wake:
                self.found = found
                self.wake.notify_all()

        threading.Thread(target=run, name="regard look", daemon=True).start()

    def take(self) -> tuple[Sequence[Job], Sequence[Computed]]:
        """The jobs and their results, which leave."""
        jobs, found = self.jobs, self.found
        self.jobs, self.found = (), ()
        return jobs, found


def told(error: Exception) -> Exception:
    """The error to tell: one that was raised on purpose as it is, others as a failure, with the traceback logged."""
    if isinstance(error, RegardError):
        return error
    log.error("a job failed", exc_info=error)
    return EngineFailed(error)
