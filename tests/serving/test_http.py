"""The HTTP API over real sockets: a server in a thread of this process, asked by http.client."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

uvicorn = pytest.importorskip("uvicorn", reason="needs the extra `serve`")

from regard.serving.http.service import HttpLimits  # noqa: E402
from regard.serving.scheduler.scheduler import SchedulerLimits  # noqa: E402
from support.predictors import classifier, language_model, translator  # noqa: E402
from support.servers import (  # noqa: E402
    PATIENCE,
    Running,
    released_late,
    served,
    slowed,
    until,
)

HEAD = "POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
LONG = {"min_length": 8, "max_length": 12}


MODELS = {"rnn": translator(decoder="rnn"), "labels": classifier(), "lines": language_model()}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with served(MODELS) as running:
        yield running


def outputs(answer: dict) -> list[list[str]]:
    return [[each["text"] for each in result["outputs"]] for result in answer["results"]]


def test_answers_are_those_of_predict(server):
    texts = ["the cat sat", "a dog", "the red mat"]
    status, headers, answer = server.ask("/predict", {"model": "rnn", "input": texts, **LONG})
    assert (status, answer["model"], answer["version"]) == (200, "rnn", "7")
    assert outputs(answer) == [[text] for text in MODELS["rnn"].predict(texts, **LONG)]
    assert answer["id"] == headers["x-request-id"]
    best = {
        "model": "rnn",
        "input": "a dog",
        "beam_size": 3,
        "num_hypotheses": 2,
        "scores": True,
        "tokens": True,
    }
    _, _, answer = server.ask("/predict", {**best, "max_length": 6})
    wanted = MODELS["rnn"].outputs(
        ["a dog"], beam_size=3, num_hypotheses=2, scores=True, max_length=6
    )[0]
    for got, each in zip(answer["results"][0]["outputs"], wanted, strict=True):
        assert (got["text"], got["tokens"], got["finish_reason"]) == (
            each.text,
            [*each.tokens],
            each.finish_reason,
        )
        assert got["score"] == pytest.approx(each.score, abs=1e-5)
        assert got["log_probabilities"] == pytest.approx(each.log_probabilities, abs=1e-5)
    _, _, answer = server.ask(
        "/predict", {"model": "labels", "input": "a dog", "num_hypotheses": 3}
    )
    assert answer["results"][0]["outputs"][0]["probabilities"].keys() == {"bad", "fine", "good"}
    assert outputs(answer) == [
        [each.text for each in MODELS["labels"].outputs(["a dog"], num_hypotheses=3)[0]]
    ]


def test_attention_comes_with_an_answer(server):
    _, _, answer = server.ask(
        "/predict", {"model": "rnn", "input": "a dog", "attention": True, **LONG}
    )
    weights = answer["results"][0]["outputs"][0]["attention"]
    assert all(
        sum(row) == pytest.approx(1, abs=1e-5)
        for layer in weights
        for head in layer
        for row in head
    )


def test_scores_are_those_of_score(server):
    asked = {"model": "rnn", "input": ["the cat", "a dog"], "target": ["a mat", "the"]}
    _, _, answer = server.ask("/score", asked)
    for got, wanted in zip(
        answer["results"], MODELS["rnn"].score(asked["input"], asked["target"]), strict=True
    ):
        assert got["tokens"] == [*wanted.tokens]
        assert got["log_probabilities"] == pytest.approx(wanted.log_probabilities, abs=1e-5)
    assert server.ask("/score", {"model": "lines", "input": "the cat"})[0] == 200
    status, _, answer = server.ask("/score", {**asked, "target": ["a"]})
    assert (status, answer["detail"]) == (
        400,
        "target: wanted 2, one for each input; got 1. Give each one.",
    )


def events(answer: http.client.HTTPResponse) -> Iterator[dict]:
    for line in answer:
        if line.startswith(b"data: "):
            yield json.loads(line.removeprefix(b"data: "))


def test_a_stream_is_the_output_piece_by_piece(server):
    options = {"sample": True, "temperature": 3.0, "max_length": 20}
    connection = server.connect()
    body = json.dumps({"model": "rnn", "input": "the cat", "stream": True, **options})
    connection.request("POST", "/predict", body, {"content-type": "application/json"})
    answer = connection.getresponse()
    assert answer.headers["content-type"].startswith("text/event-stream")
    *pieces, last = events(answer)
    wanted = MODELS["rnn"].predict(["the cat"], **options)[0]
    assert "".join(piece["text"] for piece in pieces) == wanted == last["outputs"][0]["text"]
    assert len(pieces) > 1
    connection.close()
    status, _, _ = server.ask("/predict", {"model": "rnn", "input": ["a", "b"], "stream": True})
    assert status == 400


def test_a_stream_is_greedy_where_the_recipe_has_a_beam():
    model = MODELS["rnn"].with_decode(beam_size=3, **LONG)
    with served({"rnn": model}) as running:
        connection = running.connect()
        body = json.dumps({"input": "the cat", "stream": True})
        connection.request("POST", "/predict", body, {"content-type": "application/json"})
        *pieces, last = events(connection.getresponse())
        connection.close()
        assert "".join(piece["text"] for piece in pieces) == "".join(model.stream("the cat"))
        assert last["outputs"][0]["text"] == "".join(model.stream("the cat"))
        for asked in ({"beam_size": 3}, {"num_hypotheses": 2}, {"banned": ["dog"]}):
            status, _, answer = running.ask("/predict", {"input": "x", "stream": True, **asked})
            assert (status, answer["argument"]) == (400, next(iter(asked)))


@pytest.mark.parametrize(
    ("path", "body", "status", "detail"),
    [
        (
            "/predict",
            b"{",
            400,
            "body: wanted a request of this route; got Input data was truncated",
        ),
        ("/predict", b"[" * 150_000, 400, "body: wanted JSON nested at most 32 deep"),
        ("/predict", b'{"input": "\xff"}', 400, "body: wanted a request of this route"),
        (
            "/predict",
            {"input": 3, "model": "rnn"},
            400,
            "Expected `str | object | array`, got `int`",
        ),
        ("/predict", {"model": "rnn"}, 400, "missing required field `input`"),
        (
            "/predict",
            {"text": "x"},
            400,
            "unknown field `text`. It needs input; see /openapi.json.",
        ),
        ("/predict", {"input": "x", "model": "rnn", "beam": 3}, 400, "unknown field `beam`"),
        (
            "/predict",
            {"input": "x", "model": "rnn", "beam_size": 0},
            400,
            "decode.beam_size: wanted",
        ),
        (
            "/predict",
            {"input": "x", "model": "rnn", "quantization": "int8"},
            400,
            "unknown field `quantization`",
        ),
        (
            "/predict",
            {"input": "x", "model": "rnn", "timeout_ms": 0},
            400,
            "timeout_ms: wanted more than 0",
        ),
        ("/predict", {"input": [], "model": "rnn"}, 400, "input: wanted 1 to 256; got 0"),
        (
            "/predict",
            {"input": ["x"] * 257, "model": "rnn"},
            400,
            "input: wanted 1 to 256; got 257",
        ),
        ("/predict", {"input": "x " * 5000, "model": "rnn"}, 400, "wanted at most 1000 tokens"),
        ("/predict", {"input": "x"}, 404, "model: wanted one of rnn, labels, lines; got none"),
        (
            "/predict",
            {"input": "x", "model": "../../etc"},
            404,
            "model: wanted one of rnn, labels, lines; got '../../",
        ),
        ("/../../etc/passwd", None, 404, "path: wanted one of"),
        ("/predict", None, 405, "method: wanted POST; got GET"),
    ],
)
def test_bad_requests_are_problems(server, path, body, status, detail):
    found, headers, answer = server.ask(path, body)
    assert found == answer["status"] == status
    assert headers["content-type"] == "application/problem+json"
    assert detail in answer["detail"]
    assert "Traceback" not in json.dumps(answer)


@pytest.mark.parametrize(
    ("path", "near"),
    [("/predct", "/predict"), ("/embeddings", "/v1/embeddings"), ("/helth/live", "/health/live")],
)
def test_an_unknown_path_names_the_nearest_three(server, path, near):
    _, _, answer = server.ask(path)
    nearest = answer["detail"].partition("The nearest are ")[2].removesuffix(".").split(", ")
    assert len(nearest) == 3
    assert near in nearest
    assert set(nearest) < set(server.ask("/openapi.json")[2]["paths"]) | {"/", "/docs"}
    assert server.ask("/" + "predict" * 1000)[0] == 404


def test_a_wrong_option_is_named_as_the_request_names_it(server):
    _, _, answer = server.ask("/predict", {"input": "x", "model": "rnn", "beam_size": 0})
    parts = {name: answer[name] for name in ("argument", "wanted", "got", "remedy")}
    assert parts.pop("remedy")
    assert parts == {
        "argument": "beam_size",
        "wanted": "a whole number of at least 1 and at most 1000",
        "got": "0",
    }


def test_other_content_and_large_bodies_are_refused(server):
    assert server.ask("/predict", {"input": "x"}, content_type="text/plain")[0] == 415
    with served({"rnn": MODELS["rnn"]}, limits=HttpLimits(body=1000)) as small:
        assert small.ask("/predict", b" " * 1001)[0] == 413
        assert (
            small.ask("/predict", json.dumps({"input": "a dog", **LONG}).encode().ljust(1000))[0]
            == 200
        )
        assert small.ask("/predict", {"input": "a dog", **LONG})[0] == 200


def test_every_answer_has_headers_that_browsers_heed(server):
    for path in ("/health/live", "/nothing"):
        _, headers, _ = server.ask(path)
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["content-security-policy"].startswith("default-src 'none'")
    assert server.ask("/health/live", x_request_id="mine-1")[1]["x-request-id"] == "mine-1"
    assert server.ask("/health/live", x_request_id='"><script>')[1]["x-request-id"] != '"><script>'


def test_keys_are_asked_for_everywhere_but_for_health():
    with served({"rnn": MODELS["rnn"]}, keys=["secret", "other"]) as running:
        body = {"input": "a dog", **LONG}
        for given in (
            {},
            {"authorization": "Bearer wrong"},
            {"authorization": "secret"},
            {"authorization": "Bearer"},
        ):
            status, headers, answer = running.ask("/predict", body, **given)
            assert (status, headers["www-authenticate"]) == (401, "Bearer")
            assert "secret" not in json.dumps(answer)
        assert running.ask("/predict", body, authorization="Bearer other")[0] == 200
        assert (running.ask("/health/live")[0], running.ask("/metrics")[0]) == (200, 401)


def test_overload_gives_429_and_nothing_else(monkeypatch):
    """Ten times as many requests as slots and queue hold: all are answered, with 200 or 429 and Retry-After."""
    gate, _ = slowed(monkeypatch, MODELS["rnn"])
    with (
        served({"rnn": MODELS["rnn"]}, SchedulerLimits(slots=2, queued_jobs=4)) as running,
        ThreadPoolExecutor(60) as pool,
    ):
        asked = [
            pool.submit(running.ask, "/predict", {"input": "a dog", **LONG}) for _ in range(60)
        ]
        until(lambda: sum(each.done() for each in asked) >= 60 - 2 - 4)
        gate.release(100_000)
        answers = [each.result(PATIENCE) for each in asked]
        counts = {status: sum(answer[0] == status for answer in answers) for status in (200, 429)}
        assert sum(counts.values()) == 60
        assert 1 <= counts[200] <= 6 + 2
        assert all(
            1 <= int(headers["retry-after"]) <= 60
            for status, headers, _ in answers
            if status == 429
        )
        text = running.ask("/metrics")[2]["text"]
        for status, count in counts.items():
            assert (
                f'regard_requests_total{{route="/predict",status="{status}"}} {count:.1f}' in text
            )
        assert running.engine.busy == 0


@pytest.mark.parametrize("size", [0, 200_000, 250_000])
def test_a_disconnected_client_frees_its_slot(monkeypatch, size):
    """Also after a body of this size, of which parts are so large that reading pauses."""
    gate, waits = slowed(monkeypatch, MODELS["rnn"])
    with served({"rnn": MODELS["rnn"]}, SchedulerLimits(slots=1)) as running:
        for stream in (False, True):
            waits.clear()
            connection = running.connect()
            body = json.dumps({"input": "a dog", "stream": stream, **LONG})
            connection.request(
                "POST", "/predict", body.ljust(size), {"content-type": "application/json"}
            )
            assert waits.wait(PATIENCE)
            if stream:
                gate.release(5)
                assert connection.getresponse().readline().startswith(b"data: ")
            connection.sock.close()
            connection.close()
            until(
                lambda: running.engine._cancelled or running.engine.busy == 0
            )  # between two steps, it goes at once
            gate.release(1)  # the step that runs now is the last one
            until(lambda: running.engine.busy == 0)
        gate.release(100_000)
        assert running.ask("/predict", {"input": "a dog", **LONG})[0] == 200
        assert (
            'regard_requests_cancelled_total{route="/predict"} 2.0'
            in running.ask("/metrics")[2]["text"]
        )


@pytest.mark.parametrize("leaves", [False, True], ids=["refused", "left"])
def test_no_input_of_a_request_goes_on_when_it_has_ended(monkeypatch, leaves):
    """One of two inputs is refused, or the client leaves: the other gives its slot back long before its end."""
    gate, waits = slowed(monkeypatch, MODELS["rnn"])
    texts = ["a dog", "the cat"] if leaves else ["a dog", "cat " * 2000]
    body = {"input": texts, "min_length": 2000, "max_length": 2000}
    steps = 0
    with served({"rnn": MODELS["rnn"]}, SchedulerLimits(slots=4)) as running:
        try:
            if leaves:
                connection = running.connect()
                kind = {"content-type": "application/json"}
                connection.request("POST", "/predict", json.dumps(body), kind)
                assert waits.wait(PATIENCE)
                connection.sock.close()
                connection.close()
                cancelled = 'regard_requests_cancelled_total{route="/predict"} 1.0'
                until(lambda: cancelled in running.ask("/metrics")[2]["text"])
            else:
                statuses: list[int] = []
                asking = threading.Thread(
                    target=lambda: statuses.append(running.ask("/predict", body)[0])
                )
                asking.start()
                # The long input is read beside the search, which tells of it between two steps.
                while asking.is_alive():
                    gate.release()
                    steps += 1
                    asking.join(0.05)
                assert statuses == [400]
            assert steps < 1000
            gate.release(5)
            until(lambda: "regard_slots_busy 0.0" in running.ask("/metrics")[2]["text"])
        finally:
            gate.release(100_000)


def test_a_deadline_gives_504(monkeypatch):
    gate, waits = slowed(monkeypatch, MODELS["rnn"])
    with served({"rnn": MODELS["rnn"]}) as running, released_late(gate, waits, 0.2):
        status, _, answer = running.ask("/predict", {"input": "a dog", "timeout_ms": 100, **LONG})
        assert (status, answer["title"]) == (504, "Gateway Timeout")


def test_a_deadline_may_be_a_header_of_any_api(monkeypatch, server):
    gate, waits = slowed(monkeypatch, MODELS["rnn"])
    asked = {
        "/predict": {"input": "a dog", "timeout_ms": 60_000, **LONG},
        "/v1/completions": {"prompt": "a dog", "min_length": 8},
    }
    with served({"rnn": MODELS["rnn"]}) as running:
        for path, body in asked.items():
            # The step that waits goes on, and not all of the output.
            with released_late(gate, waits, 0.2, steps=1):
                assert running.ask(path, body, x_timeout_ms="50")[0] == 504
        gate.release(100_000)
    for wrong in ("-1", "soon", "1.5"):
        status, _, answer = server.ask(
            "/predict", {"input": "a", "model": "rnn"}, x_timeout_ms=wrong
        )
        assert (status, answer["detail"].partition(";")[0]) == (
            400,
            "x-timeout-ms: wanted milliseconds, a whole number",
        )


def test_a_deadline_in_a_stream_is_its_last_event(monkeypatch):
    gate, waits = slowed(monkeypatch, MODELS["rnn"])
    asked = {"input": "a dog", "stream": True, "min_length": 200, "max_length": 200}
    missed = 0
    pieces: list[dict] = []
    with served({"rnn": MODELS["rnn"]}) as running:
        # On a busy machine a deadline may be over before the stream has begun: a later one then.
        while not pieces:
            assert missed < 5
            missed += 1
            seconds = 0.1 * 4**missed
            body = json.dumps({**asked, "timeout_ms": round(1000 * seconds)})
            connection = running.connect()
            waits.clear()
            connection.request("POST", "/predict", body, {"content-type": "application/json"})
            waits.wait(seconds)
            gate.release(20)  # some pieces
            time.sleep(seconds)
            gate.release(1)
            answer = connection.getresponse()
            assert answer.status in (200, 504)
            found = list(events(answer))
            pieces = found[:-1]
            connection.close()
        gate.release(100_000)
        last = found[-1]
        assert "".join(piece["text"] for piece in pieces)
        assert (last["error"]["status"], last["error"]["id"]) == (
            504,
            answer.headers["x-request-id"],
        )
        until(lambda: running.engine.busy == running.app.open == 0)
        assert (
            f'regard_deadlines_missed_total{{route="/predict"}} {missed:.1f}'
            in running.ask("/metrics")[2]["text"]
        )


def test_a_slow_reader_stalls_nobody():
    with served({"rnn": MODELS["rnn"]}) as running:
        body = json.dumps({"input": "a dog", "stream": True, "min_length": 400, "max_length": 400})
        with socket.create_connection(("127.0.0.1", running.port), timeout=PATIENCE) as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            slow.sendall((HEAD.format(len(body)) + body).encode())  # and never reads
            assert running.ask("/predict", {"input": "a dog", **LONG})[0] == 200
            until(lambda: running.engine.busy == 0)  # its output is complete, and waits for it


def test_a_server_that_stops_is_live_and_not_ready(server):
    with served({"rnn": MODELS["rnn"]}) as running:
        running.app.service.stopping = True
        running.engine.stop(1.0)
        assert (running.ask("/health/live")[0], running.ask("/health/ready")[0]) == (200, 503)
        status, headers, _ = running.ask("/predict", {"input": "a dog"})
        assert (status, headers["retry-after"]) == (503, "1")


def test_a_fault_of_the_server_is_a_problem_too(monkeypatch, caplog):
    with served({"rnn": MODELS["rnn"]}) as running:
        monkeypatch.setattr(type(running.engine), "submit", lambda self, job: 1 / 0)
        status, _, answer = running.ask("/predict", {"input": "a dog"})
        assert (status, answer["title"]) == (500, "Internal Server Error")
        assert "ZeroDivisionError" in caplog.text
