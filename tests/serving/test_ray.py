"""Models behind Ray Serve, with the real one: replicas, streams, clients that leave, a queue that is full."""

import http.client
import inspect
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("uvicorn", reason="needs the extra `serve`")
pytest.importorskip("ray", reason="needs the extra `ray`")

import regard
import support
from regard.core.errors import InvalidArgument
from regard.serving.ray import _without_prefix, deployment
from support.forged import GOLDEN
from support.ray_processes import PATIENCE, ray_environment

PROGRAM = Path(support.__file__).parent / "serve_with_ray.py"
MODEL = GOLDEN / "rnn"
ENDLESS = {
    "input": "abc",
    "stream": True,
    "sample": True,
    "seed": 1,
    "min_length": 100_000,
    "max_length": 100_000,
}


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with ray_environment() as environment:
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(MODEL), str(port)],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        try:
            assert process.stdout.readline() == "serving 2\n"
            yield port
            process.stdin.close()
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def request(
    port: int, path: str, body: dict | None = None
) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    given = None if body is None else json.dumps(body)
    connection.request(
        "GET" if body is None else "POST",
        f"/nmt{path}",
        given,
        {"content-type": "application/json"},
    )
    return connection, connection.getresponse()


def ask(port: int, path: str, body: dict | None = None) -> tuple[int, dict, str]:
    connection, answer = request(port, path, body)
    try:
        return answer.status, dict(answer.headers), answer.read().decode()
    finally:
        connection.close()


def until(found: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not found():
        assert time.monotonic() < end
        time.sleep(0.05)


def counts(port: int) -> list[dict[str, float]]:
    """What replicas say of themselves, in several answers at once: Ray chooses the replicas."""
    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda _: ask(port, "/metrics")[2], range(8)))
    return [
        {
            name: float(value)
            for name, value in re.findall(r"^(\w+)(?:{.*})? (\S+)$", text, re.MULTILINE)
        }
        for text in texts
    ]


def busy(replicas: list[dict[str, float]]) -> list[dict[str, float]]:
    return [each for each in replicas if each["regard_slots_busy"] > 0]


def cancelled(replica: dict[str, float]) -> float:
    # A counter is shown once it has counted.
    return replica.get("regard_requests_cancelled_total", 0)


@pytest.mark.slow
def test_replicas_answer_as_the_model_does(port):
    texts = ["abc", "hello", "x"]
    expected = regard.load(MODEL).predict(texts, max_length=20)
    with ThreadPoolExecutor(2) as pool:
        asked = [
            pool.submit(ask, port, "/predict", {"input": texts[:2], "max_length": 20})
            for _ in range(10)
        ]
        for each in asked:
            status, headers, answer = each.result()
            assert status == 200, answer
            assert headers["x-model-version"] == "rnn"
            assert [one["outputs"][0]["text"] for one in json.loads(answer)["results"]] == expected[
                :2
            ]
    assert ask(port, "/health/ready")[0] == 200
    status, _, answer = ask(port, "/predict", {"input": "a", "beam_size": 0})
    assert (status, "beam_size" in json.loads(answer)["detail"]) == (400, True)
    assert (
        ask(port, "/admin/models", {"name": "en"})[0] == 404
    )  # it would reach one replica of many


@pytest.mark.slow
def test_a_stream_arrives_in_pieces_and_ends_with_its_client(port):
    """An output that would take minutes: its first pieces arrive, and its slot is free when the client leaves."""
    # Another test may have left requests that are being cancelled.
    until(lambda: not busy(counts(port)))
    connection, answer = request(port, "/predict", ENDLESS)
    assert (answer.status, answer.headers["content-type"].partition(";")[0]) == (
        200,
        "text/event-stream",
    )
    pieces = [answer.readline() for _ in range(6)]
    assert all(json.loads(each.removeprefix(b"data: ")).keys() == {"text"} for each in pieces[::2])
    seen: list[dict[str, float]] = []
    until(lambda: seen.extend(busy(counts(port))) or seen)
    before = cancelled(seen[0])
    answer.close()
    connection.close()
    until(lambda: any(cancelled(each) == before + 1 for each in counts(port)))
    until(lambda: not busy(counts(port)))


@pytest.mark.slow
def test_a_full_queue_is_refused_by_the_engine(port):
    """Two replicas of two slots and four places each: of more requests some are refused, with the time to wait."""
    opened = [request(port, "/predict", {**ENDLESS, "timeout_ms": 60_000}) for _ in range(2)]
    with ThreadPoolExecutor(20) as pool:
        body = {**ENDLESS, "stream": False, "timeout_ms": 3_000}
        answers = [
            each.result() for each in [pool.submit(ask, port, "/predict", body) for _ in range(20)]
        ]
    for connection, answer in opened:
        answer.close()
        connection.close()
    assert {status for status, _, _ in answers} == {429, 504}
    assert all(int(headers["retry-after"]) >= 1 for status, headers, _ in answers if status == 429)


def test_arguments_shared_with_serve_have_its_defaults():
    own, serves = (inspect.signature(each).parameters for each in (deployment, regard.serve))
    shared = [name for name in own if name in serves]
    assert {
        "device",
        "keys",
        "slots",
        "queue",
        "max_body",
        "max_inputs",
        "drain_seconds",
        "cors",
    } < {*shared}
    assert [own[name].default for name in shared] == [serves[name].default for name in shared]


def test_arguments_that_contradict_each_other_are_refused():
    with pytest.raises(InvalidArgument, match="wanted replicas or autoscaling; got both"):
        deployment(MODEL, replicas=2, autoscaling={"max_replicas": 4})
    with pytest.raises(InvalidArgument, match="models: wanted at least one"):
        deployment({})


@pytest.mark.parametrize(
    ("prefix", "path", "wanted"),
    [
        ("", "/predict", "/predict"),
        ("/a", "/a/predict", "/predict"),
        ("/a", "/a", "/"),
        ("/a", "/predict", "/predict"),
    ],
)
def test_paths_are_those_below_the_prefix(prefix, path, wanted):
    assert _without_prefix({"type": "http", "root_path": prefix, "path": path})["path"] == wanted
