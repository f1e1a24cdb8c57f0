"""How connections are accepted: until a server ends, in several processes, with stalled handshakes, without files."""

import asyncio
import errno
import json
import os
import re
import resource
import select
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

pytest.importorskip("uvicorn", reason="needs the extra `serve`")
if sys.platform != "linux":
    pytest.skip("reads /proc", allow_module_level=True)

from regard.serving.http import http1_protocol
from regard.serving.http.listener import Acceptor, drop_new_connections
from regard.serving.http.server import fastest_loop
from regard.serving.processes.supervisor import _close_socket
from support.forged import GOLDEN
from support.predictors import translator
from support.servers import served, until

MODEL = GOLDEN / "transformer"
PATIENCE = 60.0
LIVE = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


class Serving:
    """`regard serve` in a process of its own."""

    def __init__(self, *arguments: str, most_files: int | None = None) -> None:
        command = [
            sys.executable,
            "-m",
            "regard",
            "serve",
            f"en={MODEL}",
            "--port",
            "0",
            *arguments,
        ]

        def limit() -> None:
            if most_files is not None:
                resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))

        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, preexec_fn=limit
        )
        self.lines: list[str] = []
        self.reading = threading.Thread(target=self._read, daemon=True)
        self.reading.start()
        self.port = 0

    def wait_until_ready(self) -> None:
        pattern = r"serving en on http://127\.0\.0\.1:(\d+)"
        until(lambda: re.search(pattern, self.text) or self.process.poll() is not None)
        self.port = int(re.search(pattern, self.text)[1])

    def _read(self) -> None:
        self.lines.extend(self.process.stderr)

    @property
    def text(self) -> str:
        return "".join(self.lines)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)

    def children(self, module: str) -> list[int]:
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == self.process.pid and module in (folder / "cmdline").read_text():
                    found.append(int(folder.name))
        return found


@contextmanager
def serving(*arguments: str, most_files: int | None = None) -> Iterator[Serving]:
    server = Serving(*arguments, most_files=most_files)
    try:
        server.wait_until_ready()
        yield server
    finally:
        for pid in (*server.children("regard.serving.processes"), server.process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        server.process.wait(PATIENCE)
        server.reading.join(PATIENCE)
        server.process.stderr.close()


def outcome(server: Serving) -> str:
    """What a new client gets: a status, or the name of an error."""
    try:
        connection = server.connect()
    except ConnectionRefusedError:
        return "refused"
    try:
        with connection:
            connection.sendall(LIVE)
            received = b""
            while more := connection.recv(1 << 16):
                received += more
            return received[9:12].decode() or "nothing"
    except OSError as error:
        return type(error).__name__


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_every_new_client_is_answered_or_refused_after_a_signal(workers):
    """New clients come all the time, from before the signal until the process has ended; a request is in flight."""
    long = {"input": ["abc"] * 10, "min_length": 150, "max_length": 150}
    body = json.dumps(long).encode()
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    outcomes: list[str] = []
    with serving("--workers", str(workers), "--drain-seconds", "60") as server:

        def come() -> None:
            while server.process.poll() is None and len(outcomes) < 20_000:
                outcomes.append(outcome(server))
                time.sleep(0.002)

        clients = [threading.Thread(target=come) for _ in range(4)]
        for client in clients:
            client.start()
        with server.connect() as busy:
            busy.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            until(lambda: outcomes.count("200") > 20)
            server.process.send_signal(signal.SIGTERM)
            assert busy.recv(1 << 16)[:12] in (b"HTTP/1.1 200", b"HTTP/1.1 503")
        assert server.process.wait(PATIENCE) == 0
        for client in clients:
            client.join(PATIENCE)
    assert set(outcomes) <= {"200", "503", "refused"}, Counter(outcomes)


def sockets(pid: int) -> set[str]:
    """The sockets that a process has open."""
    found = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # it is closed
            found.add(os.readlink(descriptor))
    return {name for name in found if name.startswith("socket:")}


@pytest.mark.slow
def test_every_front_end_accepts_connections():
    """Those that come while the other front end is stopped. How two that run share them is tested below, without
    processes, whose turns the scheduler of the machine chooses.
    """
    with serving("--workers", "2") as server, ExitStack() as kept:
        workers = server.children("worker_process")
        before = {pid: sockets(pid) for pid in workers}
        for accepting, stopped in (workers, reversed(workers)):
            os.kill(stopped, signal.SIGSTOP)
            kept.callback(os.kill, stopped, signal.SIGCONT)
            had = sockets(stopped)
            for _ in range(100):
                kept.enter_context(server.connect())
            until(lambda pid=accepting: len(sockets(pid) - before[pid]) >= 100)
            assert sockets(stopped) == had
            os.kill(stopped, signal.SIGCONT)


def test_event_loops_that_share_a_socket_share_its_connections():
    """Each accepts one connection in a turn, so that two that take turns accept as many.

    All clients have come before either accepts one.
    """
    counts = [0, 0]

    class Counting(asyncio.Protocol):
        def __init__(self, number: int) -> None:
            self.number = number

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            counts[self.number] += 1
            transport.close()

    async def begin(own: socket.socket, number: int) -> Acceptor:
        return Acceptor(own, lambda: Counting(number), None, lambda: None)

    async def end(acceptor: Acceptor) -> None:
        acceptor.close()

    with ExitStack() as kept:
        listening = kept.enter_context(socket.create_server(("127.0.0.1", 0), backlog=256))
        for _ in range(100):
            kept.enter_context(socket.create_connection(listening.getsockname()))
        loops = [asyncio.new_event_loop() for _ in counts]
        acceptors = [
            loop.run_until_complete(begin(listening.dup(), number))
            for number, loop in enumerate(loops)
        ]
        for _ in range(1000):
            for loop in loops:
                # One turn of the loop: what is ready now.
                loop.call_soon(loop.stop)
                loop.run_forever()
        for loop, acceptor in zip(loops, acceptors, strict=True):
            loop.run_until_complete(end(acceptor))
            loop.close()
    assert sum(counts) == 100
    assert min(counts) >= 40, counts


def test_no_connection_is_made_between_the_last_accept_and_the_end_of_the_socket():
    """Such a connection would be reset. Connections that are made before are accepted."""
    accepted: list[asyncio.BaseTransport] = []

    class Kept(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            accepted.append(transport)

    async def accept(listening: socket.socket) -> int:
        acceptor = Acceptor(listening, Kept, None, lambda: None)
        early = [socket.create_connection(listening.getsockname()) for _ in range(3)]
        await drop_new_connections(listening)
        late = socket.socket()
        late.setblocking(False)
        connecting = late.connect_ex(listening.getsockname())
        assert connecting == errno.EINPROGRESS
        acceptor.close()
        await acceptor.wait_for_handshakes()
        for client in early:
            client.close()
        for transport in accepted:
            transport.close()
        # Linux refuses the packet that the client sends again after a second.
        await asyncio.to_thread(select.select, [], [late], [], PATIENCE)
        error = late.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        late.close()
        return error

    with socket.create_server(("127.0.0.1", 0), backlog=256) as listening:
        assert asyncio.run(accept(listening)) == errno.ECONNREFUSED
    assert len(accepted) == 3


def test_front_ends_close_their_socket_together():
    """When the last of them has finished its requests, and no client can connect any more."""

    class FrontEnd:
        def __init__(self) -> None:
            self.drained = asyncio.Event()
            self.refused_before: bool | None = None

        def close_socket(self) -> None:
            self.refused_before = not connects()

    def connects() -> bool:
        with socket.socket() as client:
            client.settimeout(0.2)
            return client.connect_ex(address) == 0

    async def end(listening: socket.socket) -> list[bool | None]:
        fronts = [FrontEnd(), FrontEnd()]
        # Each front end has the socket too.
        with listening.dup():
            closing = asyncio.ensure_future(_close_socket(listening, fronts, PATIENCE))
            fronts[1].drained.set()
            await asyncio.sleep(0.2)
            assert connects()
            assert not closing.done()
            fronts[0].drained.set()
            await closing
            return [front.refused_before for front in fronts]

    with socket.create_server(("127.0.0.1", 0), backlog=256) as listening:
        address = listening.getsockname()
        assert asyncio.run(end(listening)) == [True, True]


def test_a_stalled_handshake_is_closed_as_fast_as_stalled_headers(tls, monkeypatch):
    long = http1_protocol.HEADER_SECONDS
    for loop_factory in (None, fastest_loop()):
        monkeypatch.setattr(http1_protocol, "HEADER_SECONDS", 0.2)
        with served(
            {"rnn": translator(decoder="rnn")}, tls=tls, loop_factory=loop_factory
        ) as server:
            address = ("127.0.0.1", server.port)
            with socket.create_connection(address, timeout=PATIENCE) as connection:
                began = time.monotonic()
                assert connection.recv(100) == b""
                assert time.monotonic() - began < 30.0  # by default, a handshake may take 60 s
            monkeypatch.setattr(http1_protocol, "HEADER_SECONDS", long)
            context = ssl.create_default_context(cafile=tls.certificate)
            with (
                socket.create_connection(address, timeout=PATIENCE) as plain,
                context.wrap_socket(plain, server_hostname="localhost") as connection,
            ):
                connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                answer = b""
                while more := connection.recv(1 << 16):
                    answer += more
            counted = b'regard_requests_rejected_total{reason="tls_handshake"} 1.0'
            assert counted in answer


def test_a_server_without_file_descriptors_says_so_and_goes_on():
    with serving(most_files=48) as server:
        with ExitStack() as kept:
            for _ in range(64):
                kept.enter_context(server.connect())
            until(lambda: "LimitNOFILE" in server.text)
            waiting = server.connect()
        with waiting:
            waiting.sendall(LIVE)
            assert waiting.recv(1 << 16).startswith(b"HTTP/1.1 200")
        reports = [line for line in server.lines if "LimitNOFILE" in line]
        assert len(reports) == 1
        assert reports[0].startswith("regard: ")
        assert "48 open files" in reports[0]
        assert "Traceback" not in server.text
