"""Systems beside each other: figures, intervals, p-values, and how they do on short and on long sources.

Examples stream through `judge`, a chunk at a time; what stays of them are the numbers of their tallies.
"""

import hashlib
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from regard.core.errors import InvalidArgument
from regard.evaluation.bootstrap import CONFIDENCE, RESAMPLES, SEED, bootstrap, interval, p_value
from regard.evaluation.length_buckets import spans
from regard.evaluation.metrics import METRICS, start
from regard.evaluation.statistics import ConfusionMatrix, StatisticRows, Statistics

CHUNK = 128  # examples that are held at once
Row = tuple[Any, Sequence[str]]  # a source, text or picture, and its references


@dataclass(frozen=True)
class SystemOutputs:
    """What is kept of a system's outputs on a set of examples."""

    name: str
    tallies: Mapping[str, Statistics]
    lengths: Sequence[int]  # of the sources
    content: str  # a hash of sources and references
    known: Mapping[str, float]  # what its model says without outputs: loss and perplexity


@dataclass(frozen=True)
class MetricResult:
    """A figure; where its examples can be drawn again an interval, and beside another system a difference."""

    value: float
    low: float | None = None
    high: float | None = None
    difference: float | None = None  # from the first system
    p: float | None = None
    higher_is_better: bool = True
    signature: str | None = None  # how exactly it was computed, where that has a name
    totals: Mapping[str, float] | None = None  # what it was computed from


@dataclass(frozen=True)
class LengthGroup:
    """The examples whose sources are so long."""

    first: int
    last: int
    examples: int
    metrics: Mapping[str, MetricResult]


@dataclass(frozen=True)
class System:
    """All that is told of one system."""

    name: str
    metrics: Mapping[str, MetricResult]
    classes: Sequence[Mapping[str, Any]]  # of labels: precision, recall and F1 of each
    lengths: Sequence[LengthGroup]  # where they were asked for


@dataclass(frozen=True)
class Report:
    """Systems on the same examples; differences are from the first of them."""

    examples: int
    resamples: int
    confidence: float
    seed: int
    systems: Sequence[System]


def judge(
    name: str,
    pairs: Iterable[tuple[Row, str]],
    metrics: Sequence[str],
    *,
    known: Mapping[str, float] | None = None,
    measure: Callable[[str], int] = lambda source: len(source.split()),
) -> SystemOutputs:
    """Go through examples and outputs once."""
    tallies, lengths, seen = start(metrics), array("i"), hashlib.sha256()
    pairs = iter(pairs)
    while chunk := list(islice(pairs, CHUNK)):
        rows, outputs = [row for row, _ in chunk], [output for _, output in chunk]
        for source, references in rows:
            seen.update(repr((source, list(references))).encode("utf-8", "surrogatepass"))
        for tally in tallies.values():
            tally.add(outputs, [references for _, references in rows])
        lengths.extend(measure(source) for source, _ in rows)
    return SystemOutputs(name, tallies, lengths, seen.hexdigest(), known or {})


def report(judged: Sequence[SystemOutputs], *, resamples: int = RESAMPLES, by_length: str | None = None) -> Report:
    """Every system with intervals, and beside the first one."""
    _check_same(judged)
    lengths = judged[0].lengths
    if (by_length or judged[0].tallies) and not lengths:
        raise InvalidArgument(
            "by-length" if by_length else "references",
            wanted="at least one example with an output",
            got="none",
            remedy="Leave it out." if by_length else "Look into the file.",
        )
    groups = spans(lengths, by_length) if by_length else []
    everything = _figures(judged, np.arange(len(lengths)), resamples)
    parts = [_figures(judged, span.rows, resamples) for span in groups]
    systems = []
    for i, one in enumerate(judged):
        by_group = [
            LengthGroup(span.first, span.last, len(span.rows), part[i])
            for span, part in zip(groups, parts, strict=True)
        ]
        systems.append(System(one.name, _known(one) | everything[i], _classes(one.tallies), by_group))
    return Report(len(lengths), resamples, CONFIDENCE, SEED, systems)


def _check_same(judged: Sequence[SystemOutputs]) -> None:
    first = judged[0]
    for other in judged[1:]:
        if other.content != first.content:
            raise InvalidArgument(
                other.name,
                wanted=f"the same sources and references as {first.name}",
                got=f"others ({len(other.lengths):,} examples beside {len(first.lengths):,})",
                remedy="Evaluate both on the same files: --sources and --references.",
            )


def _known(judged: SystemOutputs) -> dict[str, MetricResult]:
    """Without intervals: these are means over tokens, which two systems need not cut alike."""
    return {name: MetricResult(value, higher_is_better=METRICS[name].higher) for name, value in judged.known.items()}


def _figures(judged: Sequence[SystemOutputs], among: StatisticRows, resamples: int) -> list[dict[str, MetricResult]]:
    """Every system on these examples, which are drawn again for intervals and p-values."""
    names = list(judged[0].tallies)
    if not names or not len(among):
        return [{} for _ in judged]
    tallies = [one.tallies[name] for one in judged for name in names]
    drawn = bootstrap(tallies, among, resamples)
    values = [float(tally.values(np.ones((1, len(among))), among)[0]) for tally in tallies]
    found: list[dict[str, MetricResult]] = [{} for _ in judged]
    for i, tally in enumerate(tallies):
        system, metric = divmod(i, len(names))
        name, (low, high) = names[metric], interval(drawn[i])
        difference = p = None
        if system:
            difference = values[i] - values[metric]
            p = p_value(difference, drawn[i] - drawn[metric], len(among))
        found[system][name] = MetricResult(
            values[i], low, high, difference, p, METRICS[name].higher, tally.signature(), tally.totals(among)
        )
    return found


def _classes(tallies: Mapping[str, Statistics]) -> list[dict[str, Any]]:
    return next((tally.table() for tally in tallies.values() if isinstance(tally, ConfusionMatrix)), [])
