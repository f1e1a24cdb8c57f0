"""The end of a server's processes: in time after a signal, whatever they compute; and what they say before it."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

pytest.importorskip("uvicorn", reason="needs the extra `serve`")
if sys.platform == "win32":
    pytest.skip("needs signals", allow_module_level=True)

from support.forged import GOLDEN
from support.servers import PATIENCE, until

# Stops the engine's thread of a process for as long as a file is there; found by Python when a process starts.
STALL = """
import os
import time
from pathlib import Path
from regard.serving.scheduler.scheduler import Scheduler
work = Scheduler._work_once
def stalled(engine):
    while Path(os.environ["STALL"]).exists():
        time.sleep(0.01)
    work(engine)
Scheduler._work_once = stalled
"""


class Server:
    """A process that serves two models, and whose engine can be stalled."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.stall = folder / "stall"
        (folder / "sitecustomize.py").write_text(STALL)
        paths = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = os.environ | {"PYTHONPATH": paths, "STALL": str(self.stall)}
        models = [f"en={GOLDEN / 'transformer'}", f"lm={GOLDEN / 'language-model'}"]
        command = [sys.executable, "-m", "regard", "serve", *models, "--port", "0", *arguments]
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
        )
        self.lines: list[str] = []
        self.reading = threading.Thread(target=self._read, daemon=True)
        self.reading.start()
        self.port = int(self.said(r"serving en, lm on http://127\.0\.0\.1:(\d+)")[1])

    def _read(self) -> None:
        self.lines.extend(self.process.stderr)

    def said(self, pattern: str) -> re.Match:
        def found() -> re.Match | None:
            return next((fit for line in self.lines if (fit := re.search(pattern, line))), None)

        until(found)
        return found()

    def ask(self, path: str, body: dict | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            given = None if body is None else json.dumps(body)
            headers = {"content-type": "application/json"}
            connection.request("GET" if body is None else "POST", path, given, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    @property
    def ready(self) -> bool:
        return self.ask("/health/ready")[0] == 200

    def close(self) -> None:
        for send in (os.killpg, os.kill):
            with suppress(ProcessLookupError):
                send(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)
        self.reading.join(PATIENCE)
        self.process.stderr.close()


class Asking:
    """A request in a thread of its own: its status, or None where it got no answer."""

    def __init__(self, server: Server, path: str, body: dict) -> None:
        self.status: int | None = None
        self.thread = threading.Thread(target=self._ask, args=(server, path, body), daemon=True)
        self.thread.start()

    def _ask(self, server: Server, path: str, body: dict) -> None:
        with suppress(OSError, http.client.HTTPException):
            self.status = server.ask(path, body)[0]

    def wait(self) -> int | None:
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()
        return self.status


@contextmanager
def started(folder: Path, *arguments: str) -> Iterator[Server]:
    server = Server(folder, *arguments)
    try:
        until(lambda: server.ready)
        yield server
    finally:
        server.close()


@contextmanager
def stalled(folder: Path, *arguments: str) -> Iterator[tuple[Server, Asking]]:
    """A server whose engine does nothing about a request that it has."""
    with started(folder, *arguments) as server:
        assert server.ask("/predict", {"model": "en", "input": "abc"})[0] == 200
        server.stall.touch()
        asking = Asking(server, "/predict", {"model": "en", "input": "abc"})
        until(lambda: not server.ready)
        yield server, asking


# A minute or more of computing, for one core.
LONG = {"model": "lm", "input": "a b " * 15_000}


def test_a_signal_ends_a_server_whose_engine_does_not_answer(tmp_path):
    with stalled(tmp_path, "--drain-seconds", "1") as (server, asking):
        server.process.send_signal(signal.SIGTERM)
        assert asking.wait() == 503
        assert server.process.wait(PATIENCE) == 128 + signal.SIGTERM
        server.said("the engine is still computing: ending at once")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_a_server_at_once(tmp_path, number):
    with stalled(tmp_path, "--drain-seconds", "3600") as (server, asking):
        server.process.send_signal(signal.SIGTERM)
        server.said("finishing the requests in flight")
        server.process.send_signal(number)
        assert server.process.wait(PATIENCE) == 128 + number
        server.said("without an answer to 1 open request")
        assert asking.wait() is None


def test_a_signal_ends_a_server_that_reads_a_long_input(tmp_path):
    with started(tmp_path, "--drain-seconds", "1") as server:
        asking = Asking(server, "/studio/long", LONG)
        until(lambda: b"regard_slots_busy 1" in server.ask("/metrics")[1])
        server.process.send_signal(signal.SIGTERM)
        assert asking.wait() == 503
        assert server.process.wait(PATIENCE) in (0, 128 + signal.SIGTERM)


def test_ready_turns_false_and_true_again(tmp_path):
    with stalled(tmp_path) as (server, asking):
        assert server.ask("/health/live")[0] == 200
        server.stall.unlink()
        until(lambda: server.ready)
        assert asking.wait() == 200


@pytest.mark.slow
def test_a_signal_ends_all_processes_of_an_engine_that_does_not_answer(tmp_path):
    with stalled(tmp_path, "--workers", "2", "--drain-seconds", "1") as (server, asking):
        server.process.send_signal(signal.SIGTERM)
        assert asking.wait() == 503
        assert server.process.wait(PATIENCE) == 0


@pytest.mark.slow
def test_a_second_signal_ends_all_processes_at_once(tmp_path):
    with stalled(tmp_path, "--workers", "2", "--drain-seconds", "3600") as (server, asking):
        server.process.send_signal(signal.SIGTERM)
        server.said("ending the server's processes")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE) == 128 + signal.SIGTERM
        assert asking.wait() is None


@pytest.mark.slow
def test_front_ends_are_not_ready_while_the_engine_process_is_silent(tmp_path):
    with started(tmp_path, "--workers", "1") as server:
        children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
        (engine,) = [
            int(pid)
            for pid in children.read_text().split()
            if "scheduler_process" in Path(f"/proc/{pid}/cmdline").read_text()
        ]
        os.kill(engine, signal.SIGSTOP)
        until(lambda: not server.ready)
        assert server.ask("/health/live")[0] == 200
        os.kill(engine, signal.SIGCONT)
        until(lambda: server.ready)
