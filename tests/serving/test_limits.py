"""Each limit of a request at its boundary: what is just allowed, and what is one more. The application is called."""

import asyncio
import json
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("uvicorn", reason="needs the extra `serve`")

from regard.data import images
from regard.generation.search import LOOP_MICROSECONDS
from regard.inference import ray_data
from regard.serving.http import http1_protocol, request_handler, schemas, service
from regard.serving.http.app import Server
from regard.serving.http.keys import read_keys
from regard.serving.http.server import fastest_loop
from regard.serving.http.service import HttpLimits
from regard.serving.processes.supervised import Backoff
from regard.serving.routes import look
from regard.serving.scheduler import attention_ranges, jobs
from regard.serving.scheduler.scheduler import Scheduler, SchedulerLimits
from support.predictors import translator

BODY = 400  # bytes
JSON = ("content-type", "application/json")


@pytest.fixture(scope="module")
def app() -> Iterator[Server]:
    engine = Scheduler(SchedulerLimits(), "cpu")
    engine.load("en-de", "1", translator(decoder="rnn"))
    engine.start()
    yield Server(engine, limits=HttpLimits(body=BODY, inputs=3, image_body=4 * BODY))
    engine.stop(60.0)


def ask(
    app: Server,
    path: str,
    body: object = None,
    *headers: tuple[str, str],
    state=None,
    parts: int = 1,
):
    """Status, headers and content of an answer; a body is a POST, in so many messages."""
    given = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    named = [
        *headers,
        *([JSON] * (body is not None and all(name != "content-type" for name, _ in headers))),
    ]
    size = -(-len(given) // parts) or 1
    pieces = [given[at : at + size] for at in range(0, len(given), size)] or [b""]
    messages = [
        {"type": "http.request", "body": piece, "more_body": number < len(pieces)}
        for number, piece in enumerate(pieces, 1)
    ]
    sent = []

    async def receive():
        if messages:
            return messages.pop(0)
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http", "method": "GET" if body is None else "POST", "path": path, "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in named], "client": ("127.0.0.1", 1),
        "state": {} if state is None else state,
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    content = b"".join(message.get("body", b"") for message in sent[1:])
    found = [(name.decode(), value.decode()) for name, value in sent[0]["headers"]]
    assert len(dict(found)) == len(found), "a header twice"
    return sent[0]["status"], dict(found), content.decode()


def padded(asked: dict, size: int) -> bytes:
    """A request in so many bytes."""
    content = json.dumps(asked).encode()
    return content + b" " * (size - len(content))


def test_headers(app):
    """32 KiB of names and values."""
    status, _, _ = ask(app, "/health/live", None, ("x-long", "a" * (32768 - 6)))
    assert status == 200
    status, _, content = ask(app, "/health/live", None, ("x-long", "a" * (32768 - 5)))
    assert status == 431
    assert "headers: wanted at most 32,768 bytes" in content


@pytest.mark.parametrize(("length", "kept"), [(1, True), (64, True), (65, False)])
def test_names_of_requests(app, length, kept):
    _, headers, _ = ask(app, "/health/live", None, ("x-request-id", "a" * length))
    assert (headers["x-request-id"] == "a" * length) is kept
    assert len(headers["x-request-id"]) == (length if kept else 32)


@pytest.mark.parametrize(
    ("before", "closed"), [(0, False), (998, False), (999, True), (1000, True)]
)
def test_requests_of_a_connection(app, before, closed):
    _, headers, _ = ask(app, "/health/live", None, state={"requests": before})
    assert ("connection" in headers) is closed


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("announced", [False, True])
def test_bytes_of_a_body(app, parts, announced):
    asked = {"input": "a dog", "max_length": 2}
    for size, wanted in ((BODY, 200), (BODY + 1, 413)):
        length = [("content-length", str(size))] * announced
        status, _, content = ask(app, "/predict", padded(asked, size), *length, parts=parts)
        assert status == wanted
    assert "body: wanted at most 400 bytes; got more" in content


def test_inputs_of_a_request(app):
    for count, wanted in ((0, 400), (1, 200), (3, 200), (4, 400)):
        status, _, content = ask(app, "/predict", {"input": ["a dog"] * count, "max_length": 2})
        assert status == wanted
    assert "input: wanted 1 to 3; got 4" in content


@pytest.mark.parametrize(
    ("given", "wanted"),
    [("1" + "0" * 8, 200), ("1" + "0" * 9, 400), ("0", 400), ("1.5", 400), ("-1", 400)],
)
def test_milliseconds_of_a_request(app, given, wanted):
    asked = {"input": "a dog", "max_length": 2}
    assert ask(app, "/predict", asked, ("x-timeout-ms", given))[0] == wanted


def test_the_shorter_of_two_timeouts_counts(app, monkeypatch):
    seconds = []
    right = request_handler.Service.engine_client

    def noted(self, call, model, timeout_ms=None):
        client = right(self, call, model, timeout_ms)
        seconds.append(
            None if client.deadline is None else round(client.deadline - time.monotonic())
        )
        return client

    monkeypatch.setattr(request_handler.Service, "engine_client", noted)
    asked = {"input": "a dog", "max_length": 2}
    for own, header in ((None, None), (5000, None), (None, "7000"), (5000, "7000"), (7000, "5000")):
        body = asked if own is None else asked | {"timeout_ms": own}
        assert ask(app, "/predict", body, *([("x-timeout-ms", header)] if header else []))[0] == 200
    assert seconds == [None, 5, 7, 5, 5]


def test_large_bodies_at_a_time(app, monkeypatch):
    """Sixteen of more than the limit of a text, where images may be sent; those of texts are not counted."""
    monkeypatch.setattr(app.service, "body_limit", lambda route: 4 * BODY)
    asked = {"input": "a dog", "max_length": 2}
    for open_, size, wanted in ((15, BODY + 1, 200), (16, BODY + 1, 429), (16, BODY, 200)):
        monkeypatch.setattr(app.service, "large_bodies", open_)
        assert ask(app, "/predict", padded(asked, size), parts=2)[0] == wanted
        assert app.service.large_bodies == open_


def test_large_lines_are_counted_as_large_bodies(app, monkeypatch):
    line = ("content-type", "application/x-ndjson")
    body = json.dumps({"input": "a dog", "max_length": 2}).encode() + b"\n"
    for limit, open_, wanted in ((BODY, 16, 200), (BODY + 1, 15, 200), (BODY + 1, 16, 429)):
        monkeypatch.setattr(app.service, "body_limit", lambda route, limit=limit: limit)
        monkeypatch.setattr(app.service, "large_bodies", open_)
        assert ask(app, "/predict", body, line)[0] == wanted
        assert app.service.large_bodies == open_


@pytest.mark.parametrize(
    ("changes", "wanted", "message"),
    [
        ({"n": 128}, 200, ""),
        ({"n": 129}, 400, "n: wanted 1 to 128; got 129"),
        ({"n": 0}, 400, "n: wanted 1 to 128; got 0"),
        ({"best_of": 128}, 200, ""),
        ({"best_of": 129}, 400, "best_of: wanted n = 1 to 128; got 129"),
        ({"n": 3, "best_of": 2}, 400, "best_of: wanted n = 3 to 128; got 2"),
        ({"stop": ["a", "b", "c", "d"]}, 200, ""),
        ({"stop": ["a", "b", "c", "d", "e"]}, 400, "stop: wanted at most 4 strings"),
    ],
)
def test_choices_and_stops_of_openai(app, changes, wanted, message):
    status, _, content = ask(
        app, "/v1/completions", {"model": "en-de", "prompt": "a dog", "max_tokens": 1, **changes}
    )
    assert status == wanted, content
    assert message in json.loads(content).get("error", {"message": ""})["message"]


@pytest.mark.parametrize(("count", "wanted"), [(0, 200), (31, 200), (32, 400), (-1, 400)])
def test_alternatives_of_libretranslate(app, count, wanted):
    asked = {"q": "a dog", "source": "auto", "target": "de", "alternatives": count}
    assert ask(app, "/translate", asked)[0] == wanted


def test_rates_of_keys():
    keys = read_keys(["one rate=5/s", "two rate=6/min", "three rate=999999999/h concurrent=2"])
    assert [key.rate for key in keys] == [(5, 1), (6, 60), (999999999, 3600)]
    assert [(key.name, key.concurrent, key.admin) for key in keys] == [
        ("key-1", None, False), ("key-2", None, False), ("key-3", 2, False)
    ]  # fmt: skip


def test_routes_without_a_key_show_nothing_of_a_model(app):
    """Health, and the files of pages, which are the same on every server."""
    assert {route.path for route in app.table.routes if not route.needs_key} == {
        "/", "/docs", "/docs/{file}", "/health", "/health/live", "/health/ready", "/studio/page/{file}",
        "/studio/{file}", "/v2", "/v2/health/live", "/v2/health/ready",
    }  # fmt: skip


def test_routes_that_take_an_input_take_large_ones(app):
    """Images; other bodies, of texts, are as large as a text may be."""
    native = {"/predict", "/caption", "/classify", "/embed", "/score", "/look"}
    studio = {
        f"/studio/{name}" for name in ("look", "prepare", "watch", "export", "beam", "alternatives")
    }
    assert {route.path for route in app.table.routes if route.takes_files} == native | studio
    assert {
        route.path for route in app.table.routes if "multipart/form-data" in route.accepts
    } == native
    lines = {route.path for route in app.table.routes if "application/x-ndjson" in route.accepts}
    assert lines == native - {"/look"}


@pytest.mark.parametrize("path", ["/", "/docs", "/openapi.json", "/health/live", "/none"])
def test_a_page_has_its_own_policy_in_place_of_the_one_of_every_answer(app, path):
    _, headers, _ = ask(app, path)
    own = path in ("/", "/docs")
    assert ("script-src" in headers["content-security-policy"]) is own
    assert headers["x-content-type-options"] == "nosniff"


def test_the_event_loop_is_the_fastest_that_is_installed():
    if find_spec("uvloop") is None:
        assert fastest_loop() is None
    else:
        loop = fastest_loop()()
        assert type(loop).__module__ == "uvloop"
        loop.close()


@pytest.mark.parametrize(("size", "refused"), [(BODY, False), (BODY + 1, True)])
def test_bytes_of_the_texts_of_a_request(app, monkeypatch, size, refused):
    """Beside images, for which a body may be larger, texts are as large as without them."""
    monkeypatch.setattr(app.service, "body_limit", lambda route: 4 * BODY)
    asked = {
        "input": ["ä" * (BODY // 4), "a" * (size - BODY // 2)],
        "max_length": 2,
        "truncate": True,
    }
    status, _, content = ask(app, "/predict", json.dumps(asked, ensure_ascii=False).encode())
    assert status == (413 if refused else 200), content
    assert ("input: wanted texts of at most 400 bytes; got 401" in content) is refused


@pytest.mark.parametrize(
    "sentence",
    [
        f"at most {images.MAX_PIXELS:,} pixels",
        f"`--max-image-body` bytes ({HttpLimits.image_body >> 20} MiB)",
        f"JSON has at most {look.MAX_JSON_WEIGHTS:,} weights",
        f"At most {jobs.MAX_ATTENTION:,} weights for an input and {schemas.MAX_REQUEST_ATTENTION:,} for a request",
        f"most {attention_ranges.MAX_WEIGHTS:,} weights, {attention_ranges.MAX_WEIGHTS * 4 >> 20} MiB",
        f"have at most {request_handler.HEADER_BYTES >> 10} KiB, "
        f"bodies must arrive within {HttpLimits.body_seconds:.0f} s",
        f"Headers must arrive within {http1_protocol.HEADER_SECONDS:.0f} s",
        f"connection is closed after {request_handler.REQUESTS} requests",
        f"JSON is nested at most {service.DEPTH} deep",
        f"started after pauses of up to {Backoff.MOST:.0f} seconds",
        f"{['', 'one', 'two', 'three', 'four'][ray_data.ATTEMPTS]} times at most",
        f"a request waits at most {LOOP_MICROSECONDS // 1000} ms",
    ],
)
def test_limits_are_those_of_the_page_about_serving(sentence):
    page = Path(__file__).parents[2] / "docs" / "serve.md"
    assert sentence in " ".join(page.read_text("utf-8").split())


def test_limits_that_are_powers_of_two_are_so_exactly():
    """A page shows some of them in MiB."""
    exact = [
        attention_ranges.MAX_WEIGHTS,
        look.MAX_JSON_WEIGHTS,
        jobs.MAX_ATTENTION,
        request_handler.HEADER_BYTES,
        images.MAX_PIXELS,
    ]
    assert exact == [2**22, 2**18, 2**18, 2**15, 2**26]
    assert (HttpLimits.body, HttpLimits.image_body) == (2**20, 2**24)
