"""Tables of predicted labels: precision, recall and F1 of each label, and confusions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.core.errors import InvalidArgument
from regard.core.sanitize import printable
from regard.core.text_table import text_table
from regard.evaluation.multilabel_metrics import label_rows
from regard.evaluation.statistics import Array, Indices

LARGEST_MATRIX = 10_000  # labels; the matrix then has 100 million cells
METRIC_COLUMNS = ("precision", "recall", "f1", "average_precision")
COUNT_COLUMNS = ("references", "outputs")


@dataclass(frozen=True)
class Confusion:
    """A reference label and another label that was predicted instead, and how often."""

    reference: str
    output: str
    count: int


@dataclass(frozen=True)
class LabelPairs:
    """The reference and the predicted label of every example, as indices of `labels`."""

    labels: Sequence[str]
    references: Indices
    predicted: Indices

    @classmethod
    def of_ids(
        cls, labels: Sequence[str], references: NDArray[Any], predicted: NDArray[Any]
    ) -> "LabelPairs":
        """Make them from arrays (N,) of indices of labels."""
        gold = np.asarray(references, np.int64)
        mine = np.asarray(predicted, np.int64)
        if gold.ndim != 1 or gold.shape != mine.shape:
            raise InvalidArgument(
                "predictions",
                wanted=f"one label for each reference, {gold.shape}",
                got=f"an array of {mine.shape}",
                remedy="Give one prediction for each reference.",
            )
        for ids in (gold, mine):
            unknown = (ids < 0) | (ids >= len(labels))
            if unknown.any():
                raise InvalidArgument(
                    "label",
                    wanted=f"an index from 0 to {len(labels) - 1}",
                    got=f"{ids[unknown][0]}",
                    remedy="Give all labels of the model.",
                )
        return cls(tuple(labels), gold, mine)

    @classmethod
    def of_names(
        cls, references: Sequence[str], predicted: Sequence[str], labels: Sequence[str] = ()
    ) -> "LabelPairs":
        """Make them from names of labels. Names that are not among `labels` are added as they are found."""
        if len(references) != len(predicted):
            raise InvalidArgument(
                "predictions",
                wanted=f"as many as there are references, {len(references):,}",
                got=f"{len(predicted):,}",
                remedy="Give one prediction for each reference.",
            )
        ids = {label: i for i, label in enumerate(labels)}
        gold = [ids.setdefault(label, len(ids)) for label in references]
        mine = [ids.setdefault(label, len(ids)) for label in predicted]
        return cls(tuple(ids), np.array(gold, np.int64), np.array(mine, np.int64))

    def table(self) -> list[dict[str, Any]]:
        """Precision, recall, F1 and counts of every label, in alphabetical order."""
        correct = self.references[self.references == self.predicted]
        return label_rows(
            self.labels,
            self._per_label(correct),
            self._per_label(self.predicted),
            self._per_label(self.references),
        )

    def confusion_matrix(self) -> Indices:
        """How often each label (L, L) was predicted (columns) for each reference (rows)."""
        labels = len(self.labels)
        if labels > LARGEST_MATRIX:
            raise InvalidArgument(
                "confusion matrix",
                wanted=f"at most {LARGEST_MATRIX:,} labels",
                got=f"{labels:,}",
                remedy="List the most frequent confusions instead.",
            )
        cells = self.references * labels + self.predicted
        counts = np.bincount(cells, minlength=labels * labels)
        return counts.reshape(labels, labels)

    def confusions(self, most: int | None = None) -> list[Confusion]:
        """Pairs of labels that were confused, the most frequent first, then alphabetically."""
        wrong = self.references != self.predicted
        cells = self.references[wrong] * len(self.labels) + self.predicted[wrong]
        pairs, counts = np.unique(cells, return_counts=True)
        found = []
        for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
            reference, output = divmod(pair, len(self.labels))
            found.append(Confusion(self.labels[reference], self.labels[output], count))
        found.sort(key=lambda one: (-one.count, one.reference, one.output))
        return found[:most]

    def _per_label(self, ids: Indices) -> Array:
        return np.bincount(ids, minlength=len(self.labels)).astype(np.float64)


def average_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a label table averaged: over all labels, and weighted by their references."""
    weights = np.array([row["references"] for row in rows], np.float64)
    columns = [name for name in METRIC_COLUMNS if rows and name in rows[0]]
    counts = {name: sum(row[name] for row in rows) for name in COUNT_COLUMNS}
    averages: list[dict[str, Any]] = []
    for label, weight in (("mean of labels", np.ones(len(rows))), ("weighted mean", weights)):
        total = max(float(weight.sum()), 1.0)
        means = {}
        for name in columns:
            values = np.array([row[name] for row in rows])
            means[name] = float(weight @ values) / total
        averages.append({"label": label} | means | counts)
    return averages


def label_table_text(rows: Sequence[Mapping[str, Any]], *, averages: bool = False) -> str:
    """A label table as text, with the averages below it if asked for."""
    if not rows:
        return ""
    metrics = [name for name in METRIC_COLUMNS if name in rows[0]]
    shown = list(rows)
    if averages:
        shown += average_rows(rows)
    headings = [name.replace("_", " ") for name in (*metrics, *COUNT_COLUMNS)]
    lines = [["label", *headings]]
    for row in shown:
        percentages = [f"{row[name]:.2%}" for name in metrics]
        counts = [f"{row[name]:,}" for name in COUNT_COLUMNS]
        lines.append([printable(row["label"]), *percentages, *counts])
    return text_table(lines)


def confusion_matrix_text(pairs: LabelPairs) -> str:
    """The confusion matrix as text: a row for each reference, a column for each output."""
    names = [printable(label) for label in pairs.labels]
    lines = [["reference \\ output", *names]]
    for name, row in zip(names, pairs.confusion_matrix().tolist(), strict=True):
        lines.append([name, *(f"{count:,}" for count in row)])
    return text_table(lines)


def confusions_text(confusions: Sequence[Confusion]) -> str:
    """Confused labels as text, one pair a line."""
    rows = [
        [printable(one.reference), printable(one.output), f"{one.count:,}"] for one in confusions
    ]
    return text_table([["reference", "output", "count"], *rows], left=2)
