"""A load generator that shares no interpreter with a server: `python -m peers.load BODIES`.

BODIES has a request's JSON body and its number of sentences in each line, with a tab between them. Says one line of
JSON when it is ready, and then one for each question that comes in:

    {"kind": "open", "port", "rate", "seconds", "patience", "seed"}   requests at random times that do not depend on the
        answers (Poisson), so that a slow server is asked as often as a fast one. The time of an answer counts from when
        its request was due, not from when it was sent: waiting for a connection counts (no coordinated omission).
    {"kind": "closed", "port", "clients", "warm", "seconds"}          clients that ask again when they are answered
    {"kind": "stream", "port", "times"}                               one after another: seconds to the first piece
    {"kind": "first", "port", "patience"}                             asks until there is an answer, and says when

Standard library only.
"""

import asyncio
import json
import os
import random
import selectors
import socket
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

HEAD = "POST /predict HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n"


class Connection(asyncio.Protocol):
    """A connection that is kept open: one request at a time."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.buffer, self.answer = b"", None
        self.closed = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if (found := complete(self.buffer)) is None:
            return
        self.buffer = b""
        self.closed |= found[1]
        if self.answer is not None and not self.answer.done():
            self.answer.set_result(found[0])

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        if self.answer is not None and not self.answer.done():
            self.answer.set_result(0)

    def ask(self, request: bytes) -> "asyncio.Future[int]":
        """The status of the answer; 0 where the connection ends before it."""
        self.answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self.answer


class Client:
    """A client that asks again when it is answered, on a connection that is kept open."""

    def __init__(
        self,
        port: int,
        polled: selectors.BaseSelector,
        chance: random.Random,
        requests: list[tuple[bytes, int]],
    ) -> None:
        self.port, self.polled, self.chance, self.requests = port, polled, chance, requests
        self.connect()
        self.ask()

    def connect(self) -> None:
        self.buffer, self.socket = b"", socket.create_connection(("127.0.0.1", self.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.polled.register(self.socket, selectors.EVENT_READ, self)

    def close(self) -> None:
        self.polled.unregister(self.socket)
        self.socket.close()

    def ask(self) -> None:
        request, self.sentences = self.chance.choice(self.requests)
        self.socket.sendall(request)

    def receive(self) -> int | None:
        """The status of the answer; None where it is not complete, 0 where the connection has ended."""
        try:
            data = self.socket.recv(1 << 16)
        except ConnectionError:
            data = b""
        self.buffer += data
        found = complete(self.buffer) if data else (0, True)
        if found is None:
            return None
        status, ends = found
        self.buffer = b""
        if ends:
            self.close()
            self.connect()
        if status != 200:
            time.sleep(0.002)  # not at once again
        return status


def complete(answer: bytes) -> tuple[int, bool] | None:
    """The status of a whole answer, and whether the connection is closed after it; None where a part is missing."""
    if (end := answer.find(b"\r\n\r\n")) < 0:
        return None
    head = answer[:end].lower()
    start = head.find(b"content-length:")
    if start < 0 or len(answer) - end - 4 < int(head[start + 15 :].split(b"\r\n", 1)[0]):
        return None
    return int(head[9:12]), b"connection: close" in head


class Load:
    def __init__(self, bodies: Path) -> None:
        lines = [line.rsplit("\t", 1) for line in bodies.read_text(encoding="utf-8").splitlines()]
        self.requests = [(_request(body), int(sentences)) for body, sentences in lines]
        self.idle: list[Connection] = []

    async def run(self, question: dict[str, Any]) -> dict[str, Any]:
        self.idle = []
        answer: dict[str, Any] = await getattr(self, question.pop("kind"))(**question)
        for each in self.idle:
            each.transport.close()
        return answer

    async def _connection(self, port: int) -> Connection:
        while self.idle:
            connection = self.idle.pop()
            if not connection.closed:
                return connection
        loop = asyncio.get_running_loop()
        return (await loop.create_connection(Connection, "127.0.0.1", port))[1]

    async def _ask(self, port: int, request: bytes) -> int:
        """The status; 0 where there is no answer."""
        try:
            connection = await self._connection(port)
        except OSError:
            return 0
        try:
            status = await connection.ask(request)
        except asyncio.CancelledError:
            connection.transport.abort()
            raise
        if not connection.closed:
            self.idle.append(connection)
        return status

    async def open(
        self, port: int, rate: float, seconds: float, patience: float, seed: int
    ) -> dict[str, Any]:
        chance, begin = random.Random(seed), time.perf_counter() + 0.1
        found: list[tuple[int, float, int]] = []  # status, seconds since it was due, sentences
        last = begin

        async def one(due: float, request: bytes, sentences: int) -> None:
            nonlocal last
            try:
                status = await asyncio.wait_for(
                    self._ask(port, request), due + patience - time.perf_counter()
                )
            except TimeoutError:
                status = -1
            now = time.perf_counter()
            found.append((status, now - due, sentences))
            last = max(last, now) if status == 200 else last

        asked, due = set(), begin
        while (due := due + chance.expovariate(rate)) < begin + seconds:
            if (wait := due - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            task = asyncio.ensure_future(one(due, *chance.choice(self.requests)))
            asked.add(task)
            task.add_done_callback(asked.discard)
        while asked:
            await asyncio.wait(asked)
        return {
            "statuses": Counter(str(status) for status, _, _ in found),
            "seconds": [took for status, took, _ in found if status == 200],
            "sentences": sum(sentences for status, _, sentences in found if status == 200),
            "span": max(seconds, last - begin),
        }

    async def closed(self, port: int, clients: int, warm: float, seconds: float) -> dict[str, Any]:
        """Without asyncio, whose tasks would take twice the processor time: what is left is mostly the system's."""
        begin, chance, polled = (
            time.perf_counter() + warm,
            random.Random(clients),
            selectors.DefaultSelector(),
        )
        asking = {Client(port, polled, chance, self.requests) for _ in range(clients)}
        counts: Counter[str] = Counter()
        requests = done = 0
        while asking:
            for key, _ in polled.select(1.0):
                client = key.data
                if (status := client.receive()) is None:
                    continue
                now = time.perf_counter()
                if begin <= now < begin + seconds:
                    counts[str(status)] += 1
                    requests, done = (
                        requests + (status == 200),
                        done + client.sentences * (status == 200),
                    )
                if now < begin + seconds:
                    client.ask()
                else:
                    client.close()
                    asking.discard(client)
            if time.perf_counter() > begin + seconds + 120:
                raise SystemExit(f"{len(asking)} requests were not answered")
        return {"statuses": counts, "rate": requests / seconds, "sentences": done / seconds}

    async def stream(self, port: int, times: int) -> dict[str, Any]:
        took = []
        for number in range(times):
            request = self.requests[number % len(self.requests)][0]
            with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
                connection.sendall(
                    request.replace(b"HTTP/1.1\r\n", b"HTTP/1.1\r\nconnection: close\r\n", 1)
                )
                start, content = time.perf_counter(), b""
                while b"data:" not in content:
                    if not (data := connection.recv(65536)):
                        raise SystemExit(f"no stream: {content[:300]!r}")
                    content += data
                took.append(time.perf_counter() - start)
                while connection.recv(65536):
                    pass
        return {"seconds": took}

    async def first(self, port: int, patience: float) -> dict[str, Any]:
        until = time.monotonic() + patience
        while time.monotonic() < until:
            if await self._ask(port, self.requests[0][0]) == 200:
                return {"at": time.monotonic()}
            await asyncio.sleep(0.002)
        raise SystemExit("no answer to the first request")


def _request(body: str) -> bytes:
    content = body.encode()
    return HEAD.format(len(content)).encode() + content


def main(bodies: Path) -> None:
    answer = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    load = Load(bodies)
    print(json.dumps({"requests": len(load.requests)}), file=answer)
    for line in sys.stdin:
        print(json.dumps(asyncio.run(load.run(json.loads(line)))), file=answer)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
