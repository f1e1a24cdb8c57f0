"""Counters, gauges and histograms for Prometheus."""

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from regard.core.errors import DeadlineExceeded
from regard.core.log_output import dropped_lines
from regard.serving.http.errors import rejection
from regard.serving.http.usage import RequestUsage
from regard.serving.scheduler.interfaces import BaseScheduler, ModelState

FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # set in front-end processes: prometheus_client keeps the counts of each there
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """What a server has done, by route, status and model, and what its scheduler holds now."""

    media_type = CONTENT_TYPE_LATEST

    def __init__(self, engine: BaseScheduler) -> None:
        self.registry = CollectorRegistry()
        self.requests = self._counter("requests", "Requests that were answered.", "route", "status")
        self.seconds = self._histogram("request_seconds", "Time to the end of an answer.", "route")
        self.cancelled = self._counter(
            "requests_cancelled",
            "Requests whose client disconnected before the end of the answer.",
            "route",
        )
        self.rejected = self._counter("requests_rejected", "Requests that were refused.", "reason")
        self.late = self._counter(
            "deadlines_missed", "Requests that ended at their deadline.", "route"
        )
        self.inputs = self._counter("inputs", "Inputs that were answered.", "model")
        self.input_tokens = self._counter(
            "input_tokens", "Tokens of inputs that were answered.", "model"
        )
        self.output_tokens = self._counter(
            "output_tokens", "Tokens of outputs, without end tokens.", "model"
        )
        self.queue_seconds = self._histogram(
            "queue_seconds", "Time of an input in the queue.", "model"
        )
        self.first_seconds = self._histogram(
            "time_to_first_token_seconds",
            "Time from the arrival of an input to the first token of its output.",
            "model",
        )
        self.generation_seconds = self._histogram(
            "generation_seconds",
            "Time from the admission of an input into a batch to the end of its output.",
            "model",
        )
        self.log_lines_dropped = self._counter(
            "log_lines_dropped", "Lines of the log that were dropped, because stderr was not read."
        )
        self._dropped_lines = 0  # that are counted
        self._children: dict[tuple[Any, ...], Any] = {}
        self._engine = _SchedulerCollector(engine)
        self.registry.register(self._engine)
        ProcessCollector(registry=self.registry)  # its memory, file descriptors and processor time

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"regard_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(f"regard_{name}", text, labels, buckets=SECONDS, registry=self.registry)

    def _of(self, metric: Any, *labels: str) -> Any:
        """The metric with these labels: found here faster than prometheus_client finds it."""
        child = self._children.get((metric, *labels))
        if child is None:
            child = self._children[metric, *labels] = metric.labels(*labels)
        return child

    def answered(self, route: str, status: int, seconds: float, record: RequestUsage) -> None:
        """Count a request that was answered, or refused."""
        self._count_dropped_lines()
        self._of(self.requests, route, str(status)).inc()
        self._of(self.seconds, route).observe(seconds)
        if isinstance(record.error, DeadlineExceeded):
            self._of(self.late, route).inc()
        elif record.error is not None and (reason := rejection(record.error)):
            self._of(self.rejected, reason).inc()
        self.count_inputs(record)

    def disconnected(self, route: str, record: RequestUsage) -> None:
        """Count a request whose client has gone."""
        self._of(self.cancelled, route).inc()
        self.count_inputs(record)

    def count_inputs(self, record: RequestUsage) -> None:
        """Count the inputs of a request, or of one line of a request of many."""
        for usage in record.usages:
            if usage.queue_seconds is None:  # it was refused, or ended in the queue
                continue
            self._of(self.queue_seconds, record.model).observe(usage.queue_seconds)
            if usage.first_seconds is not None:
                self._of(self.first_seconds, record.model).observe(usage.first_seconds)
            if usage.generation_seconds is not None:
                self._of(self.generation_seconds, record.model).observe(usage.generation_seconds)
        if record.answered:
            self._of(self.inputs, record.model).inc(record.answered)
            self._of(self.input_tokens, record.model).inc(record.input_tokens)
            self._of(self.output_tokens, record.model).inc(record.output_tokens)

    def _count_dropped_lines(self) -> None:
        """Those of this process: of several front ends, each counts its own, where all find them."""
        dropped = dropped_lines()
        if dropped > self._dropped_lines:
            self.log_lines_dropped.inc(dropped - self._dropped_lines)
            self._dropped_lines = dropped

    def text(self, states: Sequence[ModelState] = ()) -> bytes:
        """All of them, with the reloads of these models; of all front-end processes, where there are several."""
        self._count_dropped_lines()
        self._engine.states = states
        if FOLDER not in os.environ:
            return generate_latest(self.registry)
        shared = CollectorRegistry()
        MultiProcessCollector(shared)  # type: ignore[no-untyped-call]
        shared.register(self._engine)
        return generate_latest(shared)


class _SchedulerCollector(Collector):
    """What a scheduler holds at the moment at which the metrics are read."""

    def __init__(self, engine: BaseScheduler) -> None:
        self.engine = engine
        self.states: Sequence[ModelState] = ()

    def describe(self) -> Iterable[Metric]:
        return ()  # so that a registry does not collect to learn the names

    def collect(self) -> Iterator[Metric]:
        stats = self.engine.stats()
        for name, text, value in (
            ("queue_jobs", "Inputs that wait for a slot.", stats.queued_jobs),
            ("queue_tokens", "Tokens of the inputs that wait, about.", stats.queued_tokens),
            ("slots_busy", "Inputs in slots of a search, or in a batch.", stats.running_jobs),
            ("searches", "Searches that run, each with inputs of equal settings.", stats.searches),
        ):
            yield GaugeMetricFamily(f"regard_{name}", text, value)
        models = GaugeMetricFamily(
            "regard_model", "The version of each model.", labels=("model", "version")
        )
        for model in self.engine.model_info.values():
            models.add_metric((model.name, model.version), 1)
        yield models
        reloads = CounterMetricFamily(
            "regard_reloads", "Models loaded anew.", labels=("model", "result")
        )
        for state in self.states:
            reloads.add_metric((state.name, "success"), state.reloads)
            reloads.add_metric((state.name, "failure"), state.failures)
        yield reloads
