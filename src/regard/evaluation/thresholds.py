"""Thresholds of label probabilities that maximise F1 on validation data, found by sorting them.

A label is predicted if its probability is at least the threshold. Thresholds lie halfway between
two neighbouring probabilities of the validation data, or between the lowest one and 0. Among
thresholds of equal F1 the one nearest to 0.5 is chosen. A label without references keeps 0.5: every
threshold gives it an F1 of 0.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.core.errors import InvalidArgument
from regard.evaluation.statistics import Array

DEFAULT = 0.5
EQUAL = 1e-12  # F1 values that differ by less are equal: sums of many differ by their rounding


class GlobalThreshold(NamedTuple):
    """A threshold for all labels, and the F1 that it reaches on the data it was chosen on."""

    threshold: float
    f1: float


class LabelThresholds(NamedTuple):
    """A threshold for each label (L,), and the F1 of each (L,)."""

    thresholds: Array
    f1: Array


def best_micro_threshold(probabilities: NDArray[Any], references: NDArray[Any]) -> GlobalThreshold:
    """The threshold for all labels with the highest micro-averaged F1; both arrays are (N, L)."""
    scores, gold = _checked(probabilities, references)
    return GlobalThreshold(*_best(scores.ravel(), gold.ravel()))


def best_label_thresholds(probabilities: NDArray[Any], references: NDArray[Any]) -> LabelThresholds:
    """The threshold of each label with its highest F1: together, the highest macro-averaged F1."""
    scores, gold = _checked(probabilities, references)
    labels = range(scores.shape[1])
    best = [_best(scores[:, k], gold[:, k]) for k in labels]
    thresholds = [threshold for threshold, _ in best]
    values = [value for _, value in best]
    return LabelThresholds(np.array(thresholds), np.array(values))


def best_macro_threshold(probabilities: NDArray[Any], references: NDArray[Any]) -> GlobalThreshold:
    """The threshold for all labels with the highest macro-averaged F1."""
    scores, gold = _checked(probabilities, references)
    examples, labels = scores.shape
    changes = np.zeros((examples, labels))
    for k in range(labels):
        # F1 of this label changes at its own scores alone. The sum of the changes of all labels
        # down to a score is the macro F1 there.
        order = np.argsort(-scores[:, k], kind="stable")
        values = _f1_after_each(gold[order, k])
        changes[order, k] = np.diff(values, prepend=0.0) / labels
    flat_scores = scores.ravel()
    order = np.argsort(-flat_scores, kind="stable")
    values = np.cumsum(changes.ravel()[order])
    return GlobalThreshold(*_choose(flat_scores[order], values))


def _checked(probabilities: NDArray[Any], references: NDArray[Any]) -> tuple[Array, Array]:
    scores = np.asarray(probabilities, np.float64)
    gold = np.asarray(references, np.float64)
    if scores.ndim != 2 or scores.shape != gold.shape or not scores.size:
        raise InvalidArgument(
            "probabilities",
            wanted="an array of examples and labels, and one of references of the same shape",
            got=f"arrays of {scores.shape} and {gold.shape}",
            remedy="Choose thresholds on at least one example.",
        )
    is_probability = (scores >= 0) & (scores <= 1)
    if not is_probability.all():
        raise InvalidArgument(
            "probabilities",
            wanted="numbers from 0 to 1",
            got=f"{scores[~is_probability][0]}",
            remedy="Apply the sigmoid to logits first.",
        )
    if not np.isin(gold, (0, 1)).all():
        raise InvalidArgument(
            "references",
            wanted="0 or 1 for each label",
            got=f"{gold[~np.isin(gold, (0, 1))][0]}",
            remedy="Mark each reference label with 1 and the others with 0.",
        )
    return scores, gold


def _best(scores: Array, gold: Array) -> tuple[float, float]:
    """The best threshold of a list of decisions, and its F1."""
    order = np.argsort(-scores, kind="stable")
    return _choose(scores[order], _f1_after_each(gold[order]))


def _f1_after_each(gold: Array) -> Array:
    """For decisions in the order of falling scores, F1 if each and all before it are predicted."""
    correct = np.cumsum(gold)
    predicted = np.arange(1, len(gold) + 1)
    values: Array = 2 * correct / (predicted + gold.sum())
    return values


def _choose(scores: Array, values: Array) -> tuple[float, float]:
    """Choose the threshold below one of the falling scores that has the highest value. Return both.

    Of several equal scores the value of the last one counts, because a threshold admits all of them.
    """
    is_last = np.append(scores[1:] != scores[:-1], True)
    candidates = scores[is_last]
    candidate_values = values[is_last]
    best = float(candidate_values.max())
    if best <= EQUAL:
        return DEFAULT, 0.0
    below = np.append(candidates[1:], 0.0)
    thresholds = (candidates + below) / 2
    # The mean of two neighbouring numbers may be rounded to the lower one, which is excluded.
    thresholds = np.where(thresholds > below, thresholds, candidates)
    is_best = candidate_values >= best - EQUAL
    distances = np.where(is_best, np.abs(thresholds - DEFAULT), np.inf)
    chosen = int(distances.argmin())
    return float(thresholds[chosen]), float(candidate_values[chosen])
