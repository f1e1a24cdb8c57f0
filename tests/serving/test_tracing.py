"""Traces of requests: a span each, with its stages, in the trace that the client names."""

import re
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest

pytest.importorskip("uvicorn", reason="needs the extra `serve`")
pytest.importorskip("opentelemetry.sdk", reason="needs the extra `telemetry`")

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from regard.serving.http.tracing import (
    ENDPOINTS,
    NoTracing,
    OpenTelemetryTracing,
    tracing_of_environment,
)
from support.predictors import replace_step, translator
from support.servers import PATIENCE, Running, served, slowed, until

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
ASKED = {"input": ["the cat", "a dog"], "min_length": 4, "max_length": 5}


class Traced:
    """A server, and the spans of its requests."""

    def __init__(self, running: Running, exporter: InMemorySpanExporter) -> None:
        self.running, self.exporter = running, exporter

    def spans(self) -> dict[str, ReadableSpan]:
        """Of the last request, by name; they are there when it has ended."""
        until(lambda: self.running.app.open == 0 and self.exporter.get_finished_spans())
        found = {span.name: span for span in self.exporter.get_finished_spans()}
        self.exporter.clear()
        return found


@pytest.fixture
def traced() -> Iterator[Traced]:
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with served(
        {"en": translator(decoder="rnn")}, tracing=OpenTelemetryTracing(provider)
    ) as running:
        yield Traced(running, exporter)


def test_a_request_is_a_span_with_its_stages_in_order(traced):
    before = time.time_ns()
    status, headers, answer = traced.running.ask(
        "/predict", ASKED, traceparent=f"00-{TRACE}-{PARENT}-01"
    )
    assert status == 200
    spans = traced.spans()
    assert sorted(spans) == ["POST /predict", "answer", "generate", "queue", "receive"]
    root = spans["POST /predict"]
    assert (f"{root.context.trace_id:032x}", f"{root.parent.span_id:016x}") == (TRACE, PARENT)
    assert headers["traceparent"] == f"00-{TRACE}-{root.context.span_id:016x}-01"
    assert root.kind is SpanKind.SERVER
    attributes = dict(root.attributes)
    assert attributes["http.request.method"] == "POST"
    assert (attributes["http.route"], attributes["http.response.status_code"]) == ("/predict", 200)
    assert (attributes["regard.request_id"], attributes["regard.model"]) == (answer["id"], "en")
    assert (attributes["regard.version"], attributes["regard.inputs"]) == ("7", 2)
    assert attributes["regard.output_tokens"] > 0
    edges = [before, root.start_time]
    for name in ("receive", "queue", "generate", "answer"):
        stage = spans[name]
        assert (stage.parent.span_id, stage.context.trace_id) == (
            root.context.span_id,
            root.context.trace_id,
        )
        edges += [stage.start_time, stage.end_time]
    edges += [root.end_time, time.time_ns()]
    assert all(one <= other + 1_000_000 for one, other in pairwise(edges))  # seconds are rounded
    assert edges[3] == edges[4]


def test_a_request_without_a_trace_begins_one(traced):
    for given in (
        {},
        {"traceparent": "00-nonsense"},
        {"traceparent": f"00-{'0' * 32}-{PARENT}-01"},
    ):
        _, headers, _ = traced.running.ask("/models", **given)
        (root,) = traced.spans().values()
        assert (root.name, root.parent) == ("GET /models", None)
        assert (
            headers["traceparent"][:-2]
            == f"00-{root.context.trace_id:032x}-{root.context.span_id:016x}-"
        )


def test_refusals_and_failures_are_told(traced, monkeypatch):
    assert traced.running.ask("/predict", {"input": "x", "beam_size": 0})[0] == 400
    root = traced.spans()["POST /predict"]
    assert (root.attributes["http.response.status_code"], root.status.status_code) == (
        400,
        StatusCode.UNSET,
    )
    assert traced.running.ask("/nowhere")[0] == 404
    assert (
        traced.spans()["GET other"].attributes["http.route"] == "other"
    )  # no path of a client is in it
    model = traced.running.engine.models["en"].predictor
    replace_step(monkeypatch, model.model.decoder, lambda *given: 1 / 0)
    assert traced.running.ask("/predict", {**ASKED, "max_length": 4})[0] == 500
    root = traced.spans()["POST /predict"]
    assert root.status.status_code is StatusCode.ERROR
    assert "ZeroDivisionError" in root.status.description


def test_a_client_that_leaves_is_told(traced, monkeypatch):
    gate, waits = slowed(monkeypatch, traced.running.engine.models["en"].predictor)
    connection = traced.running.connect()
    connection.request(
        "POST", "/predict", '{"input": "the cat"}', {"content-type": "application/json"}
    )
    assert waits.wait(PATIENCE)
    connection.close()
    until(lambda: len(traced.running.engine._cancelled) == 1)  # while the engine waits in a step
    gate.release(10_000)
    root = traced.spans()["POST /predict"]
    assert root.attributes["regard.cancelled"]
    assert "http.response.status_code" not in root.attributes


def test_traces_are_off_unless_the_environment_names_a_collector(monkeypatch):
    for name in ENDPOINTS:
        monkeypatch.delenv(name, raising=False)
    assert isinstance(tracing_of_environment(), NoTracing)
    with served({"en": translator(decoder="rnn")}) as running:
        _, headers, _ = running.ask("/models", traceparent=f"00-{TRACE}-{PARENT}-01")
        assert not re.search("trace", " ".join(headers))
    monkeypatch.setenv(ENDPOINTS[1], "http://127.0.0.1:9")
    assert isinstance(tracing_of_environment(), OpenTelemetryTracing)


def test_without_the_extra_there_is_a_warning(monkeypatch, caplog):
    monkeypatch.setenv(ENDPOINTS[0], "http://127.0.0.1:9")
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.sdk.trace", None)
    assert isinstance(tracing_of_environment(), NoTracing)
    assert "pip install 'regard[telemetry]'" in caplog.text
