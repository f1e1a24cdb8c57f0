"""Metrics of predicted sets of labels: F1, exact match, Hamming loss, average precision.

Values equal scikit-learn's with `zero_division=0`: precision is 0 for a label that is never
predicted; recall, F1 and average precision are 0 for one that is never a reference. A macro average
is over all labels of the model, even labels that never occur. Each resample of the bootstrap is a
set of examples like any other: a rare label that it lacks counts as 0 in its macro average.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.core.errors import InvalidArgument
from regard.evaluation.statistics import (
    Array,
    Indices,
    References,
    Statistics,
    f1,
    precision,
    recall,
)

Flags = NDArray[np.bool_]
LabelMetric = Callable[[Array, Array, Array], Array]  # (correct, predicted, references) -> metric


@dataclass(frozen=True)
class SparseSets:
    """A set of labels per example, stored without the labels that are not in it."""

    labels: Indices  # of all sets, one set after the other
    sizes: Indices  # (N,)

    @classmethod
    def of_flags(cls, flags: Flags) -> "SparseSets":
        _, labels = np.nonzero(flags)
        return cls(labels.astype(np.int64), flags.sum(1, dtype=np.int64))

    @classmethod
    def concatenate(cls, parts: Sequence["SparseSets"]) -> "SparseSets":
        labels = np.concatenate([part.labels for part in parts])
        sizes = np.concatenate([part.sizes for part in parts])
        return cls(labels, sizes)

    def take(self, indices: Indices) -> "SparseSets":
        """The sets of these examples."""
        starts = np.cumsum(self.sizes) - self.sizes
        sizes = self.sizes[indices]
        new_starts = np.cumsum(sizes) - sizes
        offsets = np.repeat(starts[indices] - new_starts, sizes)
        positions = offsets + np.arange(len(offsets))
        return SparseSets(self.labels[positions], sizes)

    def sums(self, counts: Array, labels: int) -> Array:
        """How often each label occurs (R, L) if examples count `counts` (R, N) times."""
        examples = np.repeat(np.arange(len(self.sizes)), self.sizes)
        sums = np.zeros((len(counts), labels))  # bincount of nothing would be of integers
        for i, row in enumerate(counts):
            sums[i] = np.bincount(self.labels, row[examples], labels)
        return sums


@dataclass(frozen=True)
class LabelSets:
    """Predicted labels, references, and those that are both, of N examples."""

    labels: int
    correct: SparseSets
    predicted: SparseSets
    references: SparseSets

    def take(self, indices: Indices) -> "LabelSets":
        return LabelSets(
            self.labels,
            self.correct.take(indices),
            self.predicted.take(indices),
            self.references.take(indices),
        )

    def per_example(self) -> Array:
        """The numbers of correct, predicted and reference labels of each example (N, 3)."""
        sizes = (self.correct.sizes, self.predicted.sizes, self.references.sizes)
        return np.stack(sizes, axis=1).astype(np.float64)

    def per_label(self, counts: Array) -> tuple[Array, Array, Array]:
        """How often each label is correct, predicted and a reference, (R, L) each."""
        return (
            self.correct.sums(counts, self.labels),
            self.predicted.sums(counts, self.labels),
            self.references.sums(counts, self.labels),
        )


SetMetric = Callable[[LabelSets, Array], Array]  # (sets, counts (R, N)) -> metric (R,)


class MultilabelStatistics(Statistics):
    """Predicted labels and references of a metric of label sets.

    labels   names of all labels of the model; those that are found in texts are added to them
    split    the labels of an output or a reference that is a text
    """

    def __init__(
        self,
        metric: SetMetric,
        labels: Sequence[str] = (),
        split: Callable[[str], Sequence[str]] = str.split,
    ) -> None:
        self.metric = metric
        self.split = split
        self._ids = {label: i for i, label in enumerate(labels)}
        self._blocks: list[tuple[SparseSets, SparseSets, SparseSets]] = []

    def add(self, outputs: Sequence[str], references: References) -> None:
        """Add examples whose labels are texts."""
        predicted = [self._set(output) for output in outputs]
        gold = [self._set(_only(own)) for own in references]
        correct = [mine & theirs for mine, theirs in zip(predicted, gold, strict=True)]
        self._blocks.append((_sparse(correct), _sparse(predicted), _sparse(gold)))

    def add_flags(self, predicted: NDArray[Any], references: NDArray[Any]) -> None:
        """Add examples: whether each label was predicted, and is a reference, (N, L) each."""
        mine = _as_flags("predictions", predicted, len(self._ids))
        gold = _as_flags("references", references, len(self._ids))
        _check_as_many(len(mine), len(gold))
        parts = (mine & gold, mine, gold)
        correct, outputs, wanted = (SparseSets.of_flags(part) for part in parts)
        self._blocks.append((correct, outputs, wanted))

    def values(self, counts: Array, indices: Indices | None = None) -> Array:
        return self.metric(self._sets(indices), counts)

    def totals(self, indices: Indices) -> dict[str, float]:
        """The numbers of labels and examples that metrics of label sets are computed from."""
        rows = self._sets(indices).per_example()
        correct, predicted, references = rows.sum(0).tolist()
        return {
            "correct": correct,
            "outputs": predicted,
            "references": references,
            "exact": float(_is_exact(rows).sum()),
            "examples": float(len(rows)),
        }

    def table(self) -> list[dict[str, Any]]:
        """Precision, recall, F1 and counts of every label, in alphabetical order."""
        sets = self._sets(None)
        counts = sets.per_label(np.ones((1, len(sets.correct.sizes))))
        return label_rows(list(self._ids), *(column[0] for column in counts))

    def _set(self, text: str) -> set[int]:
        return {self._ids.setdefault(label, len(self._ids)) for label in self.split(text)}

    def _sets(self, indices: Indices | None) -> LabelSets:
        if len(self._blocks) > 1:
            columns = zip(*self._blocks, strict=True)
            correct, predicted, references = (SparseSets.concatenate(parts) for parts in columns)
            self._blocks = [(correct, predicted, references)]
        sets = LabelSets(len(self._ids), *self._blocks[0])
        if indices is None:
            return sets
        return sets.take(indices)


@dataclass(frozen=True)
class ScoreMetric:
    """A metric of the order of scores.

    rank    scores (N, L) -> the rank of each among the different scores that it is compared with
    value   (ranks (N, L), references (N, L), counts (R, N)) -> metric (R,)
    """

    rank: Callable[[Array], Indices]
    value: Callable[[Indices, Flags, Array], Array]


class ScoredLabels(Statistics):
    """Probabilities of labels, and references, of a metric of their order: average precision.

    labels   names of the labels
    split    the labels of a reference that is a text
    """

    reads_probabilities = True

    def __init__(
        self,
        metric: ScoreMetric,
        labels: Sequence[str] = (),
        split: Callable[[str], Sequence[str]] = str.split,
    ) -> None:
        self.metric = metric
        self.labels = tuple(labels)
        self.split = split
        self._scores: list[Array] = []
        self._references: list[Flags] = []
        self._ranks: Indices | None = None

    def add(self, outputs: Sequence[str], references: References) -> None:
        """Refuse texts: they hold no probabilities."""
        raise InvalidArgument(
            "metric",
            wanted="one of labels, such as f1",
            got="average precision, which is computed from probabilities",
            remedy="Evaluate the model, whose probabilities are known, or leave this metric out.",
        )

    def add_probabilities(
        self, outputs: Sequence[Mapping[str, float]], references: References
    ) -> None:
        """Add the probability of every label, and references as texts."""
        scores = [[output[label] for label in self.labels] for output in outputs]
        wanted = [set(self.split(_only(own))) for own in references]
        flags = [[label in own for label in self.labels] for own in wanted]
        self.add_scores(np.array(scores), np.array(flags))

    def add_scores(self, scores: NDArray[Any], references: NDArray[Any]) -> None:
        """Add probabilities, or other scores in their order, and references, (N, L) each."""
        gold = _as_flags("references", references, len(self.labels))
        mine = np.asarray(scores, np.float64)
        if mine.shape != gold.shape:
            raise InvalidArgument(
                "scores",
                wanted=f"as many as references, {gold.shape}",
                got=f"an array of {mine.shape}",
                remedy="Give one score for each label of each example.",
            )
        if not np.isfinite(mine).all():
            raise InvalidArgument(
                "scores",
                wanted="finite numbers",
                got=f"{mine[~np.isfinite(mine)][0]}",
                remedy="Check the model: its predictions are not finite.",
            )
        self._scores.append(mine)
        self._references.append(gold)
        self._ranks = None

    def values(self, counts: Array, indices: Indices | None = None) -> Array:
        ranks, references = self._columns()
        if indices is not None:
            ranks = ranks[indices]
            references = references[indices]
        return self.metric.value(ranks, references, counts)

    def totals(self, indices: Indices) -> dict[str, float]:
        _, references = self._columns()
        wanted = references[indices]
        return {"references": float(wanted.sum()), "examples": float(len(wanted))}

    def per_label(self) -> dict[str, float]:
        """The average precision of each label."""
        _, references = self._columns()
        ranks = rank_by_label(self._scores[0])
        once = np.ones((1, len(ranks)))
        columns = range(len(self.labels))
        values = [_average_precision(ranks[:, k], references[:, k], once)[0] for k in columns]
        return {label: float(value) for label, value in zip(self.labels, values, strict=True)}

    def _columns(self) -> tuple[Indices, Flags]:
        """Ranks of all scores, and references."""
        if self._ranks is None:
            self._references = [np.concatenate(self._references)]
            self._scores = [np.concatenate(self._scores)]
            self._ranks = self.metric.rank(self._scores[0])
        return self._ranks, self._references[0]


def micro(metric: LabelMetric) -> SetMetric:
    """Precision, recall or F1 of the counts summed over all labels."""

    def pooled(sets: LabelSets, counts: Array) -> Array:
        sums = counts @ sets.per_example()  # (R, 3)
        return metric(sums[:, 0], sums[:, 1], sums[:, 2])

    return pooled


def macro(metric: LabelMetric) -> SetMetric:
    """The unweighted mean over all labels, also over those that never occur."""

    def mean(sets: LabelSets, counts: Array) -> Array:
        averages: Array = metric(*sets.per_label(counts)).mean(1)
        return averages

    return mean


def subset_accuracy(sets: LabelSets, counts: Array) -> Array:
    """The fraction of examples whose predicted labels are exactly the references."""
    exact = _is_exact(sets.per_example()).astype(np.float64)
    accuracy: Array = (counts @ exact) / np.maximum(counts.sum(1), 1)
    return accuracy


def hamming_loss(sets: LabelSets, counts: Array) -> Array:
    """The fraction of all decisions, one for each label of each example, that are wrong."""
    rows = sets.per_example()
    wrong = rows[:, 1] + rows[:, 2] - 2 * rows[:, 0]
    loss: Array = (counts @ wrong) / np.maximum(counts.sum(1) * sets.labels, 1)
    return loss


def rank_by_label(scores: Array) -> Indices:
    """The rank of each score among the different scores of its label, from 0."""
    ranks = np.empty(scores.shape, np.int64)
    for k in range(scores.shape[1]):
        _, ranks[:, k] = np.unique(scores[:, k], return_inverse=True)
    return ranks


def rank_together(scores: Array) -> Indices:
    """The rank of each score among the different scores of all labels, from 0."""
    _, ranks = np.unique(scores, return_inverse=True)
    return ranks.reshape(scores.shape).astype(np.int64)


def macro_average_precision(ranks: Indices, references: Flags, counts: Array) -> Array:
    """The unweighted mean over labels of average precision."""
    columns = range(ranks.shape[1])
    values = [_average_precision(ranks[:, k], references[:, k], counts) for k in columns]
    averages: Array = np.stack(values).mean(0)
    return averages


def micro_average_precision(ranks: Indices, references: Flags, counts: Array) -> Array:
    """The average precision of all decisions in one list: one for each label of each example."""
    labels = ranks.shape[1]
    flat_ranks = ranks.ravel()
    flat_references = references.ravel()
    values = np.empty(len(counts))
    for i, row in enumerate(counts):
        weights = np.repeat(row, labels)[None]
        values[i] = _average_precision(flat_ranks, flat_references, weights)[0]
    return values


SET_METRICS: dict[str, SetMetric] = {
    "f1": macro(f1),
    "f1_micro": micro(f1),
    "precision": macro(precision),
    "precision_micro": micro(precision),
    "recall": macro(recall),
    "recall_micro": micro(recall),
    "accuracy": subset_accuracy,
    "hamming_loss": hamming_loss,
}
SCORE_METRICS: dict[str, ScoreMetric] = {
    "average_precision": ScoreMetric(rank_by_label, macro_average_precision),
    "average_precision_micro": ScoreMetric(rank_together, micro_average_precision),
}
MULTILABEL_METRICS: dict[str, Callable[..., Statistics]] = {
    **{name: partial(MultilabelStatistics, metric) for name, metric in SET_METRICS.items()},
    **{name: partial(ScoredLabels, metric) for name, metric in SCORE_METRICS.items()},
}


def multilabel_averages(
    labels: Sequence[str], probabilities: NDArray[Any], references: NDArray[Any]
) -> dict[str, float]:
    """The metrics of `SCORE_METRICS` on examples (N, L)."""
    values = {}
    for name, metric in SCORE_METRICS.items():
        statistics = ScoredLabels(metric, labels)
        statistics.add_scores(probabilities, references)
        values[name] = float(statistics.values(np.ones((1, len(references))))[0])
    return values


def label_rows(
    labels: Sequence[str], correct: Array, predicted: Array, references: Array
) -> list[dict[str, Any]]:
    """Precision, recall, F1 and counts of every label, in alphabetical order."""
    metrics = {"precision": precision, "recall": recall, "f1": f1}
    columns = {name: metric(correct, predicted, references) for name, metric in metrics.items()}
    rows = []
    for label, i in sorted(zip(labels, range(len(labels)), strict=True)):
        row: dict[str, Any] = {"label": label}
        row |= {name: float(column[i]) for name, column in columns.items()}
        row |= {"references": int(references[i]), "outputs": int(predicted[i])}
        rows.append(row)
    return rows


def _average_precision(ranks: Indices, references: Flags, counts: Array) -> Array:
    """The mean over references of the precision among all decisions of at least their score (R,).

    Decisions of equal scores are taken together. It is 0 without a reference.
    """
    ranks = np.ascontiguousarray(ranks)  # a column of a matrix: read once for each resample
    examples = np.flatnonzero(references)
    positives = ranks[examples]
    steps = 0
    if len(ranks):
        steps = int(ranks.max()) + 1
    values = np.zeros(len(counts))
    for i, row in enumerate(counts):
        found = np.bincount(positives, row[examples], steps)  # (steps,), of increasing score
        every = np.bincount(ranks, row, steps)
        found_above = np.cumsum(found[::-1])
        every_above = np.cumsum(every[::-1])
        total = found.sum()
        if total:
            precisions = found_above / np.maximum(every_above, 1)
            values[i] = found[::-1] @ precisions / total
    return values


def _is_exact(rows: Array) -> Flags:
    """Which examples have as many correct labels as predicted ones and references."""
    is_exact: Flags = (rows[:, 0] == rows[:, 1]) & (rows[:, 0] == rows[:, 2])
    return is_exact


def _sparse(sets: Sequence[set[int]]) -> SparseSets:
    labels = [label for one in sets for label in sorted(one)]
    sizes = [len(one) for one in sets]
    return SparseSets(np.array(labels, np.int64), np.array(sizes, np.int64))


def _only(references: Sequence[str]) -> str:
    if len(references) != 1:
        raise InvalidArgument(
            "references",
            wanted="one set of labels an example",
            got=f"{len(references)} for one of them",
            remedy="Keep one of them.",
        )
    return references[0]


def _as_flags(name: str, values: NDArray[Any], labels: int) -> Flags:
    array = np.asarray(values)
    if array.ndim != 2 or array.shape[1] != labels:
        raise InvalidArgument(
            name,
            wanted=f"an array of examples and {labels} labels",
            got=f"one of shape {array.shape}",
            remedy="Give one value for each label of each example.",
        )
    if array.dtype != np.bool_ and not np.isin(array, (0, 1)).all():
        raise InvalidArgument(
            name,
            wanted="0 or 1 for each label",
            got=f"{array[~np.isin(array, (0, 1))][0]}",
            remedy="Compare probabilities with a threshold first.",
        )
    return array.astype(np.bool_)


def _check_as_many(predictions: int, references: int) -> None:
    if predictions != references:
        raise InvalidArgument(
            "predictions",
            wanted=f"as many examples as there are references, {references:,}",
            got=f"{predictions:,}",
            remedy="Give one prediction for each reference.",
        )
