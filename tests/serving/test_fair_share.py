"""A client with many connections, and another that asks beside it. Clients are known by their addresses."""

import json
import socket
from contextlib import ExitStack

import pytest

pytest.importorskip("uvicorn", reason="needs the extra `serve`")

from regard.serving.scheduler.scheduler import SchedulerLimits
from support.predictors import translator
from support.servers import PATIENCE, Running, served, slowed, until

SLOTS = 2
QUEUE = 16
BODY = json.dumps({"input": "a dog", "max_length": 3}).encode()
REQUEST = (
    "POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    f"Content-Length: {len(BODY)}\r\nConnection: close\r\n\r\n"
).encode() + BODY


def ask(server: Running, client: str) -> socket.socket:
    """A connection from this address, on which a request was sent."""
    address = ("127.0.0.1", server.port)
    connection = socket.create_connection(address, PATIENCE, source_address=(client, 0))
    connection.sendall(REQUEST)
    return connection


def answer(connection: socket.socket) -> tuple[int, bytes]:
    """Status and head of the answer."""
    received = b""
    while part := connection.recv(1 << 16):
        received += part
    connection.close()
    return int(received.split()[1]), received.partition(b"\r\n\r\n")[0]


def test_four_hundred_connections_leave_another_client_its_share(monkeypatch):
    model = translator(decoder="rnn")
    gate, waits = slowed(monkeypatch, model)
    limits = SchedulerLimits(slots=SLOTS, queued_jobs=QUEUE)
    with served({"rnn": model}, limits) as server, ExitStack() as stack:
        stack.callback(gate.release, 100_000)

        def waiting() -> int:
            return server.engine.stats().queued_jobs

        first = [ask(server, "127.0.0.2") for _ in range(SLOTS)]
        assert waits.wait(PATIENCE)

        def all_admitted() -> bool:
            # A request is admitted between two steps of those that came before it.
            if waiting():
                gate.release()
            return waiting() == 0

        until(all_admitted)
        heavy = [ask(server, "127.0.0.2") for _ in range(400)]
        until(lambda: waiting() == QUEUE)
        light = []
        for number in range(QUEUE // 2):  # half of the queue: two clients wait
            light.append(ask(server, "127.0.0.3"))
            until(lambda count=number + 1: waiting() == QUEUE + count)
        beyond = ask(server, "127.0.0.3")
        assert answer(beyond)[0] == 429
        gate.release(100_000)
        assert [answer(each)[0] for each in light] == [200] * len(light)
        statuses = []
        for each in [*first, *heavy]:
            status, head = answer(each)
            statuses.append(status)
            if status == 429:
                seconds = int(head.partition(b"retry-after: ")[2].split()[0])
                assert 1 <= seconds <= 60
        assert set(statuses) == {200, 429}
        assert statuses.count(200) >= SLOTS + QUEUE
