"""Metrics and the access log say what a client counted, over real sockets and with a mixture of requests."""

import json
import logging
import os
import random
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("uvicorn", reason="needs the extra `serve`")

from prometheus_client.parser import text_string_to_metric_families

from regard.serving.scheduler.interfaces import SchedulerStats
from regard.serving.scheduler.scheduler import SchedulerLimits
from support.forged import GOLDEN
from support.predictors import classifier, language_model, translator
from support.servers import PATIENCE, Running, released_late, served, slowed, until

MODELS = {"rnn": translator(decoder="rnn"), "labels": classifier(), "lines": language_model()}
TEXTS = ["the cat sat", "a dog", "the red mat", "on the mat", "dog"]
LONG = {"min_length": 6, "max_length": 9}
HISTOGRAMS = (
    "regard_queue_seconds",
    "regard_time_to_first_token_seconds",
    "regard_generation_seconds",
)


def read(running: Running) -> Counter:
    """Values by the name of a sample and its labels' values; those of time-dependent samples are left out."""
    families = text_string_to_metric_families(running.ask("/metrics")[2]["text"])
    return Counter(
        {
            (sample.name, *sample.labels.values()): sample.value
            for family in families
            for sample in family.samples
            if sample.name.startswith("regard")
            and not sample.name.endswith(("_bucket", "_sum", "_created"))
        }
    )


class Client:
    """Asks, and counts what it was answered."""

    def __init__(self, running: Running) -> None:
        self.running, self.counts, self.lock = running, Counter(), threading.Lock()

    def count(self, *key: str, by: int = 1) -> None:
        with self.lock:
            self.counts[key] += by

    def ask(self, path: str, body: object = None, route: str | None = None, **headers: str) -> dict:
        status, _, answer = self.running.ask(path, body, **headers)
        self.answered(path if route is None else route, status)
        return answer

    def answered(self, route: str, status: int) -> None:
        self.count("regard_requests_total", route, str(status))
        self.count("regard_request_seconds_count", route)

    def jobs(self, model: str, inputs: list[str], generated: int, *, steps: bool = True) -> None:
        self.count("regard_inputs_total", model, by=len(inputs))
        self.count(
            "regard_input_tokens_total",
            model,
            by=sum(len(MODELS[model].encode(text)[0]) for text in inputs),
        )
        self.count("regard_output_tokens_total", model, by=generated)
        for name in HISTOGRAMS:
            if steps or name != "regard_time_to_first_token_seconds":
                self.count(f"{name}_count", model, by=len(inputs))

    def predict(self, inputs: list[str], model: str = "rnn", **options: object) -> None:
        answer = self.ask("/predict", {"model": model, "input": inputs, "tokens": True, **options})
        found = [each["tokens"] for result in answer["results"] for each in result["outputs"]]
        labels = model == "labels"
        self.jobs(model, inputs, 0 if labels else sum(map(len, found)), steps=not labels)

    def stream(self, text: str, **options: object) -> None:
        connection = self.running.connect()
        body = json.dumps(
            {"model": "rnn", "input": text, "stream": True, "tokens": True, **options}
        )
        connection.request("POST", "/predict", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        last = [line for line in answer.read().splitlines() if line][-1].removeprefix(b"data: ")
        connection.close()
        self.answered("/predict", answer.status)
        self.jobs("rnn", [text], len(json.loads(last)["outputs"][0]["tokens"]))

    def complete(self, prompts: list[str], **options: object) -> None:
        usage = self.ask("/v1/completions", {"model": "lines", "prompt": prompts, **options})[
            "usage"
        ]
        assert usage["prompt_tokens"] == sum(
            len(MODELS["lines"].encode(text)[0]) for text in prompts
        )
        self.jobs("lines", prompts, usage["completion_tokens"])

    def score(self, text: str, target: str) -> None:
        (result,) = self.ask("/score", {"model": "rnn", "input": text, "target": target})["results"]
        self.jobs("rnn", [text], 0, steps=False)
        self.count("regard_input_tokens_total", "rnn", by=len(result["tokens"]))

    def score_text(self, text: str) -> None:
        """Of a language model: the text is read once."""
        self.ask("/score", {"model": "lines", "input": text})
        self.jobs("lines", [text], 0, steps=False)

    def refused(
        self, path: str, body: object, reason: str, route: str | None = None, **headers: str
    ) -> None:
        self.ask(path, body, route, **headers)
        self.count("regard_requests_rejected_total", reason)

    def any(self, seed: int) -> None:
        chance, kind = random.Random(seed), seed % 9
        some = chance.sample(TEXTS, chance.choice([1, 1, 2, 4]))
        if kind == 0:
            self.predict(some, beam_size=3, num_hypotheses=2, **LONG)
        elif kind == 1:
            self.predict(some, "labels")
        elif kind == 2:
            self.stream(some[0], sample=True, temperature=2.0, seed=seed, **LONG)
        elif kind == 3:
            self.complete(some, max_tokens=4, n=chance.choice([1, 3]), temperature=1.5)
        elif kind == 4:
            self.score(some[0], "a mat")
            self.score_text(some[-1])
        elif kind == 5:
            refusals = [
                ("/predict", b"{", "bad_request", None),
                ("/predict", {"model": "rnn", "input": "x", "beam_size": 0}, "bad_request", None),
                ("/predict", {"model": "none", "input": "x"}, "not_found", None),
                ("/predict", b"[" * 100, "depth", None),
                ("/predict", None, "method_not_allowed", "other"),
                ("/nothing", None, "not_found", "other"),
                ("/predict", b" " * (1 << 20) + b" ", "request_entity_too_large", None),
            ]
            self.refused(*refusals[seed // 9 % len(refusals)])
        elif kind == 6:
            self.ask("/models")
        else:
            self.predict(some, prefix=chance.choice(["", "the cat"]), **LONG)


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with served(MODELS) as server:
        yield server


def test_metrics_are_what_a_client_counted(running):
    client, before, chance = Client(running), read(running), random.Random(3)
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(client.any, chance.sample(range(63), 63)))
    until(lambda: running.app.open == 0)
    client.answered("/metrics", 200)  # the one before
    assert read(running) - before == client.counts
    assert len({key for key in client.counts if key[0] == "regard_requests_rejected_total"}) == 5


def test_what_waits_and_runs_is_measured(monkeypatch):
    gate, waits = slowed(monkeypatch, MODELS["rnn"])
    with (
        served({"rnn": MODELS["rnn"]}, SchedulerLimits(slots=2, queued_jobs=3)) as running,
        ThreadPoolExecutor(5) as pool,
    ):
        asked = [pool.submit(running.ask, "/predict", {"input": "a dog", **LONG})]
        assert waits.wait(PATIENCE)
        asked += [
            pool.submit(running.ask, "/predict", {"input": "a red cat", **LONG}) for _ in range(3)
        ]
        until(lambda: len(running.engine.queue) == 3)
        found = read(running)
        assert [
            found[name,] for name in ("regard_queue_jobs", "regard_slots_busy", "regard_searches")
        ] == [3, 1, 1]
        assert found["regard_queue_tokens",] == running.engine.queue.tokens > 0
        assert found["regard_model", "rnn", "7"] == 1
        assert running.ask("/predict", {"input": "a dog", **LONG})[0] == 429
        assert read(running)["regard_requests_rejected_total", "queue_full"] == 1
        gate.release(100_000)
        assert all(each.result(PATIENCE)[0] == 200 for each in asked)
        until(lambda: running.engine.stats() == SchedulerStats())
        found = read(running)
        assert [
            found[name,] for name in ("regard_queue_jobs", "regard_slots_busy", "regard_searches")
        ] == [0, 0, 0]


def test_cancellations_and_deadlines_are_counted(monkeypatch):
    gate, waits = slowed(monkeypatch, MODELS["rnn"])
    with served({"rnn": MODELS["rnn"]}, SchedulerLimits(slots=1)) as running:
        for stream in (False, True, True):
            waits.clear()
            connection = running.connect()
            body = json.dumps({"input": "a dog", "stream": stream, **LONG})
            connection.request("POST", "/predict", body, {"content-type": "application/json"})
            assert waits.wait(PATIENCE)
            connection.sock.close()
            connection.close()
            until(lambda: running.engine._cancelled)
            gate.release(1)
            until(lambda: running.engine.busy == running.app.open == 0)
        for _ in range(2):
            with released_late(gate, waits, 0.1, steps=1):
                asked = {"input": "a dog", "timeout_ms": 1, **LONG}
                assert running.ask("/predict", asked)[0] == 504
        gate.release(100_000)
        found = read(running)
        assert found["regard_requests_cancelled_total", "/predict"] == 3
        assert found["regard_deadlines_missed_total", "/predict"] == 2
        assert found["regard_requests_total", "/predict", "504"] == 2
        assert (
            found["regard_inputs_total", "rnn"] == found["regard_output_tokens_total", "rnn"] == 0
        )


def test_reloads_are_counted(tmp_path):
    shutil.copytree(GOLDEN / "transformer", tmp_path / "model")
    with served({"en": tmp_path / "model"}) as running:
        assert running.ask("/admin/models", {"name": "en"})[0] == 200
        os.truncate(tmp_path / "model" / "model.safetensors", 100)
        for _ in range(2):
            assert running.ask("/admin/models", {"name": "en"})[0] == 500
        found = read(running)
        assert (
            found["regard_reloads_total", "en", "success"],
            found["regard_reloads_total", "en", "failure"],
        ) == (
            1,
            2,
        )
        assert running.ask("/admin/models")[2]["models"][0]["failures"] == 2


def test_stages_add_up(running, monkeypatch):
    """A request that waits: the time in the queue is measured, and the first token comes after it."""
    gate, waits = slowed(monkeypatch, MODELS["rnn"])
    with (
        served({"rnn": MODELS["rnn"]}, SchedulerLimits(slots=1)) as slow,
        ThreadPoolExecutor(2) as pool,
    ):
        asked = [pool.submit(slow.ask, "/predict", {"input": "a dog", **LONG}) for _ in range(2)]
        assert waits.wait(PATIENCE)
        until(lambda: len(slow.engine.queue) == 1)
        threading.Event().wait(0.2)
        gate.release(100_000)
        assert all(each.result(PATIENCE)[0] == 200 for each in asked)
        until(lambda: slow.app.open == 0)
        names = (*HISTOGRAMS, "regard_request_seconds")
        queue, first, generation, total = (sums(slow, name) for name in names)
        assert 0.2 <= queue < first < total
        assert queue + generation <= total


def sums(running: Running, name: str) -> float:
    families = text_string_to_metric_families(running.ask("/metrics")[2]["text"])
    return sum(
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == f"{name}_sum" and "/metrics" not in sample.labels.values()
    )


def test_the_access_log_has_a_line_for_each_request(running, caplog):
    caplog.set_level(logging.INFO, logger="regard.serving.http.request_handler")
    asked = {"model": "rnn", "input": ["the cat", "a dog"], "tokens": True, **LONG}
    answer = running.ask("/predict", asked, x_request_id="one")[2]
    running.ask("/predict", {"model": "rnn", "input": "x", "beam_size": 0}, x_request_id="two")
    running.ask("/nothing", x_request_id="three")

    def lines() -> dict[str, dict]:
        """By the ids of requests."""
        found = [json.loads(record.getMessage()) for record in caplog.records]
        return {line["id"]: line for line in found}

    # A line is written after the answer.
    until(lambda: {"one", "two", "three"} <= lines().keys())
    found = lines()
    one = found["one"]
    assert (one["status"], one["model"], one["version"]) == (200, "rnn", answer["version"])
    assert one["inputs"] == 2
    assert one["input_tokens"] == sum(len(MODELS["rnn"].encode(text)[0]) for text in asked["input"])
    assert one["output_tokens"] == sum(
        len(result["outputs"][0]["tokens"]) for result in answer["results"]
    )
    assert 0 <= one["queue_seconds"] <= one["first_seconds"] <= one["seconds"]
    assert one["client"] == "127.0.0.1"
    assert (found["two"]["status"], found["two"]["error"]) == (400, "bad_request")
    assert (found["three"]["status"], found["three"]["error"], "model" in found["three"]) == (
        404,
        "not_found",
        False,
    )
