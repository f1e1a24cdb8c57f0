"""Counters and gauges for Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from regard.server.engine import Engine

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """What a server has done, by route and status, and what its engine holds now."""

    media_type = CONTENT_TYPE_LATEST

    def __init__(self, engine: Engine) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "regard_requests", "Requests that were answered.", ("route", "status"), registry=self.registry
        )
        self.seconds = Histogram(
            "regard_request_seconds",
            "Time to the end of an answer.",
            ("route",),
            buckets=SECONDS,
            registry=self.registry,
        )
        self.cancelled = Counter(
            "regard_requests_cancelled", "Requests whose client disconnected.", registry=self.registry
        )
        for name, text, value in (
            ("regard_queue_jobs", "Jobs that wait for a slot.", lambda: len(engine.queue)),
            ("regard_queue_tokens", "Tokens of the jobs that wait, about.", lambda: engine.queue.tokens),
            ("regard_jobs", "Jobs that wait or run.", lambda: engine.busy),
        ):
            Gauge(name, text, registry=self.registry).set_function(value)

    def text(self) -> bytes:
        return generate_latest(self.registry)
