"""Traces of requests by OpenTelemetry (https://opentelemetry.io): a span for each request, with its stages."""

import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from regard.core.version import __version__
from regard.serving.http.usage import RequestUsage

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider

log = logging.getLogger(__name__)
# The variables that switch tracing on. OpenTelemetry reads its other variables itself.
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


class RequestTrace(ABC):
    """The trace of one request."""

    @property
    @abstractmethod
    def headers(self) -> Mapping[str, str]:
        """Of the answer: the place of the request in its trace."""

    @abstractmethod
    def end(
        self, method: str, route: str, status: int, request_id: str, record: RequestUsage
    ) -> None:
        """The request was answered; status 0: its client disconnected."""


class Tracing(ABC):
    """Makes a trace of each request."""

    @abstractmethod
    def begin(self, headers: Mapping[str, str]) -> RequestTrace:
        """Of a request with these headers, which may name the trace that it belongs to."""


class NoTrace(RequestTrace):
    headers: Mapping[str, str] = {}

    def end(
        self, method: str, route: str, status: int, request_id: str, record: RequestUsage
    ) -> None:
        pass


class NoTracing(Tracing):
    """No traces."""

    def begin(self, headers: Mapping[str, str]) -> RequestTrace:
        return NO_TRACE


NO_TRACE = NoTrace()


class OpenTelemetryTracing(Tracing):
    """Traces by OpenTelemetry. `traceparent` (https://www.w3.org/TR/trace-context) is read and given."""

    def __init__(self, provider: "TracerProvider") -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self.tracer = provider.get_tracer("regard", __version__)
        self.propagator = TraceContextTextMapPropagator()

    def begin(self, headers: Mapping[str, str]) -> RequestTrace:
        from opentelemetry.trace import SpanKind

        span = self.tracer.start_span("request", self.propagator.extract(headers), SpanKind.SERVER)
        return _SpanTrace(self, span)


class _SpanTrace(RequestTrace):
    def __init__(self, tracing: OpenTelemetryTracing, span: "Span") -> None:
        self.tracing, self.span = tracing, span
        self.began, self.clock = time.monotonic(), time.time_ns() - time.monotonic_ns()

    @property
    def headers(self) -> Mapping[str, str]:
        from opentelemetry.trace import set_span_in_context

        given: dict[str, str] = {}
        self.tracing.propagator.inject(given, set_span_in_context(self.span))
        return given

    def end(
        self, method: str, route: str, status: int, request_id: str, record: RequestUsage
    ) -> None:
        from opentelemetry.trace import Status, StatusCode

        span, now = self.span, time.monotonic()
        span.update_name(f"{method} {route}")
        span.set_attributes(
            {"http.request.method": method, "http.route": route, "regard.request_id": request_id}
        )
        if status:
            span.set_attribute("http.response.status_code", status)
        else:
            span.set_attribute("regard.cancelled", True)
        if status >= 500:
            span.set_status(Status(StatusCode.ERROR, str(record.error or "")))
        for name, value in record.log_fields().items():
            span.set_attribute(f"regard.{name}", value)
        if record.submitted is not None:
            self._stages(record, record.submitted, now)
        span.end(self._time(now))

    def _stages(self, record: RequestUsage, submitted: float, now: float) -> None:
        """Spans of what a request went through; of several inputs, the times of the slowest."""
        fields: dict[str, Any] = record.log_fields()
        admitted = min(now, submitted + fields.get("queue_seconds", now - submitted))
        done = min(now, admitted + fields.get("generation_seconds", now - admitted))
        self._stage("receive", self.began, submitted)
        self._stage("queue", submitted, admitted)
        if "queue_seconds" in fields:
            self._stage("generate", admitted, done)
        if "generation_seconds" in fields:
            self._stage("answer", done, now)
        if "first_seconds" in fields:
            self.span.add_event(
                "first token", timestamp=self._time(submitted + fields["first_seconds"])
            )

    def _stage(self, name: str, begin: float, end: float) -> None:
        from opentelemetry.trace import set_span_in_context

        context = set_span_in_context(self.span)
        self.tracing.tracer.start_span(name, context, start_time=self._time(begin)).end(
            self._time(end)
        )

    def _time(self, monotonic: float) -> int:
        """In nanoseconds since 1970."""
        return int(monotonic * 1e9) + self.clock


def tracing_of_environment() -> Tracing:
    """Traces to the collector that the variables of OpenTelemetry name; none where they do not."""
    if not any(os.environ.get(name) for name in ENDPOINTS):
        return NoTracing()
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        log.warning("no traces, which the environment asks for: pip install 'regard[telemetry]'")
        return NoTracing()
    provider = TracerProvider(
        resource=Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", "regard")})
    )
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return OpenTelemetryTracing(provider)
