"""Metrics of tagged sequences: tokens that are right, and precision, recall and F1 of spans, equal to seqeval's.

An output, and its one reference, is the text that `token_lists.cell_of` makes of the tags of a sentence: most often the
tags with spaces between them. Sums over sentences are kept, so that a metric has a value on any resample of them.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np

from regard.core.errors import InvalidArgument
from regard.data.tagging_schemes import (
    Span,
    SpanScheme,
    detect,
    is_span_tag,
    lenient_spans,
    strict_spans,
)
from regard.data.token_lists import tokens_of
from regard.evaluation.statistics import (
    Array,
    Indices,
    References,
    Statistics,
    SumStatistics,
    confusion_rows,
    f1,
    per_example,
    precision,
    recall,
)

Mode = Literal["lenient", "strict"]
Aggregate = Callable[[Array, Array, Array], Array]


class _SpanCounts:
    """For each sentence and each type of span in it, how many are right, predicted, and in the reference."""

    def __init__(self) -> None:
        self.types: dict[str, int] = {}  # in order of first occurrence
        self.kinds: list[int] = []
        self.counts: list[tuple[int, int, int]] = []
        self.offsets = [0]  # where the rows of each sentence begin, and where the last ends

    def add(self, output: Sequence[Span], reference: Sequence[Span]) -> None:
        """The next sentence."""
        predicted = Counter(span.type for span in set(output))
        wanted = Counter(span.type for span in set(reference))
        correct = Counter(span.type for span in set(output) & set(reference))
        for kind in sorted(predicted.keys() | wanted.keys()):
            self.kinds.append(self.types.setdefault(kind, len(self.types)))
            self.counts.append((correct[kind], predicted[kind], wanted[kind]))
        self.offsets.append(len(self.kinds))

    def per_type(self, weights: Array, indices: Indices | None) -> tuple[Array, Array, Array]:
        """Correct, predicted and wanted spans of each type (R, C), sentence n counting weights[r, n] times."""
        offsets = np.array(self.offsets)
        if indices is None:
            indices = np.arange(len(offsets) - 1)
        sizes = offsets[indices + 1] - offsets[indices]
        # The rows of the first sentence, of the second, and so on.
        ends = np.cumsum(sizes)
        shifts = np.repeat(offsets[indices] - ends + sizes, sizes)
        rows = np.arange(sizes.sum()) + shifts
        counts = np.array(self.counts, dtype=np.float64).reshape(-1, 3)[rows]
        kinds = np.array(self.kinds, dtype=np.int64)[rows]
        weights = np.repeat(weights, sizes, axis=1)  # (R, rows)
        correct, predicted, wanted = (self._summed(weights * column, kinds) for column in counts.T)
        return correct, predicted, wanted

    def _summed(self, values: Array, kinds: Indices) -> Array:
        sums = [np.bincount(kinds, row, minlength=len(self.types)) for row in values]
        return np.stack(sums).astype(np.float64)


class SpanStatistics(Statistics):
    """Spans of tagged sentences: a metric is a function of the counts of each type.

    aggregate   (correct, predicted, references), each (R, C) -> metric (R,)
    mode        "lenient": spans as conlleval and seqeval's default find them; "strict": only well-formed ones, as
                seqeval finds them with mode="strict". The scheme is then that of the references, or, if they are all
                O, that of the outputs.
    """

    table_of = "spans"

    def __init__(self, aggregate: Aggregate, mode: Mode = "lenient") -> None:
        self.aggregate = aggregate
        self.mode = mode
        # Strictly, the spans depend on the scheme, which is only known at the end.
        self.lenient = _SpanCounts()
        self.strict: dict[SpanScheme, _SpanCounts] = {
            "IOB2": _SpanCounts(),
            "BIOES": _SpanCounts(),
        }
        self.reference_tags: set[str] = set()
        self.output_tags: set[str] = set()

    def add(self, outputs: Sequence[str], references: References) -> None:
        for output, own in zip(outputs, references, strict=True):
            tags, wanted = _tags(output, own)
            _check_span_tags(tags, wanted)
            self.output_tags.update(tags)
            self.reference_tags.update(wanted)
            if self.mode == "lenient":
                self.lenient.add(lenient_spans(tags), lenient_spans(wanted))
                continue
            for scheme, counts in self.strict.items():
                counts.add(_permitted_spans(tags, scheme), _permitted_spans(wanted, scheme))

    def values(self, counts: Array, indices: Indices | None = None) -> Array:
        return self.aggregate(*self._counts().per_type(counts, indices))

    def totals(self, indices: Indices) -> dict[str, float]:
        weights = np.ones((1, len(indices)))
        sums = self._counts().per_type(weights, indices)
        correct, predicted, references = (float(each.sum()) for each in sums)
        return {"correct": correct, "predicted": predicted, "references": references}

    def table(self) -> list[dict[str, Any]]:
        """Precision, recall, F1 and counts of every type of span, in alphabetical order."""
        found = self._counts()
        sentences = len(found.offsets) - 1
        counts = found.per_type(np.ones((1, sentences)), None)
        _, predicted, references = counts
        rows = []
        for kind, i in sorted(found.types.items()):
            rows.append(
                {
                    "label": kind,
                    "precision": float(precision(*counts)[0, i]),
                    "recall": float(recall(*counts)[0, i]),
                    "f1": float(f1(*counts)[0, i]),
                    "references": int(references[0, i]),
                    "outputs": int(predicted[0, i]),
                }
            )
        return rows

    def signature(self) -> str | None:
        if self.mode == "lenient":
            return None
        return f"mode:strict|scheme:{self._scheme()}"

    def _counts(self) -> _SpanCounts:
        if self.mode == "lenient":
            return self.lenient
        return self.strict[self._scheme()]

    def _scheme(self) -> SpanScheme:
        of_references = _scheme_of(self.reference_tags)
        of_outputs = _scheme_of(self.output_tags)
        if of_references == "IOB2" and of_outputs == "BIOES":
            wrong = min(tag for tag in self.output_tags if tag[0] in "ES")
            raise InvalidArgument(
                "outputs",
                wanted="tags of IOB2, as the references have",
                got=repr(wrong),
                remedy="Convert them to one scheme.",
            )
        return of_references or of_outputs or "IOB2"


class TokenConfusion(Statistics):
    """How often each tag was given to tokens of each tag; the metric is the fraction that is right."""

    def __init__(self) -> None:
        self.accuracy = token_accuracy()
        self.pairs: Counter[tuple[str, str]] = Counter()

    def add(self, outputs: Sequence[str], references: References) -> None:
        self.accuracy.add(outputs, references)
        for output, own in zip(outputs, references, strict=True):
            tags, wanted = _tags(output, own)
            self.pairs.update(zip(wanted, tags, strict=True))

    def values(self, counts: Array, indices: Indices | None = None) -> Array:
        return self.accuracy.values(counts, indices)

    def totals(self, indices: Indices) -> dict[str, float]:
        return self.accuracy.totals(indices)

    def confusions(self, most: int | None = None) -> list[dict[str, Any]]:
        wrong = {pair: count for pair, count in self.pairs.items() if pair[0] != pair[1]}
        return confusion_rows(wrong, most)

    def table(self) -> list[dict[str, Any]]:
        """Precision, recall, F1 and counts of every tag, over tokens, in alphabetical order."""
        wanted: Counter[str] = Counter()
        given: Counter[str] = Counter()
        for (reference, output), count in self.pairs.items():
            wanted[reference] += count
            given[output] += count
        rows = []
        for tag in sorted(wanted.keys() | given.keys()):
            correct = self.pairs[tag, tag]
            rows.append(
                {
                    "label": tag,
                    "precision": correct / max(given[tag], 1),
                    "recall": correct / max(wanted[tag], 1),
                    "f1": 2 * correct / max(given[tag] + wanted[tag], 1),
                    "references": wanted[tag],
                    "outputs": given[tag],
                }
            )
        return rows


def token_accuracy() -> SumStatistics:
    """The fraction of tokens whose tag is right."""

    def measure(output: str, own: Sequence[str]) -> tuple[int, int]:
        tags, wanted = _tags(output, own)
        right = sum(tag == reference for tag, reference in zip(tags, wanted, strict=True))
        return right, len(wanted)

    def ratio(sums: Array) -> Array:
        return sums[:, 0] / np.maximum(sums[:, 1], 1)

    return per_example(("correct", "tokens"), measure, ratio)


def micro_average(metric: Aggregate, mode: Mode = "lenient") -> SpanStatistics:
    """A metric of the counts summed over the types of spans; 0 where there are no spans."""

    def pooled(correct: Array, predicted: Array, references: Array) -> Array:
        return metric(correct.sum(1), predicted.sum(1), references.sum(1))

    return SpanStatistics(pooled, mode)


def macro_average(metric: Aggregate, mode: Mode = "lenient") -> SpanStatistics:
    """The unweighted mean over the types that occur, in references or outputs; 0 where there are no spans."""

    def mean(correct: Array, predicted: Array, references: Array) -> Array:
        present = predicted + references > 0
        values = metric(correct, predicted, references) * present
        average: Array = values.sum(1) / np.maximum(present.sum(1), 1)
        return average

    return SpanStatistics(mean, mode)


# In the form of `metrics.METRICS`: the options of each `Metric` except its description and its tasks.
SPAN_METRICS: dict[str, dict[str, Any]] = {
    "token_accuracy": {"statistics": TokenConfusion, "percent": True},
    "span_precision": {"statistics": partial(micro_average, precision), "percent": True},
    "span_recall": {"statistics": partial(micro_average, recall), "percent": True},
    "span_f1": {"statistics": partial(micro_average, f1), "percent": True},
    "span_f1_macro": {"statistics": partial(macro_average, f1), "percent": True},
    "span_f1_strict": {"statistics": partial(micro_average, f1, "strict"), "percent": True},
}


def _tags(output: str, references: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The tags of an output and of its one reference, which has as many."""
    if len(references) != 1:
        raise InvalidArgument(
            "references",
            wanted="one sequence of tags for each sentence",
            got=str(len(references)),
            remedy="Give one of them.",
        )
    tags = tokens_of(output, "outputs", numbers=True)
    wanted = tokens_of(references[0], "references", numbers=True)
    if len(tags) != len(wanted):
        raise InvalidArgument(
            "outputs",
            wanted=f"{len(wanted)} tags, as the reference of the sentence has",
            got=str(len(tags)),
            remedy="Give each token one tag.",
        )
    return tags, wanted


def _check_span_tags(tags: Sequence[str], wanted: Sequence[str]) -> None:
    for name, each in (("outputs", tags), ("references", wanted)):
        wrong = next((tag for tag in each if not is_span_tag(tag)), None)
        if wrong is not None:
            raise InvalidArgument(
                name,
                wanted="tags of spans: O, or a type after B-, I-, E- or S-",
                got=repr(wrong),
                remedy="Use token_accuracy; of BILOU, write L- as E- and U- as S-.",
            )


def _permitted_spans(tags: Sequence[str], scheme: SpanScheme) -> list[Span]:
    """The strict spans; none where the tags belong to the other scheme, whose counts are used then."""
    if scheme == "IOB2" and any(tag[0] in "ES" for tag in tags):
        return []
    return strict_spans(tags, scheme)


def _scheme_of(tags: set[str]) -> SpanScheme | None:
    """The scheme of all tags of a side; None if they are all O."""
    scheme = detect(tags)
    if scheme != "plain":
        return scheme
    prefixes = {tag[0] for tag in tags}
    if prefixes & set("ES"):
        return "BIOES"
    if prefixes & set("BI"):
        return "IOB2"
    return None
