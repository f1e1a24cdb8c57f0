"""Work that needs no search of the engine's: computed in one batch, with the tokens that were read."""

import logging
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import NamedTuple

import torch

from regard.core.errors import EngineFailed, RegardError
from regard.inference.load import current_device
from regard.inference.predictor import Predictor
from regard.runtime.interfaces import constant_weights
from regard.server.jobs import BatchedWork, Job, Result, input_tokens

log = logging.getLogger(__name__)
PARAMETERS = 25_000_000  # of a model, for each of PyTorch's threads that computes its looks
Tasks = SimpleQueue[Callable[[], None] | None]  # None ends the thread


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

    The thread stays: PyTorch's own threads and working memory belong to the thread that uses them, and to set them up
    for each look takes as long as a look. A small model has one of PyTorch's threads: more gain nothing there, and wait
    for each other where a browser runs beside them.

    jobs    those that are computed; none: there is room for others
    found   their results, when they are there: `wake` is notified
    """

    def __init__(self, device: str, wake: threading.Condition) -> None:
        self.device, self.wake = device, wake
        self.jobs: Sequence[Job] = ()
        self.found: Sequence[Computed] = ()
        self._threads: dict[
            int, tuple[threading.Thread, Tasks]
        ] = {}  # by how many of PyTorch's threads each has

    def begin(
        self, jobs: Sequence[Job], predictor: Predictor, works: Sequence[BatchedWork]
    ) -> None:
        assert not self.jobs
        self.jobs = jobs

        def run() -> None:
            with constant_weights(), current_device(self.device):
                found = compute(predictor, works)
            with self.wake:
                self.found = found
                self.wake.notify_all()

        size = sum(weight.numel() for weight in predictor.model.parameters())
        threads = max(1, min(torch.get_num_threads(), size // PARAMETERS))
        if threads not in self._threads:
            self._threads[threads] = self._started(threads)
        self._threads[threads][1].put(run)

    def close(self) -> None:
        """Wait for what is being computed, and end the threads: one that computed while Python exits would abort it."""
        for thread, tasks in self._threads.values():
            tasks.put(None)
            thread.join()

    def _started(self, threads: int) -> tuple[threading.Thread, Tasks]:
        """A new thread, in which PyTorch uses so many threads, and its tasks."""
        tasks, ready, before = Tasks(), threading.Event(), torch.get_num_threads()

        def run() -> None:
            torch.set_num_threads(threads)
            torch.get_num_threads()  # takes effect in this thread by its first use
            ready.set()
            while (task := tasks.get()) is not None:
                task()
                del task  # which has a model in memory

        thread = threading.Thread(target=run, name="regard look", daemon=True)
        thread.start()
        ready.wait()
        torch.set_num_threads(before)  # that of threads which are started later
        return thread, tasks

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
