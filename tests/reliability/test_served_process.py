"""`regard serve` as a process under bad conditions: overload, readers that never read, clients that vanish."""

import asyncio
import http.client
import json
import random
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("uvicorn", reason="needs the extra `serve`")
if sys.platform != "linux":
    pytest.skip("reads /proc", allow_module_level=True)

from prometheus_client.parser import text_string_to_metric_families

from support.forged import GOLDEN

PATIENCE = 120.0
SLOTS, QUEUE = 4, 8
MEBIBYTE = 1 << 20
HEAD = "POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{}"


class Process:
    """A server, and what it holds."""

    def __init__(self) -> None:
        command = [
            sys.executable,
            "-m",
            "regard",
            "serve",
            f"en={GOLDEN / 'transformer'}",
            "--port",
            "0",
        ]
        command += ["--slots", str(SLOTS), "--queue", str(QUEUE)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        found = (
            re.search(r"serving en on http://127\.0\.0\.1:(\d+)", line)
            for line in self.process.stderr
        )
        self.port = int(next(fit for fit in found if fit)[1])
        self.reader = ThreadPoolExecutor(1)
        self.reader.submit(
            lambda: [None for _ in self.process.stderr]
        )  # so that its log does not block it

    def ask(
        self, body: dict | None, path: str = "/predict"
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            given = () if body is None else (json.dumps(body), {"content-type": "application/json"})
            connection.request("GET" if body is None else "POST", path, *given)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def metrics(self) -> dict[str, float]:
        families = text_string_to_metric_families(self.ask(None, "/metrics")[2].decode())
        return {
            sample.name: sample.value
            for family in families
            for sample in family.samples
            if not sample.labels
        }

    @property
    def memory(self) -> int:
        """Bytes that are resident."""
        return int(self.metrics()["process_resident_memory_bytes"])

    @property
    def threads(self) -> int:
        return int(
            re.search(r"Threads:\s+(\d+)", Path(f"/proc/{self.process.pid}/status").read_text())[1]
        )

    def is_idle(self) -> bool:
        found = self.metrics()
        return (
            found["regard_slots_busy"]
            == found["regard_queue_jobs"]
            == found["regard_searches"]
            == 0
        )


@pytest.fixture(scope="module")
def server() -> Iterator[Process]:
    server = Process()
    yield server
    server.process.kill()
    server.process.wait(PATIENCE)
    server.reader.shutdown()
    server.process.stderr.close()


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_overload_is_refused_and_memory_stays_flat(server):
    """Ten times as many clients as slots and queue hold, in rounds: 200 or 429 with Retry-After, and nothing else."""
    clients, body = 10 * (SLOTS + QUEUE), {"input": "hello", "min_length": 30, "max_length": 30}
    alone = json.loads(server.ask(body)[2])["results"]
    with ThreadPoolExecutor(clients) as pool:
        memory = []
        statuses = set[int]()
        for _ in range(4):
            answers = list(pool.map(server.ask, [body] * clients))
            statuses.update(status for status, _, _ in answers)
            for status, headers, content in answers:
                if status == 429:
                    assert 1 <= int(headers["retry-after"]) <= 60
                else:
                    assert json.loads(content)["results"] == alone
            memory.append(server.memory)
        assert statuses == {200, 429}
    assert max(memory[1:]) - memory[0] < 16 * MEBIBYTE
    until(server.is_idle)


def test_readers_that_never_read_stall_nobody(server):
    body = json.dumps({"input": "hello", "stream": True, "min_length": 200, "max_length": 200})
    before, readers = server.memory, []
    for _ in range(SLOTS):
        reader = socket.socket()
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        reader.settimeout(PATIENCE)
        reader.connect(("127.0.0.1", server.port))
        reader.sendall(HEAD.format(len(body), body).encode())
        readers.append(reader)
    assert server.ask({"input": "hello", "max_length": 4})[0] == 200
    until(server.is_idle)  # the slots are free, though nothing was read
    assert server.memory - before < 16 * MEBIBYTE
    for reader in readers:
        reader.close()


async def _client(port: int, chance: random.Random, counts: dict[str, int]) -> None:
    """One request; some clients vanish while it waits or runs."""
    stream = chance.random() < 0.3
    options = {"stream": stream} | ({} if stream or chance.random() < 0.7 else {"beam_size": 2})
    body = json.dumps(
        {
            "input": chance.choice(["hello", "abc", "x"]),
            "max_length": chance.choice([2, 8]),
            **options,
        }
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        HEAD.format(len(body), body)
        .replace("host: localhost", "host: localhost\r\nconnection: close")
        .encode()
    )
    try:
        if chance.random() < 0.3:
            await asyncio.sleep(chance.random() * 0.02)
            writer.transport.abort()
            counts["cancelled"] += 1
            return
        status = int((await reader.read())[9:12])
        counts[str(status)] = counts.get(str(status), 0) + 1
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


def _requests(port: int, count: int, seed: int) -> dict[str, int]:
    """Asks so often, a few clients at a time."""
    counts, chance = {"cancelled": 0}, random.Random(seed)

    async def clients() -> None:
        left = iter(range(count))

        async def one_after_another() -> None:
            for _ in left:
                await asyncio.wait_for(_client(port, chance, counts), PATIENCE)

        await asyncio.gather(*(one_after_another() for _ in range(SLOTS + QUEUE)))

    asyncio.run(clients())
    return counts


@pytest.mark.slow
def test_cancelled_requests_leak_nothing(server):
    """10,000 requests, three of ten cancelled at random: slots, file descriptors, threads and memory are as before."""
    _requests(server.port, 1000, seed=0)  # caches fill
    until(server.is_idle)
    before, threads = server.metrics(), server.threads
    counts = _requests(server.port, 10_000, seed=1)
    until(server.is_idle)
    assert sum(counts.values()) == 10_000
    assert counts["cancelled"] > 2000
    assert set(counts) <= {"cancelled", "200", "429"}
    until(lambda: server.metrics()["process_open_fds"] <= before["process_open_fds"])
    assert server.threads <= threads
    assert server.memory - before["process_resident_memory_bytes"] < 16 * MEBIBYTE
