"""Sufficient statistics of metrics: a few numbers per example, from which a metric is computed on any subset.

The value of a metric on all examples, on one length bucket or on a bootstrap resample is always its value if each
example counts a given number of times. `Statistics.values` computes it for many such counts at once.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from regard.core.errors import InvalidArgument

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
References = Sequence[Sequence[str]]  # at least one per example
StatisticsRow = Sequence[int] | Sequence[float] | Array  # the numbers kept of one example


class Statistics(ABC):
    """The statistics of one metric over the examples added so far.

    reads_probabilities   whether it is computed from the probabilities of labels (`add_probabilities`)
    table_of   what the rows of `table` are: "classes", labels or tags; or "spans", the types of spans
    """

    table_of: ClassVar[Literal["classes", "spans"]] = "classes"
    reads_probabilities: ClassVar[bool] = False

    @abstractmethod
    def add(self, outputs: Sequence[str], references: References) -> None:
        """Add examples: one output each, with all of its references."""

    def add_probabilities(
        self, outputs: Sequence[Mapping[str, float]], references: References
    ) -> None:
        """Add examples: the probability of every label of each, with its references."""
        raise NotImplementedError(f"{type(self).__name__} reads texts")

    @abstractmethod
    def values(self, counts: Array, indices: Indices | None = None) -> Array:
        """The metric (R,) for each row of counts (R, N): example n counts counts[r, n] times.

        N runs over all examples in the order they were added, or over those at `indices`.
        """

    @abstractmethod
    def totals(self, indices: Indices) -> dict[str, float]:
        """The named sums over these examples from which the metric is computed."""

    def table(self) -> list[dict[str, Any]]:
        """Precision, recall, F1 and counts of every class, in alphabetical order; empty where there are none."""
        return []

    def confusions(self, most: int | None = None) -> list[dict[str, Any]]:
        """Each pair of a reference and another class that was given instead, the most frequent first."""
        return []

    def signature(self) -> str | None:
        """A description of how exactly the metric is computed, as sacreBLEU's; None if there is only one way."""
        return None


class SumStatistics(Statistics):
    """Statistics of a metric that is a function of sums over examples.

    columns     names of the K numbers kept per example
    measure     (outputs, references) -> rows (N, K)
    aggregate   sums (R, K) -> metric (R,)
    describe    () -> signature
    """

    def __init__(
        self,
        columns: Sequence[str],
        measure: Callable[[Sequence[str], References], Sequence[StatisticsRow]],
        aggregate: Callable[[Array], Array],
        describe: Callable[[], str] | None = None,
    ) -> None:
        self.columns = columns
        self.measure = measure
        self.aggregate = aggregate
        self.describe = describe
        self.blocks: list[Array] = []

    def add(self, outputs: Sequence[str], references: References) -> None:
        self.blocks.append(np.array(self.measure(outputs, references), dtype=np.float64))

    def values(self, counts: Array, indices: Indices | None = None) -> Array:
        rows = self._rows()
        if indices is not None:
            rows = rows[indices]
        return self.aggregate(counts @ rows)

    def totals(self, indices: Indices) -> dict[str, float]:
        sums = self._rows()[indices].sum(0).tolist()
        return dict(zip(self.columns, sums, strict=True))

    def signature(self) -> str | None:
        if self.describe:
            return self.describe()
        return None

    def _rows(self) -> Array:
        if len(self.blocks) > 1:
            self.blocks = [np.concatenate(self.blocks)]
        return self.blocks[0]


def per_example(
    columns: Sequence[str],
    measure: Callable[[str, Sequence[str]], StatisticsRow],
    aggregate: Callable[[Array], Array],
    describe: Callable[[], str] | None = None,
) -> SumStatistics:
    """`SumStatistics` whose `measure` takes one output and its references."""

    def measure_all(outputs: Sequence[str], references: References) -> list[StatisticsRow]:
        return [measure(output, own) for output, own in zip(outputs, references, strict=True)]

    return SumStatistics(columns, measure_all, aggregate, describe)


class ConfusionMatrix(Statistics):
    """Reference label and predicted label of every example; the metric is a function of counts per class.

    aggregate   (true positives, predicted, references), each (R, C) -> metric (R,)
    """

    def __init__(self, aggregate: Callable[[Array, Array, Array], Array]) -> None:
        self.aggregate = aggregate
        self.classes: dict[str, int] = {}  # in order of first occurrence
        self.references: list[Indices] = []
        self.predicted: list[Indices] = []

    def add(self, outputs: Sequence[str], references: References) -> None:
        several = next((len(labels) for labels in references if len(labels) != 1), 1)
        if several != 1:
            raise InvalidArgument(
                "references",
                wanted="one label an example, for precision, recall and F1",
                got=f"{several} for one of them",
                remedy="Use accuracy, which accepts any of several.",
            )
        self.references.append(self._class_ids([labels[0] for labels in references]))
        self.predicted.append(self._class_ids(outputs))

    def values(self, counts: Array, indices: Indices | None = None) -> Array:
        return self.aggregate(*self._per_class(counts, indices))

    def totals(self, indices: Indices) -> dict[str, float]:
        correct, _, _ = self._per_class(np.ones((1, len(indices))), indices)
        return {"correct": float(correct.sum()), "examples": float(len(indices))}

    def table(self) -> list[dict[str, Any]]:
        """Precision, recall, F1 and counts of every class, in alphabetical order."""
        examples = sum(map(len, self.predicted))
        counts = self._per_class(np.ones((1, examples)), None)
        precisions = precision(*counts)[0]
        recalls = recall(*counts)[0]
        f1_values = f1(*counts)[0]
        _, predicted, references = counts
        rows = []
        for label, i in sorted(self.classes.items()):
            rows.append(
                {
                    "label": label,
                    "precision": float(precisions[i]),
                    "recall": float(recalls[i]),
                    "f1": float(f1_values[i]),
                    "references": int(references[0, i]),
                    "outputs": int(predicted[0, i]),
                }
            )
        return rows

    def confusions(self, most: int | None = None) -> list[dict[str, Any]]:
        names = list(self.classes)
        wanted = np.concatenate(self.references)
        given = np.concatenate(self.predicted)
        pairs = zip(wanted.tolist(), given.tolist(), strict=True)
        counts = Counter((names[a], names[b]) for a, b in pairs if a != b)
        return confusion_rows(counts, most)

    def _class_ids(self, labels: Sequence[str]) -> Indices:
        return np.array([self.classes.setdefault(label, len(self.classes)) for label in labels])

    def _per_class(self, counts: Array, indices: Indices | None) -> tuple[Array, Array, Array]:
        references = np.concatenate(self.references)
        predicted = np.concatenate(self.predicted)
        if indices is not None:
            references = references[indices]
            predicted = predicted[indices]
        correct = counts * (references == predicted)
        return (
            self._sum(correct, references),
            self._sum(counts, predicted),
            self._sum(counts, references),
        )

    def _sum(self, counts: Array, classes: Indices) -> Array:
        """(R, N) summed by class into (R, C)."""
        return np.stack([np.bincount(classes, row, minlength=len(self.classes)) for row in counts])


def confusion_rows(
    counts: Mapping[tuple[str, str], int], most: int | None = None
) -> list[dict[str, Any]]:
    """Rows of confused classes, a reference and an output each, the most frequent first, then alphabetically."""
    ordered = sorted(counts.items(), key=lambda found: (-found[1], found[0]))
    return [
        {"reference": reference, "output": output, "count": count}
        for (reference, output), count in ordered[:most]
    ]


def precision(correct: Array, predicted: Array, references: Array) -> Array:
    """Per class, the fraction of predictions that are correct; 0 if it was never predicted."""
    return correct / np.maximum(predicted, 1)


def recall(correct: Array, predicted: Array, references: Array) -> Array:
    """Per class, the fraction of references that were predicted; 0 if there are none."""
    return correct / np.maximum(references, 1)


def f1(correct: Array, predicted: Array, references: Array) -> Array:
    """Per class, the harmonic mean of precision and recall."""
    return 2 * correct / np.maximum(predicted + references, 1)


def macro_average(metric: Callable[[Array, Array, Array], Array]) -> ConfusionMatrix:
    """The unweighted mean over the classes that occur, in references or predictions."""

    def mean(correct: Array, predicted: Array, references: Array) -> Array:
        present = predicted + references > 0
        values = metric(correct, predicted, references) * present
        average: Array = values.sum(1) / present.sum(1)
        return average

    return ConfusionMatrix(mean)


def micro_f1() -> ConfusionMatrix:
    """F1 of the counts summed over classes."""

    def pooled(correct: Array, predicted: Array, references: Array) -> Array:
        value: Array = 2 * correct.sum(1) / (predicted.sum(1) + references.sum(1))
        return value

    return ConfusionMatrix(pooled)


def exact_match() -> SumStatistics:
    """The fraction of outputs that equal one of their references."""
    return per_example(
        ("correct", "examples"), lambda output, own: [float(output in own), 1.0], _ratio
    )


def edit_rate(split: Callable[[str], Sequence[str]]) -> SumStatistics:
    """Edit distance to the nearest reference divided by its length; among equally near references, the longest."""

    def nearest(output: str, references: Sequence[str]) -> tuple[int, int]:
        tokens = split(output)
        split_references = map(split, references)
        choices = [(edit_distance(tokens, each), len(each)) for each in split_references]
        return min(choices, key=lambda choice: (choice[0], -choice[1]))

    return per_example(("edits", "reference_tokens"), nearest, _ratio)


def _ratio(sums: Array) -> Array:
    return sums[:, 0] / np.maximum(sums[:, 1], 1)


def edit_distance(a: Sequence[str], b: Sequence[str]) -> int:
    """Levenshtein distance: the fewest insertions, deletions and substitutions that turn `a` into `b`.

    >>> edit_distance("kitten", "sitting")
    3

    Myers' bit-parallel algorithm (https://doi.org/10.1145/316542.316550) computes one column of the dynamic program at
    a time. Two integers with a bit per cell hold it: one says where the value rises by one to the next cell, the other
    where it falls by one.
    """
    if not a:
        return len(b)
    positions: dict[str, int] = {}
    for i, token in enumerate(a):
        positions[token] = positions.get(token, 0) | 1 << i
    every = (1 << len(a)) - 1
    last = 1 << len(a) - 1
    rises = every
    falls = 0
    distance = len(a)
    for token in b:
        match = positions.get(token, 0)
        vertical = match | falls
        match |= ((match & rises) + rises) ^ rises
        right_rises = falls | ~(match | rises)
        right_falls = rises & match
        distance += bool(right_rises & last) - bool(right_falls & last)
        right_rises = right_rises << 1 | 1
        right_falls = right_falls << 1
        rises = (right_falls | ~(vertical | right_rises)) & every
        falls = right_rises & vertical & every
    return distance
