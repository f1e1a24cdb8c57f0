"""Metrics of sequences of vectors: squared and absolute error over all numbers of all of them.

Each is a mean over numbers, not over examples: of windows of one length both are the same. Normalized errors are
divided by the scale of each number in the training data, as the literature of forecasting reports them.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from regard.core.errors import InvalidArgument
from regard.data.fields.vectors import read_array_text
from regard.evaluation.statistics import Array, SumStatistics, per_example

Penalty = Callable[[Array], Array]  # of errors


def vector_statistics(
    name: str, scale: Sequence[float] | None = None, longer_outputs: bool = False
) -> SumStatistics:
    """The empty statistics of a metric of `VECTOR_METRICS`.

    scale   of each number of a vector in the training data; None: 1, where only files of outputs are compared
    longer_outputs   whether an output may go on after the end of its reference, where nothing is known
    """
    is_normalized, penalty = VECTOR_METRICS[name]
    divisor = np.asarray(scale if is_normalized and scale is not None else 1.0, dtype=np.float64)
    sums = partial(_sums, penalty, divisor, longer_outputs)
    return per_example(("numbers", "errors"), sums, _mean)


VECTOR_METRICS: dict[str, tuple[bool, Penalty]] = {
    "normalized_mse": (True, np.square),
    "normalized_mae": (True, np.abs),
    "mse": (False, np.square),
    "mae": (False, np.abs),
}


def _sums(
    penalty: Penalty, divisor: Array, longer_outputs: bool, output: str, references: Sequence[str]
) -> tuple[float, float]:
    """How many numbers of the reference are known, and the sum of the errors of the output there."""
    if len(references) != 1:
        raise InvalidArgument(
            "references",
            wanted="one reference an example, for metrics of vectors",
            got=f"{len(references)} for one of them",
            remedy="Keep one of them.",
        )
    predicted = read_array_text(output)
    gold = read_array_text(references[0])
    if longer_outputs:
        predicted = predicted[: len(gold)]
    if predicted.shape != gold.shape:
        raise InvalidArgument(
            "outputs",
            wanted=f"{_size(gold)}, as in its reference",
            got=_size(predicted),
            remedy="Check both files.",
        )
    errors = penalty((predicted - gold) / divisor)
    known = ~np.isnan(gold)
    return float(known.sum()), float(errors[known].sum())


def _size(array: Array) -> str:
    return f"{array.shape[0]} vectors of {array.shape[1]} numbers"


def _mean(sums: Array) -> Array:
    undefined = np.full(len(sums), np.nan)
    means: Array = np.divide(sums[:, 1], sums[:, 0], out=undefined, where=sums[:, 0] > 0)
    return means
