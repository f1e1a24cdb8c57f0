"""Work that needs no search of the scheduler's: computed in one batch, with the tokens that were read."""

import logging
from collections.abc import Sequence
from typing import NamedTuple

from regard.core.errors import EngineFailed, RegardError
from regard.inference.predictor import Predictor
from regard.serving.scheduler.jobs import BatchedWork, Result, input_tokens

log = logging.getLogger(__name__)


class Computed(NamedTuple):
    """The result of a work, or why it was refused, and the tokens that it has read."""

    result: Result
    read: int = 0


def compute(predictor: Predictor, works: Sequence[BatchedWork]) -> list[Computed]:
    """The results of one batch; where that is refused, the result or the error of each alone."""
    try:
        results = works[0].compute(predictor, works)
        if not works[0].counts_tokens:
            return [Computed(result) for result in results]
        sizes = input_tokens(predictor, works)
        return [
            Computed(result, size + work.more_tokens(result))
            for work, result, size in zip(works, results, sizes, strict=True)
        ]
    except Exception as error:  # whatever a model raises must not end the scheduler
        if len(works) == 1:
            return [Computed(told(error))]
    return [each for work in works for each in compute(predictor, [work])]


def told(error: Exception) -> Exception:
    """The error to tell: one that was raised on purpose as it is, others as a failure, with the traceback logged."""
    if isinstance(error, RegardError):
        return error
    log.error("a job failed", exc_info=error)
    return EngineFailed(error)
