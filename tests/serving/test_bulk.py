"""Requests of many lines over real sockets: one line in, one line out, in order, and some at a time."""

import asyncio
import base64
import json
import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("uvicorn", reason="needs the extra `serve`")

from regard.serving.http.bulk import split_lines
from regard.serving.http.routing import NDJSON
from regard.serving.http.service import HttpLimits
from regard.serving.routes.native import NativeRoutes
from regard.serving.scheduler.scheduler import SchedulerLimits
from support.captioners import captioner
from support.predictors import classifier, language_model, translator
from support.servers import PATIENCE, Running, served, slowed, until

MODELS = {"rnn": translator(decoder="rnn"), "labels": classifier(), "lines": language_model()}
TEXTS = ["the cat sat", "a dog", "the red mat", "a catalogue of words", ""]
LONG = {"min_length": 8, "max_length": 12}
HEAD = "POST {} HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with served(MODELS) as running:
        yield running


def bulk(server: Running, path: str, lines: list[object]) -> list[dict]:
    """The answers to lines: JSON values, or bytes as they are."""
    body = b"\n".join(
        line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines
    )
    status, headers, answer = server.ask(path, body + b"\n", content_type=NDJSON)
    assert (status, headers["content-type"]) == (200, NDJSON)
    assert answer["text"].endswith("\n")
    return [json.loads(line) for line in answer["text"].splitlines()]


def test_lines_are_answered_as_requests_are(server):
    """In order, each with its own model and options."""
    chance, asked = random.Random(0), []
    for _ in range(60):
        model = chance.choice(["rnn", "lines", "labels"])
        options = (
            {}
            if model == "labels"
            else {"max_length": chance.choice([1, 5, 20]), "beam_size": chance.choice([1, 3])}
        )
        asked.append({"model": model, "input": chance.choice(TEXTS[:4]), **options})
    answers = bulk(server, "/predict", asked)
    assert [each["id"] for each in answers] == [
        f"{server.last_id}-{number}" for number in range(1, 61)
    ]
    for line, answer in zip(asked, answers, strict=True):
        options = {name: value for name, value in line.items() if name not in ("model", "input")}
        assert (answer["model"], answer["version"]) == (line["model"], "7")
        (result,) = answer["results"]
        assert (
            result["outputs"][0]["text"]
            == MODELS[line["model"]].predict([line["input"]], **options)[0]
        )


def test_every_route_for_inputs_takes_lines(server):
    for path, more, key in (
        ("/classify", {"model": "labels"}, "labels"),
        ("/embed", {"model": "rnn"}, "embedding"),
        ("/score", {"model": "rnn", "target": "a mat"}, "log_probability"),
    ):
        asked = [{"input": text, **more} for text in TEXTS[:3]]
        answers = bulk(server, path, asked)
        for line, answer in zip(asked, answers, strict=True):
            alone = server.ask(path, line)[2]["results"][0][key]
            found = answer["results"][0][key]
            if key == "labels":
                alone, found = (
                    [each["probability"] for each in labels] for labels in (alone, found)
                )
            assert found == pytest.approx(alone, abs=1e-5)


def test_a_bad_line_does_not_end_the_others(server):
    good = {"model": "rnn", "input": "a dog", "max_length": 3}
    bad = {
        b"{": "got Input data was truncated",
        b"": "got Input data was truncated",
        b"[" * 150_000: "nested at most 32 deep",
        b'"a dog"': "Expected `object`, got `str`",
        b'{"input": "x", "model": "none"}': "model: wanted one of",
        b'{"input": "x", "model": "rnn", "beam": 3}': "unknown field `beam`",
        b'{"input": "x", "model": "rnn", "beam_size": 0}': "decode.beam_size: wanted",
        b'{"input": "\xff", "model": "rnn"}': "body: wanted a request of this route",
        b'{"input": ["x", "y"], "model": "rnn"}': "input: wanted one in a line; got 2. Send them in several lines.",
        b'{"input": "x", "model": "rnn", "stream": true}': "stream: wanted false in a line of many",
        b"x" * ((1 << 20) + 1): "line: wanted at most 1,048,576 bytes; got more",
    }
    answers = bulk(server, "/predict", [line for each in bad for line in (good, each)] + [good])
    wanted = MODELS["rnn"].predict(["a dog"], max_length=3)[0]
    assert len(answers) == 2 * len(bad) + 1
    for answer in answers[::2]:
        assert answer["results"][0]["outputs"][0]["text"] == wanted
    for number, (answer, detail) in enumerate(
        zip(answers[1::2], bad.values(), strict=True), start=1
    ):
        assert answer["status"] in (400, 404, 413)
        assert answer["id"] == f"{server.last_id}-{2 * number}"
        assert detail in answer["detail"]


def test_images_in_lines():
    captions = captioner("rnn")
    image = {"image": "R0lGODdhCAAIAIEAAMg8KAAAAAAAAAAAACwAAAAACAAIAAAIDwABCBxIsKDBgwgTKkwYEAA7"}
    with served({"captions": captions}, limits=HttpLimits(body=500, image_body=2000)) as server:
        answers = bulk(
            server,
            "/predict",
            [{"input": image}, {"input": "x.png"}, {"input": {"image": "A" * 1200}}],
        )
        assert [each.get("status") for each in answers] == [None, 400, 400]
        vectors = bulk(server, "/embed", [{"input": image}] * 3)
        (alone,) = server.ask("/embed", {"input": image})[2]["results"]
        assert all(
            each["results"][0]["embedding"] == pytest.approx(alone["embedding"]) for each in vectors
        )
        (answer,) = bulk(server, "/caption", [image])
        assert (
            answer["results"][0]["outputs"][0]["text"]
            == answers[0]["results"][0]["outputs"][0]["text"]
        )
        assert base64.b64decode(image["image"]).startswith(b"GIF")
        until(lambda: server.app.service.large_bodies == 0)


class Duplex:
    """A client that reads answers while it sends lines."""

    def __init__(self, server: Running, path: str = "/predict", first: bytes = b"") -> None:
        self.socket = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
        self.socket.sendall(HEAD.format(path).encode() + first)
        self.file = self.socket.makefile("rb")
        self.head = False

    def send(self, *lines: object) -> None:
        content = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        self.socket.sendall(b"%x\r\n%s\r\n" % (len(content), content))

    def end(self) -> None:
        self.socket.sendall(b"0\r\n\r\n")

    def line(self) -> dict | None:
        """The next answer; None at the end."""
        while not self.head:
            self.head = self.file.readline() == b"\r\n"
        size = int(self.file.readline(), 16)
        content = self.file.read(size + 2)
        return json.loads(content) if size else None

    def close(self) -> None:
        self.file.close()
        self.socket.close()


def test_a_line_is_answered_before_the_next_is_sent(server):
    client = Duplex(server)
    for text in TEXTS[:3]:
        client.send({"model": "rnn", "input": text, **LONG})
        assert (
            client.line()["results"][0]["outputs"][0]["text"]
            == MODELS["rnn"].predict([text], **LONG)[0]
        )
    client.end()
    assert client.line() is None
    client.close()


def test_a_full_queue_is_waited_for():
    """More lines than the queue holds: none is refused, though requests of other clients are."""
    with served({"rnn": MODELS["rnn"]}, SchedulerLimits(slots=2, queued_jobs=3)) as server:
        answers = bulk(server, "/predict", [{"input": "a dog", **LONG}] * 30)
        wanted = MODELS["rnn"].predict(["a dog"], **LONG)[0]
        assert [each["results"][0]["outputs"][0]["text"] for each in answers] == [wanted] * 30


def test_lines_leave_room_for_others(monkeypatch):
    """Of all requests of many lines together, only some lines are in the queue; the rest is not even read."""
    gate, waits = slowed(monkeypatch, MODELS["rnn"])
    limits = HttpLimits(bulk_lines=3)
    with served(
        {"rnn": MODELS["rnn"]}, SchedulerLimits(slots=2, queued_jobs=4), limits=limits
    ) as server:
        line = {"input": "a dog", **LONG}
        answers = []

        def ask() -> None:
            client = Duplex(server)
            reading = threading.Thread(target=lambda: answers.extend(iter(client.line, None)))
            reading.start()
            for _ in range(6):
                client.send(*[line] * 4)
            client.end()
            reading.join(PATIENCE)
            client.close()

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        assert waits.wait(PATIENCE)
        until(lambda: server.engine.busy == 3)
        alone = threading.Thread(target=lambda: answers.append(server.ask("/predict", line)[2]))
        alone.start()  # finds room in the queue
        until(lambda: server.engine.busy == 4)
        gate.release(1_000_000)
        for thread in (*threads, alone):
            thread.join(PATIENCE)
        assert len(answers) == 2 * 24 + 1
        assert all("results" in each for each in answers)


def test_a_body_of_any_size_is_not_read_ahead(monkeypatch):
    gate, waits = slowed(monkeypatch, MODELS["rnn"])
    with served({"rnn": MODELS["rnn"]}, limits=HttpLimits(bulk_lines=4)) as server:
        client, content = (
            Duplex(server),
            json.dumps({"input": "a dog", "max_length": 1, "prefix": ""}).encode(),
        )
        line = content + b" " * (200_000 - len(content)) + b"\n"
        count, sent = 100, []  # 20 MB: more than the buffers of sockets hold

        def send() -> None:
            for _ in range(count):
                client.socket.sendall(b"%x\r\n%s\r\n" % (len(line), line))
                sent.append(1)
            client.end()

        thread = threading.Thread(target=send)
        thread.start()
        assert waits.wait(PATIENCE)
        until(lambda: server.engine.busy == 4)
        until(lambda: len(sent) >= 6)
        gate.release(3 * 4)  # some more, and the sender goes on
        assert len(sent) < count
        gate.release(1_000_000)
        answers = list(iter(client.line, None))
        thread.join(PATIENCE)
        assert len(answers) == count
        client.close()


def test_a_client_that_leaves_frees_its_slots(monkeypatch):
    gate, waits = slowed(monkeypatch, MODELS["rnn"])
    with served({"rnn": MODELS["rnn"]}, SchedulerLimits(slots=2)) as server:
        for ends in (False, True):
            waits.clear()
            client = Duplex(server)
            client.send(*[{"input": "a dog", **LONG}] * 5)
            if ends:
                client.end()
            assert waits.wait(PATIENCE)
            until(lambda: server.engine.busy == 5)
            client.close()
            until(lambda: len(server.engine._cancelled) == 5)  # while the engine waits in a step
            gate.release(
                2
            )  # a step of each slot, which is a search of its own where PyTorch executes the decoder
            until(lambda: server.engine.busy == 0)
        gate.release(1_000_000)
        until(lambda: server.app.open == 0)
        assert server.app.service.bulk_slots._value == HttpLimits().bulk_lines
        assert server.ask("/predict", {"input": "a dog", **LONG})[0] == 200


def test_a_body_that_does_not_go_on_is_ended():
    with served({"rnn": MODELS["rnn"]}, limits=HttpLimits(body_seconds=0.3)) as server:
        # All at once: between two parts, a busy machine may let more than the time pass.
        line = json.dumps({"input": "a dog", "max_length": 2}).encode() + b"\n"
        first = b"%x\r\n%s\r\n" % (len(line), line) + b'5\r\n{"inp\r\n'
        client = Duplex(server, first=first)
        assert "results" in client.line()
        assert "body: wanted more of it within 0.3 s" in client.line()["detail"]
        assert client.line() is None
        client.close()


def test_a_server_that_stops_ends_with_a_problem():
    with served({"rnn": MODELS["rnn"]}) as server:
        client = Duplex(server)
        client.send({"input": "a dog", "max_length": 2})
        assert "results" in client.line()
        server.engine.stop(1.0)
        client.send({"input": "a dog"}, {"input": "a dog"})
        assert client.line()["status"] == 503
        assert client.line() is None
        client.close()


def resident() -> int:
    """Bytes of this process in memory."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise AssertionError


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_a_line_of_100_megabytes_is_not_kept(server):
    client, chunk = Duplex(server), b"x" * (1 << 20)
    client.send({"model": "rnn", "input": "a dog", "max_length": 2})
    assert "results" in client.line()
    before = resident()
    for _ in range(100):
        client.socket.sendall(b"%x\r\n%s\r\n" % (len(chunk), chunk))
    client.socket.sendall(b"1\r\n\n\r\n")
    assert client.line()["status"] == 413
    assert resident() - before < 50 << 20
    client.send({"model": "rnn", "input": "a dog", "max_length": 2})
    client.end()
    assert "results" in client.line()
    assert client.line() is None
    client.close()


def test_lines_are_counted(server):
    def counted(name: str) -> float:
        lines = server.ask("/metrics")[2]["text"].splitlines()
        return float(next((line.split()[-1] for line in lines if line.startswith(name)), 0))

    names = [
        'regard_inputs_total{model="rnn"}',
        'regard_requests_total{route="/predict",status="200"}',
    ]
    before = [counted(name) for name in names]
    answers = bulk(
        server, "/predict", [{"model": "rnn", "input": "a dog", "max_length": 2}] * 5 + [b"{"]
    )
    assert len(answers) == 6
    until(lambda: counted(names[1]) == before[1] + 1)
    assert counted(names[0]) == before[0] + 5


def test_other_routes_take_no_lines(server):
    assert server.ask("/v1/completions", b"{}", content_type=NDJSON)[0] == 415
    with served({"rnn": MODELS["rnn"]}, keys=["secret"]) as closed:
        assert closed.ask("/predict", b"{}", content_type=NDJSON)[0] == 401


def test_lines_are_split_alike_however_they_arrive():
    async def split(chunks: list[bytes], most: int) -> list[bytes | None]:
        async def arriving():
            for chunk in chunks:
                yield chunk

        return [line async for line in split_lines(arriving(), most)]

    for seed in range(200):
        chance = random.Random(seed)
        lines = [
            bytes(chance.choices(b"ab\r", k=chance.randrange(9)))
            for _ in range(chance.randrange(6))
        ]
        body = b"\n".join(lines) + chance.choice([b"", b"\n"])
        places = sorted(chance.choices(range(len(body) + 1), k=chance.randrange(8)))
        chunks = [
            body[first:last] for first, last in zip([0, *places], [*places, len(body)], strict=True)
        ]
        wanted = body.split(b"\n")
        wanted = wanted[:-1] if not wanted[-1] else wanted
        assert asyncio.run(split(chunks, 5)) == [
            line if len(line) <= 5 else None for line in wanted
        ]


def test_a_fault_of_the_server_ends_one_line(server, monkeypatch, caplog):
    real = NativeRoutes.predict

    async def predict(self, call):
        if b"the cat" in call.body:
            raise KeyError("lost")
        return await real(self, call)

    monkeypatch.setattr(NativeRoutes, "predict", predict)
    with served({"rnn": MODELS["rnn"]}) as running:
        answers = bulk(
            running,
            "/predict",
            [{"input": text, "max_length": 3} for text in ("a", "the cat", "a dog")],
        )
    assert ["results" in each for each in answers] == [True, False, True]
    assert answers[1]["status"] == 500
    assert "lost" not in json.dumps(answers[1])
    assert "line" in caplog.text
