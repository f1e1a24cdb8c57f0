"""Connections: both HTTP parsers, malformed requests, slow clients, TLS, other origins, nested JSON, large headers."""

import http.client
import json
import random
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

pytest.importorskip("uvicorn", reason="needs the extra `serve`")

import regard
from regard.core.errors import InvalidArgument
from regard.serving.http import http1_protocol, request_handler
from regard.serving.http.cors import CrossOrigin
from regard.serving.http.errors import SECURITY_HEADERS
from regard.serving.http.service import DEPTH, HttpLimits, nested_deeper
from regard.serving.http.tls import Tls
from support.forged import GOLDEN
from support.predictors import translator
from support.servers import PATIENCE, Running, served, slowed, until

MODEL = translator(decoder="rnn")
LONG = {"min_length": 6, "max_length": 8}
BODY = json.dumps({"input": "a dog", **LONG}).encode()
HEAD = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


@pytest.fixture(scope="module", params=["h11", "httptools"])
def parser(request) -> type:
    if request.param == "h11":
        return http1_protocol.H11
    pytest.importorskip("httptools", reason="needs the extra `http`")
    return http1_protocol.fastest()


@pytest.fixture(scope="module")
def running(parser) -> Iterator[Running]:
    with served({"rnn": MODEL}, protocol=parser) as server:
        yield server


def talk(running: Running, *parts: bytes) -> bytes:
    """All that a server says on a connection until it closes it."""
    with socket.create_connection(("127.0.0.1", running.port), timeout=PATIENCE) as connection:
        with suppress(ConnectionError):  # closed while we send
            for part in parts:
                connection.sendall(part)
            return read_all(connection)
        return b""


def read_all(connection: socket.socket) -> bytes:
    said = b""
    with suppress(ConnectionError):
        while more := connection.recv(1 << 16):
            said += more
    return said


def test_the_faster_parser_is_used_where_it_is_installed():
    pytest.importorskip("httptools", reason="needs the extra `http`")
    assert "HttpToolsProtocol" in [each.__name__ for each in http1_protocol.fastest().__mro__]


@pytest.mark.parametrize(
    "given",
    [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"GET\r\n\r\n",
     b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n", b"GET / HTTP/1.1\r\nNo colon\r\n\r\n"],
    ids=["tls", "words", "length", "header"],
)  # fmt: skip
def test_what_is_not_http_gets_a_problem_with_the_headers_of_every_answer(running, given):
    head, _, body = talk(running, given).partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    assert status == "HTTP/1.1 400 Bad Request"
    assert headers["connection"] == "close"
    assert headers["content-type"] == "application/problem+json"
    assert SECURITY_HEADERS.items() <= headers.items()
    assert json.loads(body)["status"] == 400
    assert int(headers["content-length"]) == len(body)
    assert 'requests_total{route="other",status="400"}' in running.ask("/metrics")[2]["text"]


def test_slow_headers_and_bodies_are_timed_out(parser, monkeypatch):
    short = 0.2
    long = http1_protocol.HEADER_SECONDS
    gate, waits = slowed(monkeypatch, MODEL)
    with served({"rnn": MODEL}, protocol=parser, limits=HttpLimits(body_seconds=short)) as slow:
        assert talk(slow, HEAD % 50 + b"{").startswith(b"HTTP/1.1 408")
        # A second request that never ends: the time for its headers begins after the first answer.
        with socket.create_connection(("127.0.0.1", slow.port), timeout=PATIENCE) as connection:
            connection.sendall(HEAD % len(BODY) + BODY + b"GET /health")
            assert waits.wait(PATIENCE)
            monkeypatch.setattr(http1_protocol, "HEADER_SECONDS", short)
            gate.release(100_000)
            answered = read_all(connection)
        assert answered.count(b"HTTP/1.1 ") == 1
        assert answered.startswith(b"HTTP/1.1 200")
        assert talk(slow, b"") == b""

        def rejected() -> list[bool]:
            monkeypatch.setattr(http1_protocol, "HEADER_SECONDS", long)
            metrics = slow.ask("/metrics")[2]["text"]
            monkeypatch.setattr(http1_protocol, "HEADER_SECONDS", short)
            name = "regard_requests_rejected_total"
            return [
                f'{name}{{reason="{reason}"}} {count}' in metrics
                for reason, count in (("request_timeout", 1.0), ("header_timeout", 1.0))
            ]

        # On a busy machine a client may come too late to send a part of its headers.
        until(
            lambda: talk(slow, b"POST /predict HTTP/1.1\r\nHost: x\r\n") == b"" and all(rejected())
        )


def test_a_connection_is_not_timed_out_while_requests_wait_in_it(parser, monkeypatch):
    """Two requests at once on a connection, each answered after the time for headers is over."""
    gate, waits = slowed(monkeypatch, MODEL)
    with served({"rnn": MODEL}, protocol=parser) as slow:
        connection = socket.create_connection(("127.0.0.1", slow.port), timeout=PATIENCE)
        with connection:
            connection.sendall((HEAD % len(BODY) + BODY) * 2)
            said = b""
            for count in (1, 2):
                assert waits.wait(PATIENCE)
                # Both requests have arrived.
                monkeypatch.setattr(http1_protocol, "HEADER_SECONDS", 0.1)
                threading.Event().wait(0.3)  # longer than the time-out, which must not run now
                waits.clear()
                gate.release(8)
                while said.count(b"HTTP/1.1 200") < count:
                    more = connection.recv(1 << 16)
                    assert more
                    said += more
            gate.release(100_000)


@pytest.mark.parametrize("size", [40_000, 200_000])
def test_large_headers_are_refused(running, size):
    head = b"GET /health/live HTTP/1.1\r\nHost: x\r\nX-Large: " + b"x" * size
    answered = talk(running, head, b"\r\nConnection: close\r\n\r\n")
    assert answered.startswith(b"HTTP/1.1 431") or (
        size > 60_000 and answered[:12] in (b"", b"HTTP/1.1 400")
    )
    assert running.ask("/health/live", x_large="x" * 20_000)[0] == 200


def test_headers_without_end_are_bounded(running, monkeypatch):
    monkeypatch.setattr(http1_protocol, "HEADER_SECONDS", 1000.0)
    with socket.create_connection(("127.0.0.1", running.port), timeout=PATIENCE) as connection:
        connection.sendall(b"GET /health/live HTTP/1.1\r\n")
        with pytest.raises(ConnectionError):
            connection.sendall(b"x-header: " + b"y" * (1 << 26))


def test_a_connection_is_closed_after_many_requests(running, monkeypatch):
    monkeypatch.setattr(request_handler, "REQUESTS", 3)
    connection = running.connect()
    for number in range(3):
        connection.request("GET", "/health/live")
        answer = connection.getresponse()
        answer.read()
        assert (answer.headers.get("connection") == "close") == (number == 2)
    connection.close()


def test_a_large_body_is_refused_without_being_kept(running):
    """The client can send all of it, and reads 413."""
    for body in (
        bytes(100 << 20),
        (bytes(1 << 20) for _ in range(100)),
    ):  # the second is sent in chunks
        connection = running.connect()
        connection.request("POST", "/predict", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read())["status"]) == (413, 413)
        connection.close()
    assert running.ask("/predict", json.loads(BODY))[0] == 200


def test_the_rest_of_a_refused_body_is_not_taken_for_headers(running):
    with socket.create_connection(("127.0.0.1", running.port), timeout=PATIENCE) as connection:
        connection.sendall(HEAD % (2 << 20))
        answer = b""
        while not answer.endswith(b"}"):
            answer += connection.recv(1 << 16)
        assert answer.startswith(b"HTTP/1.1 413")
        for _ in range(16):
            connection.sendall(bytes(1 << 17))
            threading.Event().wait(0.01)  # each part arrives alone
        connection.sendall(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("opening", [b"[", b'{"":', b'[{"":'], ids=["lists", "objects", "mixed"])
def test_deeply_nested_json_is_refused(running, opening):
    status, _, answer = running.ask("/predict", opening * 150_000)
    assert (status, answer["detail"]) == (
        400,
        f"body: wanted JSON nested at most {DEPTH} deep; got deeper. Flatten it.",
    )
    status, _, answer = running.ask("/predict", {"input": "[" * 1000, "max_length": 4})
    assert status == 200


def test_nesting_is_measured_without_parsing():
    chosen = random.Random(5)
    strings = ["", "[[[", '"[{', "\\", '\\"[', "]}", "é\n"]

    def value(depth: int) -> object:
        if depth == 0:
            return chosen.choice([*strings, 3, None])
        inner = [value(chosen.randrange(depth)) for _ in range(chosen.randrange(3))]
        inner.insert(chosen.randrange(len(inner) + 1), value(depth - 1))
        return (
            inner
            if chosen.random() < 0.5
            else {chosen.choice(strings) + str(i): each for i, each in enumerate(inner)}
        )

    for _ in range(300):
        depth = chosen.randrange(1, 9)
        body = json.dumps(value(depth), indent=chosen.choice([None, 1])).encode()
        assert not nested_deeper(body, depth)
        assert nested_deeper(body, depth - 1)


ORIGIN = "https://pages.example"


def test_other_origins_are_refused_unless_listed():
    with served({"rnn": MODEL}, keys=["k"], cors=CrossOrigin([ORIGIN])) as server:

        def ask(method: str, origin: str, **headers: str) -> http.client.HTTPResponse:
            connection = server.connect()
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, "/models", headers={"origin": origin, **named})
            answer = connection.getresponse()
            answer.read()
            connection.close()
            return answer

        answer = ask("OPTIONS", ORIGIN, access_control_request_method="POST")
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (204, ORIGIN)
        assert "authorization" in answer.headers["access-control-allow-headers"]
        assert "POST" in answer.headers["access-control-allow-methods"]
        assert (
            ask("OPTIONS", "https://other.example", access_control_request_method="POST").status
            == 403
        )
        assert ask("OPTIONS", ORIGIN).status == 401  # no preflight: as every other request
        for origin, allowed in ((ORIGIN, ORIGIN), ("https://other.example", None), ("null", None)):
            answer = ask("GET", origin, authorization="Bearer k")
            assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, allowed)
            assert answer.headers["vary"] == "origin"
        assert (
            ask("GET", ORIGIN).headers["access-control-allow-origin"] == ORIGIN
        )  # the page may read the 401


@pytest.mark.parametrize("listed", [ORIGIN, "HTTPS://Pages.Example"])
@pytest.mark.parametrize("given", [ORIGIN, "https://Pages.example"])
def test_capitals_in_an_origin_make_no_difference(listed, given):
    """As in any address, the scheme and the host are the same in capitals."""
    with served({"rnn": MODEL}, cors=CrossOrigin([listed])) as server:
        assert server.ask("/models", origin=given)[1]["access-control-allow-origin"] == given
        other = server.ask("/models", origin="https://other.example")[1]
        assert "access-control-allow-origin" not in other


def test_no_origin_is_allowed_by_default_and_a_star_allows_all(running):
    assert "access-control-allow-origin" not in running.ask("/models", origin=ORIGIN)[1]
    assert CrossOrigin(["*"]).headers(ORIGIN)["access-control-allow-origin"] == "*"
    assert CrossOrigin(["*"]).headers(None) == {}


@pytest.mark.parametrize(
    "origin", ["example.org", "https://example.org/", "https://", "ftp://x", "https://a b", "null"]
)
def test_what_is_no_origin_is_refused(origin):
    with pytest.raises(InvalidArgument, match="cors: wanted an origin as"):
        regard.serve(GOLDEN / "rnn", cors=[origin])


def test_tls(tls, parser):
    with served({"rnn": MODEL}, tls=Tls.of(tls.certificate, tls.key), protocol=parser) as server:
        context = ssl.create_default_context(cafile=tls.certificate)
        connection = http.client.HTTPSConnection(
            "127.0.0.1", server.port, timeout=PATIENCE, context=context
        )
        connection.request("POST", "/predict", BODY, {"content-type": "application/json"})
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read())["model"]) == (200, "rnn")
        connection.close()
        with pytest.raises(ssl.SSLCertVerificationError):
            http.client.HTTPSConnection("127.0.0.1", server.port, timeout=PATIENCE).request(
                "GET", "/health/live"
            )
        with pytest.raises(OSError):
            server.ask("/health/live")
        until(lambda: server.app.open == 0)


def test_a_certificate_without_its_key_is_refused(tls, tmp_path):
    with pytest.raises(InvalidArgument, match="tls_key: wanted both"):
        regard.serve(GOLDEN / "rnn", tls_certificate=tls.certificate)
    for certificate, key in (
        (tls.certificate, tls.certificate),
        (tmp_path / "none", tls.key),
        (GOLDEN, tls.key),
    ):
        with pytest.raises(
            InvalidArgument, match="tls_certificate: wanted files of a certificate and its key"
        ):
            regard.serve(GOLDEN / "rnn", tls_certificate=certificate, tls_key=key)
    subprocess.run(["openssl", "ec", "-aes256", "-passout", "pass:secret", "-in", tls.key, "-out", tmp_path / "locked"],
                   check=True, capture_output=True, timeout=PATIENCE)  # fmt: skip
    with pytest.raises(InvalidArgument, match="the key is encrypted"):
        Tls.of(tls.certificate, tmp_path / "locked")


def test_requests_that_do_not_wait_for_each_other_are_answered_in_order(running):
    """Pipelined, the last by HEAD, whose answer has no body: head and body of each are written together."""
    get = b"GET /health/%s HTTP/1.1\r\nHost: x\r\n%s\r\n"
    stream = json.dumps({"input": "a dog", "stream": True, **LONG}).encode()
    parts = [
        get % (b"live", b""),
        HEAD % len(BODY) + BODY,
        HEAD % len(stream) + stream,
        get % (b"ready", b""),
    ]
    said = talk(
        running,
        b"".join(parts),
        b"HEAD /health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    )
    assert [part[:3] for part in said.split(b"HTTP/1.1 ")[1:]] == [
        b"200",
        b"200",
        b"200",
        b"200",
        b"200",
    ]
    assert said.count(b"data: ") > 1
    assert said.endswith(b"\r\n\r\n")  # of the last head


def test_an_answer_is_written_at_once(running, monkeypatch):
    writes: list[tuple[bytes, bytes]] = []
    write = http1_protocol.JoinedWrites.write
    monkeypatch.setattr(
        http1_protocol.JoinedWrites,
        "write",
        lambda self, data: (writes.append((self._first, data)), write(self, data))[1],
    )
    assert talk(
        running, HEAD.replace(b"Host: x", b"Host: x\r\nConnection: close") % len(BODY) + BODY
    )
    (nothing, head), (kept, body), *rest = writes
    assert (nothing, kept) == (b"", head)
    assert head.startswith(b"HTTP/1.1 200 ")
    assert json.loads(body)["results"]
    assert not any(data for _, data in rest)


def test_the_head_of_an_answer_waits_for_its_body():
    written: list[bytes] = []

    class Transport:
        closed = False

        def write(self, data: bytes) -> None:
            written.append(data)

    transport = Transport()
    joined = http1_protocol.JoinedWrites(transport)
    joined.write(b"head ")
    assert written == []
    joined.write(b"body ")
    joined.write(b"more")
    assert written == [b"head body ", b"more"]
    assert joined.closed is False


@pytest.mark.parametrize("encrypted", [True, False])
def test_worker_processes_have_the_options_of_the_server(tls, encrypted, monkeypatch):
    """Every option of `serve` that concerns them is in the configuration that they are started with."""
    from regard.serving.processes import supervisor

    started = []
    monkeypatch.setattr(supervisor, "run_processes", lambda *given: started.append(given))
    files = {"tls_certificate": tls.certificate, "tls_key": tls.key} if encrypted else {}
    limits = {
        "slots": 5,
        "queue": 24,
        "max_body": 7,
        "max_image_body": 8,
        "max_inputs": 9,
        "drain_seconds": 10.0,
    }
    given = {
        "cors": ["https://a.example"],
        "allowed_hosts": ["a.example"],
        "keys": ["k" * 20],
        "device": "cpu",
    }
    regard.serve({"rnn": GOLDEN / "rnn"}, port=0, workers=3, **limits, **given, **files)
    ((config, listening, workers, _),) = started
    listening.close()
    assert workers == 3
    assert config.tls == ((str(tls.certificate), str(tls.key)) if encrypted else None)
    assert {name: getattr(config, name) for name in limits} == limits
    assert config.bulk_lines == 4  # half of the queue, for three processes
    assert config.cors == ["https://a.example"]
    assert (config.allowed_hosts, config.host) == (["a.example"], "127.0.0.1")
    assert config.devices == {"rnn": ["cpu"]}
