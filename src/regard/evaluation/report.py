"""Reports of one or several systems: metrics, confidence intervals, p-values, and metrics by source length.

Examples stream through `collect` in chunks; only their statistics are kept.
"""

import hashlib
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol, runtime_checkable

import numpy as np

from regard.core.errors import InvalidArgument
from regard.evaluation.bootstrap import CONFIDENCE, RESAMPLES, SEED, bootstrap
from regard.evaluation.metrics import METRICS, new_statistics
from regard.evaluation.statistics import Indices, Statistics
from regard.evaluation.undefined import defined_interval, defined_p_value, value_or_none

CHUNK = 128  # examples in memory at once
Row = tuple[Any, Sequence[str]]  # a source, text or image, and its references


@runtime_checkable
class ScoredOutput(Protocol):
    """An output of a model, with the probability of every label where it has them."""

    @property
    def text(self) -> str: ...

    @property
    def probabilities(self) -> Mapping[str, float] | None: ...


@dataclass(frozen=True)
class SystemStatistics:
    """The statistics of a system's outputs on a set of examples."""

    name: str
    statistics: Mapping[str, Statistics]  # by metric
    lengths: Sequence[int]  # of the sources
    content: str  # a hash of sources and references
    model_metrics: Mapping[str, float]  # computed without outputs: loss and perplexity


@dataclass(frozen=True)
class MetricResult:
    """A metric's value, with a bootstrap interval if it has one, and the difference from the first system.

    The value is None where the metric is undefined, such as a correlation with numbers that are all equal.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    difference: float | None = None  # from the first system
    p: float | None = None
    higher_is_better: bool = True
    signature: str | None = None  # how exactly it was computed
    totals: Mapping[str, float] | None = None  # the sums it was computed from


@dataclass(frozen=True)
class LengthBucket:
    """Lengths from `first` to `last` inclusive, and the indices of the examples in that range."""

    first: int
    last: int
    indices: Indices


@dataclass(frozen=True)
class LengthGroup:
    """Metrics on the examples of one length bucket."""

    first: int
    last: int
    examples: int
    metrics: Mapping[str, MetricResult]


@dataclass(frozen=True)
class System:
    """The results of one system."""

    name: str
    metrics: Mapping[str, MetricResult]
    classes: Sequence[Mapping[str, Any]]  # for labels and tags: precision, recall and F1 of each
    lengths: Sequence[LengthGroup]  # if requested
    spans: Sequence[Mapping[str, Any]] = ()  # for tags of spans: the same of each type of span
    # How often a class was given instead of another, the most frequent first.
    confusions: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Report:
    """Systems on the same examples; differences are from the first system."""

    examples: int
    resamples: int
    confidence: float
    seed: int
    systems: Sequence[System]

    def __getitem__(self, metric: str) -> MetricResult:
        """A metric of the first system."""
        return self.systems[0].metrics[metric]


def collect(
    name: str,
    pairs: Iterable[tuple[Row, str | ScoredOutput]],
    metrics: Sequence[str],
    *,
    group: str | None = None,
    options: Mapping[str, Any] | None = None,
    model_metrics: Mapping[str, float] | None = None,
    source_length: Callable[[str], int] = lambda source: len(source.split()),
    keep: Callable[[str], object] | None = None,
) -> SystemStatistics:
    """The statistics of a stream of examples and outputs; `keep` is called with every output.

    group     the group of metrics that fit the outputs; None: it is not known
    options   the arguments with which statistics of this group are made
    """
    statistics = new_statistics(metrics, group, options)
    lengths = array("i")
    content = hashlib.sha256()
    pairs = iter(pairs)
    while chunk := list(islice(pairs, CHUNK)):
        rows = [row for row, _ in chunk]
        references_of = [references for _, references in rows]
        given = [output for _, output in chunk]
        outputs = [output if isinstance(output, str) else output.text for output in given]
        if keep is not None:
            for output in outputs:
                keep(output)
        for source, references in rows:
            content.update(repr((source, list(references))).encode("utf-8", "surrogatepass"))
        for one in statistics.values():
            if one.reads_probabilities:
                one.add_probabilities([_probabilities(output) for output in given], references_of)
            else:
                one.add(outputs, references_of)
        lengths.extend(source_length(source) for source, _ in rows)
    return SystemStatistics(name, statistics, lengths, content.hexdigest(), model_metrics or {})


def _probabilities(output: "str | ScoredOutput") -> Mapping[str, float]:
    found = None
    if not isinstance(output, str):
        found = output.probabilities
    if found is None:
        raise InvalidArgument(
            "metric",
            wanted="one of outputs, such as f1",
            got="one of probabilities, which a file of outputs does not have",
            remedy="Evaluate the model, or leave this metric out.",
        )
    return found


def report(
    systems: Sequence[SystemStatistics], *, resamples: int = RESAMPLES, by_length: str | None = None
) -> Report:
    """Every system's metrics with intervals, and their differences from the first system."""
    _check_same_examples(systems)
    lengths = systems[0].lengths
    if (by_length or systems[0].statistics) and not lengths:
        raise InvalidArgument(
            "by-length" if by_length else "references",
            wanted="at least one example with an output",
            got="none",
            remedy="Leave it out." if by_length else "Check the file.",
        )
    buckets = []
    if by_length:
        buckets = length_buckets(lengths, by_length)
    overall = _results(systems, np.arange(len(lengths)), resamples)
    by_bucket = [_results(systems, bucket.indices, resamples) for bucket in buckets]
    results = []
    for i, system in enumerate(systems):
        # Loss and perplexity have no intervals: they are means over tokens, which may differ between systems.
        model_results = {
            name: MetricResult(value, higher_is_better=METRICS[name].higher_is_better)
            for name, value in system.model_metrics.items()
        }
        groups = [
            LengthGroup(bucket.first, bucket.last, len(bucket.indices), metrics[i])
            for bucket, metrics in zip(buckets, by_bucket, strict=True)
        ]
        tables = _tables(system)
        results.append(System(system.name, model_results | overall[i], lengths=groups, **tables))
    return Report(len(lengths), resamples, CONFIDENCE, SEED, results)


def _tables(system: SystemStatistics) -> dict[str, Sequence[Mapping[str, Any]]]:
    """The tables of a system, each from the first metric that has it."""
    found: dict[str, Sequence[Mapping[str, Any]]] = {"classes": [], "spans": [], "confusions": []}
    for one in system.statistics.values():
        if not found[one.table_of]:
            found[one.table_of] = one.table()
        if not found["confusions"]:
            found["confusions"] = one.confusions()
    return found


def length_buckets(lengths: Iterable[int], groups: str) -> list[LengthBucket]:
    """Buckets of increasing length that cover all examples.

    `groups` is the number of buckets, of about equal size ("4"), or the last length of each ("10,15,20").

    >>> [(b.first, b.last, len(b.indices)) for b in length_buckets([1, 2, 3, 4, 5, 6, 7, 30], "2")]
    [(1, 4, 4), (5, 30, 4)]
    >>> [(b.first, b.last, len(b.indices)) for b in length_buckets([1, 2, 3, 4, 5, 6, 7, 30], "3,10")]
    [(1, 3, 3), (4, 10, 4), (11, 30, 1)]
    """
    edges = _numbers(groups)
    array = np.fromiter(lengths, dtype=np.int64)
    shortest = int(array.min())
    longest = int(array.max())
    if "," not in groups:
        quantiles = np.arange(1, edges[0]) / edges[0]
        edges = np.quantile(array, quantiles, method="inverted_cdf").astype(int).tolist()
    inside = sorted({edge for edge in edges if shortest <= edge < longest})
    firsts = [shortest, *(edge + 1 for edge in inside)]
    lasts = [*inside, longest]
    buckets = []
    for first, last in zip(firsts, lasts, strict=True):
        is_inside = (array >= first) & (array <= last)
        buckets.append(LengthBucket(first, last, np.flatnonzero(is_inside)))
    return buckets


def _numbers(groups: str) -> list[int]:
    try:
        numbers = [int(part) for part in groups.split(",") if part.strip()]
        if min(numbers) < 1:
            raise ValueError
    except ValueError:
        raise InvalidArgument(
            "by-length",
            wanted="a number of groups (4), or their ends (10,15,20)",
            got=repr(groups),
            remedy="Lengths are counted from 1.",
        ) from None
    return numbers


def _check_same_examples(systems: Sequence[SystemStatistics]) -> None:
    first = systems[0]
    for other in systems[1:]:
        if other.content != first.content:
            raise InvalidArgument(
                other.name,
                wanted=f"the same sources and references as {first.name}",
                got=f"others ({len(other.lengths):,} examples beside {len(first.lengths):,})",
                remedy="Evaluate both on the same files: --sources and --references.",
            )


def _results(
    systems: Sequence[SystemStatistics], indices: Indices, resamples: int
) -> list[dict[str, MetricResult]]:
    """Every system's metrics on the examples at `indices`, with bootstrap intervals and p-values."""
    names = list(systems[0].statistics)
    if not names or not len(indices):
        return [{} for _ in systems]
    # The metrics of the first system, then those of the next.
    statistics = [system.statistics[name] for system in systems for name in names]
    resampled = bootstrap(statistics, indices, resamples)
    once = np.ones((1, len(indices)))
    values = [float(one.values(once, indices)[0]) for one in statistics]
    results: list[dict[str, MetricResult]] = [{} for _ in systems]
    for i, one in enumerate(statistics):
        system, metric = divmod(i, len(names))
        name = names[metric]
        low, high = defined_interval(resampled[i]) or (None, None)
        difference = None
        p = None
        if system > 0:
            # `metric` is the place of the first system's value as well.
            raw = values[i] - values[metric]
            difference = value_or_none(raw)
            p = defined_p_value(raw, resampled[i] - resampled[metric], len(indices))
        results[system][name] = MetricResult(
            value=value_or_none(values[i]),
            low=low,
            high=high,
            difference=difference,
            p=p,
            higher_is_better=METRICS[name].higher_is_better,
            signature=one.signature(),
            totals=one.totals(indices),
        )
    return results
