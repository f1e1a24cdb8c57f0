"""`regard serve` as a process of its own: starts, answers, drains at SIGTERM, ends with 0."""

import http.client
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys

import pytest

pytest.importorskip("uvicorn", reason="needs the extra `serve`")

import regard
from regard.core.errors import InvalidArgument
from regard.serving.http import server as http_server
from regard.serving.processes import supervisor
from support.forged import GOLDEN
from support.predictors import translator
from support.servers import until

MODEL = GOLDEN / "transformer"
PATIENCE = 120.0


def started(*arguments: str) -> tuple[subprocess.Popen, int]:
    command = [sys.executable, "-m", "regard", "serve", f"en={MODEL}", "--port", "0", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if said := re.search(r"serving en on http://127\.0\.0\.1:(\d+)", line):
            return process, int(said[1])
    raise AssertionError("it did not start")


def asking(port: int, body: dict) -> http.client.HTTPConnection:
    """A connection on which a request was sent."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request("POST", "/predict", json.dumps(body), {"content-type": "application/json"})
    return connection


def ask(port: int, body: dict) -> tuple[int, dict]:
    connection = asking(port, body)
    try:
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def is_busy(port: int) -> bool:
    """Whether the server computes an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return re.search(r"^regard_slots_busy [1-9]", text, re.MULTILINE) is not None


def readable(connection: http.client.HTTPConnection) -> bool:
    """Whether an answer has come."""
    found, _, _ = select.select([connection.sock], [], [], 0)
    return bool(found)


def test_a_server_answers_and_drains():
    process, port = started("--drain-seconds", "60")
    try:
        model = regard.load(MODEL)
        texts = ["abc", "hello", "x"]
        status, answer = ask(port, {"input": texts})
        assert (status, answer["model"], answer["version"]) == (200, "en", "transformer")
        assert [each["outputs"][0]["text"] for each in answer["results"]] == model.predict(texts)
        with pytest.raises(
            InvalidArgument, match="port: wanted an address and a port that are free"
        ):
            regard.serve(MODEL, port=port)
        process.send_signal(signal.SIGHUP)  # all models are loaded anew
        assert any(
            "model en: 'transformer' replaced by 'transformer'" in line for line in process.stderr
        )
        assert ask(port, {"input": texts})[1]["results"] == answer["results"]
        long = {"input": texts * 10, "min_length": 150, "max_length": 150}
        connections = [asking(port, long) for _ in range(3)]
        # The first may be answered already; all are connected, and must get an answer.
        until(lambda: is_busy(port) or readable(connections[0]))
        process.send_signal(signal.SIGTERM)
        statuses = []
        for connection in connections:
            statuses.append(connection.getresponse().status)
            connection.close()
        assert process.wait(PATIENCE) == 0
        assert set(statuses) <= {200, 503}
        assert 200 in statuses
        assert "without an answer" not in process.stderr.read()
    finally:
        process.kill()
        process.stderr.close()


@pytest.mark.slow
def test_a_client_that_does_not_read_its_answer_does_not_hold_up_the_end():
    process, port = started("--drain-seconds", "1")
    body = json.dumps(
        {"input": ["x" * 180] * 24, "attention": True, "min_length": 200, "max_length": 200}
    ).encode()
    head = (
        "POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    try:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.sendall(head.encode() + body)
            assert client.recv(100).startswith(b"HTTP/1.1 200")  # and no more of many megabytes
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
            assert any("clients did not read their answers" in line for line in process.stderr)
    finally:
        process.kill()
        process.stderr.close()


@pytest.mark.parametrize("host", ["nowhere.invalid", "1.2.3.4"])
def test_an_address_of_others_is_refused(host):
    with pytest.raises(InvalidArgument, match="port: wanted an address and a port that are free"):
        regard.serve(MODEL, host=host, port=0)


@pytest.mark.parametrize("host", ["a\0b", "\ud800", "", " "])
def test_a_host_that_is_no_name_is_refused(host):
    with pytest.raises(InvalidArgument, match="host: wanted a name or an address"):
        regard.serve(MODEL, host=host, port=0)


def refused(*arguments: str, keys: str | None = None) -> str:
    """What `regard serve` says before it ends with 2."""
    environment = {name: value for name, value in os.environ.items() if name != "REGARD_API_KEYS"}
    if keys is not None:
        environment["REGARD_API_KEYS"] = keys
    command = [sys.executable, "-m", "regard", "serve", "--port", "0", *arguments]
    ended = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert ended.returncode == 2, ended.stderr
    assert "Traceback" not in ended.stderr
    return ended.stderr


def test_a_host_from_an_empty_variable_does_not_open_all_interfaces():
    assert "host: wanted a name or an address; got ''" in refused(str(MODEL), "--host", "")


@pytest.mark.parametrize("keys", [" , ,", "", ",", " "])
def test_blank_keys_of_the_environment_do_not_let_everyone_in(keys):
    assert "REGARD_API_KEYS: wanted keys, separated by commas" in refused(str(MODEL), keys=keys)


@pytest.mark.parametrize("keys", [[""], [" ", "\t"], ["# a comment"]])
def test_keys_that_hold_none_are_refused(keys):
    with pytest.raises(InvalidArgument, match="keys: wanted at least one key"):
        regard.serve(MODEL, port=0, keys=keys)


def test_a_text_is_no_list_of_keys():
    with pytest.raises(InvalidArgument, match="keys: wanted a list of keys") as told:
        regard.serve(MODEL, port=0, keys="abc")
    assert "abc" not in str(told.value)


@pytest.mark.parametrize("name", ["org/model", "/", "", ".", "..", "a\nb"])
def test_a_name_that_is_no_part_of_an_address_is_refused(name):
    with pytest.raises(InvalidArgument, match=r"models: wanted names of models .* NAME=PATH"):
        regard.serve({name: MODEL}, port=0)


def test_a_name_with_a_slash_is_refused_by_the_command_line():
    assert "got 'org/en'. Give another name: NAME=PATH." in refused(f"org/en={MODEL}")


@pytest.mark.parametrize(
    ("models", "devices", "wanted"),
    [
        (["a=runs/x"], ["auto"], {"a": ("runs/x", ["auto"])}),
        (
            ["a=runs/x", "b=y@cpu"],
            ["cuda:0", "cuda:1"],
            {"a": ("runs/x", ["cuda:0", "cuda:1"]), "b": ("y", ["cpu"])},
        ),
        (["a=runs/x@cuda:0,cuda:1"], ["cpu"], {"a": ("runs/x", ["cuda:0", "cuda:1"])}),
        (
            ["a=runs/me@home", "b=x@cpu/1"],
            ["cpu"],
            {"a": ("runs/me@home", ["cpu"]), "b": ("x@cpu/1", ["cpu"])},
        ),
        (["runs/x@cuda"], ["auto"], {"x": ("runs/x", ["cuda"])}),
    ],
)
def test_models_are_placed_on_devices_by_the_command_line(models, devices, wanted, monkeypatch):
    from regard.cli.serve import serve

    asked: list = []
    monkeypatch.setattr(
        regard, "serve", lambda named, **options: asked.append((named, options["device"]))
    )
    serve(models, device=devices)
    assert asked == [
        (
            {name: path for name, (path, _) in wanted.items()},
            {n: own for n, (_, own) in wanted.items()},
        )
    ]


@pytest.mark.parametrize(("queue", "lines"), [(1, 1), (7, 3), (64, 32)])
def test_a_server_has_the_limits_that_it_was_given(monkeypatch, queue, lines):
    """Requests of many lines have half of the queue, so that others find room."""
    served = []

    async def serve_http(app, engine, listening, drain_seconds, tls, ending):
        served.append(
            (app.service.limits, engine.limits, listening.getsockname(), drain_seconds, tls)
        )
        listening.close()
        engine.stop()

    monkeypatch.setattr(http_server, "serve_http", serve_http)
    told = []
    regard.serve(
        {"en": translator()}, port=0, slots=3, queue=queue, max_body=500, max_image_body=700, max_inputs=9,
        drain_seconds=2.5, on_ready=told.append,
    )  # fmt: skip
    ((http, own, (host, port), drain, tls),) = served
    assert (http.body, http.inputs, http.image_body, http.bulk_lines) == (500, 9, 700, lines)
    assert (own.slots, own.queued_jobs, own.queued_tokens) == (3, queue, 256 * queue)
    assert (host, drain, tls, told) == ("127.0.0.1", 2.5, None, [f"http://127.0.0.1:{port}/"])


@pytest.mark.parametrize(("queue", "workers", "lines"), [(64, 2, 16), (64, 3, 10), (3, 2, 1)])
def test_front_ends_have_the_limits_that_the_server_was_given(monkeypatch, queue, workers, lines):
    started = []
    monkeypatch.setattr(
        supervisor,
        "run_processes",
        lambda config, listening, count, ready: started.append((config, count, listening.close())),
    )
    options = {
        "slots": 3,
        "max_body": 500,
        "max_image_body": 700,
        "max_inputs": 9,
        "drain_seconds": 2.5,
    }
    regard.serve({"en": str(GOLDEN)}, port=0, device="cpu", queue=queue, workers=workers, **options)
    ((config, count, _),) = started
    assert (config.models, config.devices, count) == ({"en": str(GOLDEN)}, {"en": ["cpu"]}, workers)
    assert (config.slots, config.queue, config.bulk_lines) == (3, queue, lines)
    assert (config.max_body, config.max_image_body, config.max_inputs) == (500, 700, 9)
    assert (config.drain_seconds, config.tls, config.cors, config.keys) == (2.5, None, [], [])
