"""Malformed, half-closed, upgraded and pipelined HTTP over real sockets: the right status, and never a traceback.

Every case runs with both parsers: h11 on the event loop of asyncio, httptools on that of uvloop.
"""

import json
import logging
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

pytest.importorskip("uvicorn", reason="needs the extra `serve`")

from regard.serving.http import http1_protocol
from regard.serving.http.server import fastest_loop
from support.predictors import translator
from support.servers import PATIENCE, Running, served, slowed, until

MODEL = translator(decoder="rnn")
BODY = json.dumps({"input": "a dog", "min_length": 6, "max_length": 8}).encode()
LIVE = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
LAST = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.fixture(scope="module", params=["h11", "httptools"])
def server_options(request) -> dict:
    """The parser of a server and its event loop, as they are installed together."""
    if request.param == "h11":
        return {"protocol": http1_protocol.H11}
    pytest.importorskip("httptools", reason="needs the extra `http`")
    return {"protocol": http1_protocol.fastest(), "loop_factory": fastest_loop()}


@pytest.fixture(scope="module")
def running(server_options) -> Iterator[Running]:
    with served({"rnn": MODEL}, **server_options) as server:
        yield server


def post(*headers: bytes, body: bytes = BODY, path: bytes = b"/predict") -> bytes:
    """A request for a prediction. Without a header that says how long the body is, its true length is given."""
    lines = [b"POST " + path + b" HTTP/1.1", b"Host: localhost", b"Content-Type: application/json"]
    framing = (b"content-length", b"transfer-encoding")
    if not any(header.lower().startswith(framing) for header in headers):
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join([*lines, *headers, b"", body])


def chunked(content: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(content), content)


CHUNKED = b"Transfer-Encoding: chunked"
CLOSE = b"Connection: close"
UPGRADE = (
    b"Connection: Upgrade, HTTP2-Settings",
    b"Upgrade: h2c",
    b"HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA",
)
ZEROS = b"Content-Length: " + b"0" * 5000 + b"%d" % len(BODY)
GARBAGE = b"\x16\x03\x01 this is not HTTP\r\n\r\n"


@dataclass(frozen=True)
class Case:
    """What a client sends, the statuses that it reads, and whether it shuts its sending side down afterwards."""

    sent: bytes
    statuses: list[int]
    half_close: bool = False


CASES = {
    # Lengths of bodies.
    "length-of-thousands-of-zeros": Case(post(ZEROS), [400]),
    "length-of-thousands-of-zeros-on-translate": Case(post(ZEROS, path=b"/translate"), [400]),
    "length-of-thousands-of-zeros-without-body": Case(
        b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
        + b"0" * 5000
        + b"\r\n\r\n",
        [400],
    ),
    "length-with-sign": Case(post(b"Content-Length: +%d" % len(BODY)), [400]),
    "length-in-hexadecimal": Case(post(b"Content-Length: 0x10"), [400]),
    "length-that-is-huge": Case(post(b"Content-Length: " + b"9" * 18, CLOSE), [413]),
    "length-beyond-64-bits": Case(post(b"Content-Length: " + b"9" * 40), [400]),
    "two-lengths": Case(post(b"Content-Length: 5", b"Content-Length: 6"), [400]),
    "length-and-chunks": Case(post(b"Content-Length: 5", CHUNKED, body=b"0\r\n\r\n"), [400]),
    # Sizes of chunks.
    "chunks": Case(post(CHUNKED, CLOSE, body=chunked(BODY) + b"0\r\n\r\n"), [200]),
    "chunk-size-of-letters": Case(post(CHUNKED, body=b"zz\r\n" + BODY), [400]),
    "chunk-size-with-sign": Case(post(CHUNKED, body=b"-5\r\n" + BODY), [400]),
    "chunk-size-that-is-empty": Case(post(CHUNKED, body=b"\r\n" + BODY), [400]),
    "chunk-size-that-is-huge": Case(post(CHUNKED, body=b"f" * 40 + b"\r\n" + BODY), [400]),
    "second-chunk-size-of-letters": Case(post(CHUNKED, body=chunked(BODY) + b"zz\r\n"), [400]),
    "chunk-without-its-end": Case(post(CHUNKED, body=b"2\r\n" + BODY), [400]),
    "chunk-size-of-letters-in-a-get": Case(
        b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n" + CHUNKED + b"\r\n\r\nzz\r\n", [400]
    ),
    # Other protocols.
    "upgrade-to-http-2": Case(post(*UPGRADE) + LAST, [200, 200]),
    "upgrade-to-http-2-with-chunks": Case(
        post(*UPGRADE, CHUNKED, body=chunked(BODY) + b"0\r\n\r\n") + LAST, [200, 200]
    ),
    "upgrade-to-websocket-without-body": Case(
        b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        + LAST,
        [200, 200],
    ),
    "two-upgrades": Case(post(*UPGRADE) + post(*UPGRADE) + LAST, [200, 200, 200]),
    "upgrade-with-bad-chunks": Case(post(*UPGRADE, CHUNKED, body=b"zz\r\n"), [400]),
    "http-2-without-upgrade": Case(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [400]),
    "tls": Case(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", [400]),
    # Requests that are sent together.
    "pipelined": Case(LIVE + post() + LAST, [200, 200, 200]),
    "pipelined-and-garbage": Case(LIVE + post() + GARBAGE, [200, 200, 400]),
    "pipelined-and-bad-length": Case(LIVE + post(b"Content-Length: x"), [200, 400]),
    "pipelined-and-bad-chunks": Case(
        LIVE + post() + post(CHUNKED, body=b"zz\r\n"), [200, 200, 400]
    ),
    "garbage-after-garbage": Case(GARBAGE + LIVE, [400]),
    # Clients that close their sending side.
    "half-closed": Case(post(), [200], half_close=True),
    "half-closed-get": Case(LIVE, [200], half_close=True),
    "half-closed-pipelined": Case(LIVE + post() + LIVE, [200, 200, 200], half_close=True),
    "half-closed-after-garbage": Case(LIVE + GARBAGE, [200, 400], half_close=True),
    "half-closed-chunks": Case(
        post(CHUNKED, body=chunked(BODY) + b"0\r\n\r\n"), [200], half_close=True
    ),
    "half-closed-in-a-body": Case(post()[:-5], [], half_close=True),
    "half-closed-in-headers": Case(LIVE[:-5], [], half_close=True),
    "half-closed-http-1.0": Case(b"GET /health/live HTTP/1.0\r\n\r\n", [200], half_close=True),
    # Lines and headers.
    "header-without-colon": Case(b"GET / HTTP/1.1\r\nHost: localhost\r\nNo colon\r\n\r\n", [400]),
    "space-before-colon": Case(post(b"Content-Length : %d" % len(BODY)), [400]),
    "zero-byte-in-header": Case(post(b"X-Zero: a\x00b"), [400]),
    "unknown-version": Case(b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n", [400]),
    "path-that-is-not-ascii": Case("GET /é HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(), [400]),
}


def connect(running: Running, address: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(
        ("127.0.0.1", running.port), timeout=PATIENCE, source_address=(address, 0)
    )


def read_all(connection: socket.socket) -> bytes:
    """All that the server sends until it closes the connection; a reset is an error."""
    received = b""
    while more := connection.recv(1 << 16):
        received += more
    return received


def final_statuses(received: bytes) -> list[int]:
    """The statuses of all answers; those that only say "go on" are left out."""
    found = [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", received)]
    return [status for status in found if status != 100]


@pytest.mark.parametrize("name", CASES)
def test_every_request_gets_the_right_status_and_none_a_traceback(running, caplog, name):
    case = CASES[name]
    with caplog.at_level(logging.DEBUG), connect(running) as connection:
        connection.sendall(case.sent)
        if case.half_close:
            connection.shutdown(socket.SHUT_WR)
        received = read_all(connection)
    assert final_statuses(received) == case.statuses
    assert not [record for record in caplog.records if record.exc_info]
    if 400 in case.statuses:
        refusal = json.loads(received.rpartition(b"\r\n\r\n")[2])
        assert refusal["status"] == 400
    assert running.ask("/health/live")[0] == 200


@pytest.mark.parametrize("path", ["/predict", "/translate"])
def test_a_length_of_zeros_is_refused_before_the_key_is_checked(server_options, caplog, path):
    with (
        served({"en-de": MODEL}, keys=["k"], **server_options) as server,
        connect(server) as connection,
    ):
        connection.sendall(post(ZEROS, path=path.encode()))
        assert final_statuses(read_all(connection)) == [400]
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("keys", [(), ("k",)], ids=["too-large", "without-key"])
def test_a_large_body_that_is_refused_does_not_reset_the_connection(server_options, keys):
    """The client announces that it closes the connection, sends all of its body, and reads only then."""
    size = 3 << 20
    with (
        served({"rnn": MODEL}, keys=keys, **server_options) as server,
        connect(server) as connection,
    ):
        connection.sendall(post(b"Connection: close", b"Content-Length: %d" % size, body=b""))
        for _ in range(size >> 16):
            connection.sendall(bytes(1 << 16))
        assert final_statuses(read_all(connection)) == [401 if keys else 413]


def test_a_refused_client_that_never_stops_sending_is_cut_off(running):
    with connect(running) as connection:
        connection.sendall(post(b"Connection: close", b"Content-Length: %d" % (1 << 40), body=b""))
        with pytest.raises(ConnectionError):
            connection.sendall(bytes(1 << 28))


def test_a_half_closed_client_gets_an_answer_that_takes_long(server_options, monkeypatch):
    """Where the client has only closed its sending side, the search goes on; where it has gone, the slot is freed."""
    gate, waits = slowed(monkeypatch, MODEL)
    with served({"rnn": MODEL}, **server_options) as server:
        with connect(server) as connection:
            connection.sendall(post())
            connection.shutdown(socket.SHUT_WR)
            assert waits.wait(PATIENCE)
            threading.Event().wait(3.0)  # longer than it takes to notice a client that has gone
            gate.release(100)
            assert final_statuses(read_all(connection)) == [200]
        until(lambda: not gate.acquire(blocking=False))
        waits.clear()
        with connect(server) as connection:
            connection.sendall(post())
            assert waits.wait(PATIENCE)
        until(lambda: server.app.open == 0)  # while the search waits for its next step
        gate.release(100_000)


def test_a_body_that_breaks_off_in_many_lines_ends_with_a_problem(running):
    """The lines that arrived whole are answered, and the last line of the answer says what is wrong."""
    line = json.dumps({"input": "a dog", "max_length": 4}).encode() + b"\n"
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
    with connect(running) as connection:
        connection.sendall(head + CHUNKED + b"\r\n\r\n" + chunked(line))
        received = connection.recv(1 << 16)  # the answer has begun
        connection.sendall(b"zz\r\n")
        received += read_all(connection)
    assert final_statuses(received) == [200]
    answers = [json.loads(part) for part in received.split(b"\r\n") if part.startswith(b"{")]
    assert len(answers) == 2
    assert answers[0]["results"]
    assert answers[1]["status"] == 400


def test_what_is_malformed_is_in_the_log_with_its_time_and_its_client(server_options, caplog):
    """No line of a library is there beside it."""
    # The server that other tests share may write its last line now: these requests have an address of their own.
    own_address = "127.0.0.39"

    def logged() -> list[dict]:
        """The lines of this test's requests."""
        lines = [json.loads(message) for message in caplog.messages if message.startswith("{")]
        return [line for line in lines if line["client"] == own_address]

    form = b"Content-Type: multipart/form-data; boundary=x"
    unreadable = b"POST /predict HTTP/1.1\r\nHost: localhost\r\n" + form
    unreadable += b"\r\nConnection: close\r\nContent-Length: 9\r\n\r\nno form\r\n"
    with caplog.at_level(logging.INFO), served({"rnn": MODEL}, **server_options) as server:
        for sent in (GARBAGE, post(CHUNKED, body=b"zz\r\n"), unreadable):
            with connect(server, own_address) as connection:
                connection.sendall(sent)
                assert final_statuses(read_all(connection)) == [400]
        until(lambda: len(logged()) == 3)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    lines = logged()
    assert [line["status"] for line in lines] == [400, 400, 400]
    for line, detail in zip(lines, ("Malformed HTTP", "size of a chunk", "boundary"), strict=True):
        assert line["time"].startswith("20")
        assert detail in line["detail"]
