"""`regard serve --workers 2`: several processes that answer as one, and survive the loss of any of them."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

pytest.importorskip("uvicorn", reason="needs the extra `serve`")
if sys.platform != "linux":
    pytest.skip("reads /proc", allow_module_level=True)

import regard
from regard.core.errors import InvalidArgument
from support.forged import GOLDEN
from support.predictors import translator
from support.servers import served

pytestmark = pytest.mark.slow

MODEL = GOLDEN / "transformer"
PATIENCE = 120.0
SHORT = {"input": ["abc", "hello"], "max_length": 8}


class Processes:
    """A server of several processes, and how to find each."""

    def __init__(self, *arguments: str, temporary: Path) -> None:
        command = [
            sys.executable,
            "-m",
            "regard",
            "serve",
            f"en={MODEL}",
            "--port",
            "0",
            "--workers",
            "2",
            *arguments,
        ]
        environment = os.environ | {"TMPDIR": str(temporary)}
        self.supervisor = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env=environment
        )
        self.temporary, self.lines = temporary, list[str]()
        self.reading = threading.Thread(target=self._read, daemon=True)
        self.reading.start()
        self.port = int(self.said(r"serving en on http://127\.0\.0\.1:(\d+)")[1])

    def _read(self) -> None:
        self.lines.extend(self.supervisor.stderr)

    def said(self, pattern: str, after: int = 0) -> re.Match:
        """The first line that fits, after so many lines."""
        return until(
            lambda: next(
                (fit for line in self.lines[after:] if (fit := re.search(pattern, line))), None
            )
        )

    def pids(self, kind: str) -> set[int]:
        found = set()
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == self.supervisor.pid and kind in (folder / "cmdline").read_text():
                    found.add(int(folder.name))
        return found

    @property
    def engine(self) -> int:
        (pid,) = until(lambda: self.pids("scheduler_process"))
        return pid

    @property
    def workers(self) -> set[int]:
        return self.pids("worker_process")

    def ask(self, path: str, body: dict | None = None, key: str = "k") -> tuple[int, dict, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            given = None if body is None else json.dumps(body)
            headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
            connection.request("GET" if body is None else "POST", path, given, headers)
            answer = connection.getresponse()
            return answer.status, dict(answer.headers), answer.read().decode()
        finally:
            connection.close()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)

    def predicted(self) -> float:
        """How many predictions were answered, as the metrics say."""
        status, _, text = self.ask("/metrics")
        assert status == 200, text
        counted = re.search(r'regard_requests_total\{route="/predict",status="200"\} (\S+)', text)
        return 0.0 if counted is None else float(counted[1])

    def ready(self) -> bool:
        """Whether each front end is: any of them may answer the next request."""
        workers = self.workers
        return len(workers) == 2 and all(map(self._ready_alone, workers))

    def _ready_alone(self, worker: int) -> bool:
        with ExitStack() as paused:
            for other in self.workers - {worker}:
                paused.enter_context(Paused(other))
            return self.ask("/health/ready")[0] == 200

    def stop(self) -> int:
        self.supervisor.send_signal(signal.SIGTERM)
        return self.supervisor.wait(PATIENCE)

    def close(self) -> None:
        children = self.pids("regard.serving.processes")
        for each in (*children, self.supervisor.pid):
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        self.supervisor.wait(PATIENCE)
        self.reading.join(PATIENCE)
        self.supervisor.stderr.close()


STOPPED = "TZ"  # states of /proc: by a signal, or ended
ENDED = "Z"  # its parent has not asked for its exit code; nothing: it has


def state_of(pid: int) -> str:
    """The state of a process, a letter as /proc has it; Z where it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ENDED


def until(found: Callable[[], object]):
    end = time.monotonic() + PATIENCE
    while not (value := found()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return value


@pytest.fixture(scope="module")
def started(tmp_path_factory) -> Iterator[list[Processes]]:
    """The servers of this module: one, and another after each that a test has stopped."""
    running: list[Processes] = []
    yield running
    for each in running:
        each.close()


@pytest.fixture
def server(started, tmp_path_factory) -> Processes:
    """A server that runs; tests may share it, in any order."""
    if not started or started[-1].supervisor.poll() is not None:
        folder = tmp_path_factory.mktemp("t")
        (folder / "keys").write_text("k name=web admin\nthree concurrent=3\n")
        started.append(
            Processes("--drain-seconds", "60", "--keys", str(folder / "keys"), temporary=folder)
        )
    until(started[-1].ready)
    return started[-1]


class Paused:
    """A process that does nothing for a while."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def __enter__(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        # On another processor it may go on for a moment, and accept a connection.
        until(lambda: state_of(self.pid) in STOPPED)

    def __exit__(self, *error: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)


def test_every_worker_answers_and_tells_the_totals_of_all(server):
    expected = regard.load(MODEL).predict(SHORT["input"], max_length=8)
    (one, other), before = server.workers, server.predicted()
    for paused, total in ((one, before + 3), (other, before + 6)):
        with Paused(paused):
            for _ in range(3):
                status, headers, answer = server.ask("/predict", SHORT)
                assert (status, headers["x-model-version"]) == (200, "transformer")
                assert [
                    each["outputs"][0]["text"] for each in json.loads(answer)["results"]
                ] == expected
            assert server.predicted() == total
    assert {server.predicted() for _ in range(10)} == {before + 6}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/score", {"input": "abc", "target": "abc"}),
        ("/embed", {"input": ["abc", "x"]}),
        ("/look", {"input": "abc", "output": "abc"}),
        ("/predict", {**SHORT, "scores": True, "tokens": True, "attention": {"heads": [0]}}),
    ],
)
def test_routes_answer_as_in_one_process(server, path, body):
    with served({"en": MODEL}) as one:
        _, _, wanted = one.ask(path, body)
    status, _, answer = server.ask(path, body)
    assert status == 200, answer
    assert_close({**json.loads(answer), "id": ""}, {**wanted, "id": ""})


def assert_close(found: object, wanted: object) -> None:
    """Equal but for rounding: processes may have other numbers of threads."""
    if isinstance(wanted, float):
        assert found == pytest.approx(wanted, abs=1e-4)
    elif isinstance(wanted, dict):
        assert list(found) == list(wanted)
        assert_close(list(found.values()), list(wanted.values()))
    elif isinstance(wanted, list):
        for one, other in zip(found, wanted, strict=True):
            assert_close(one, other)
    else:
        assert found == wanted


def test_limits_of_keys_hold_for_all_workers(server):
    """Three requests whose bodies are not complete are in, at both front ends, and no other is let in."""
    content = json.dumps(SHORT).encode()
    head = (
        "POST /predict HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer three\r\n"
        "Content-Type: application/json\r\nExpect: 100-continue\r\n"
        f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    )
    one, other = server.workers
    with ExitStack() as kept:
        entered = []
        for paused in (one, other, one):
            with Paused(paused):
                connection = kept.enter_context(server.connect())
                connection.sendall(head.encode())
                # The server wants the body when the request has entered.
                assert connection.recv(1 << 16).startswith(b"HTTP/1.1 100 ")
                entered.append(connection)
        for paused in (one, other):
            with Paused(paused):
                status, headers, _ = server.ask("/predict", SHORT, "three")
                assert (status, headers["retry-after"]) == (429, "1")
        for connection in entered:
            connection.sendall(content)
            with connection.makefile("rb") as answer:
                assert answer.read().startswith(b"HTTP/1.1 200 ")
    assert server.ask("/predict", SHORT, "three")[0] == 200


def test_the_socket_is_private(server):
    (folder,) = server.temporary.glob("regard-*")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {each.name for each in folder.iterdir()} == {"engine.sock", "metrics"}


def test_a_killed_worker_is_started_again_and_its_counts_stay(server):
    assert server.ask("/predict", SHORT)[0] == 200
    before, (victim, _), lines = server.predicted(), server.workers, len(server.lines)
    os.kill(victim, signal.SIGKILL)
    until(lambda: state_of(victim) == ENDED)
    assert server.ask("/predict", SHORT)[0] == 200  # by the other
    server.said(r"front end \d ended with SIGKILL: started again", lines)
    server.said(r"front end \d is ready again", lines)
    assert victim not in server.workers
    assert len(server.workers) == 2
    until(server.ready)
    assert server.predicted() == before + 1


def test_models_are_loaded_anew_by_request_and_by_signal(server):
    lines, before = (
        len(server.lines),
        json.loads(server.ask("/admin/models")[2])["models"][0]["reloads"],
    )
    status, _, answer = server.ask("/admin/models", {"name": "en"})
    assert (status, json.loads(answer)["reloads"]) == (200, before + 1)
    server.supervisor.send_signal(signal.SIGHUP)
    until(
        lambda: (
            len([line for line in server.lines[lines:] if "replaced by 'transformer'" in line]) == 2
        )
    )
    until(lambda: json.loads(server.ask("/admin/models")[2])["models"][0]["reloads"] == before + 2)


def test_a_killed_engine_is_started_again_and_its_requests_are_told(server):
    lines, engine = len(server.lines), server.engine
    # The supervisor is paused too: it must not start another engine before all is asked.
    with ThreadPoolExecutor(2) as pool, Paused(server.supervisor.pid), Paused(engine):
        held = [pool.submit(server.ask, "/predict", SHORT) for _ in range(2)]
        # Whether they come before or after its end, their answers are the same.
        time.sleep(0.3)
        os.kill(engine, signal.SIGKILL)
        for each in held:
            status, headers, answer = each.result(PATIENCE)
            assert (status, headers["retry-after"]) == (503, "5")
            assert "wanted an engine that answers" in json.loads(answer)["detail"]
        # Each front end notices by itself.
        for worker in server.workers:
            with Paused(worker):
                until(lambda: server.ask("/health/ready")[0] == 503)
        assert server.ask("/health/live")[0] == 200
        assert server.ask("/metrics")[0] == 200
        status, headers, answer = server.ask("/predict", SHORT)
        assert (status, headers["retry-after"]) == (503, "5")
    server.said("the engine process ended with SIGKILL: started again", lines)
    until(server.ready)
    assert server.ask("/predict", SHORT)[0] == 200
    assert server.engine != engine


def test_a_signal_ends_all_processes_after_the_requests_in_flight(server):
    long = {"input": ["abc"] * 20, "min_length": 150, "max_length": 150}

    def status() -> int | None:
        """None: the client came after the end."""
        try:
            return server.ask("/predict", long)[0]
        except ConnectionRefusedError:
            return None

    with ThreadPoolExecutor(3) as pool:
        asked = []

        def busy():
            # At first, and where they were answered before the metrics were.
            if all(each.done() for each in asked):
                asked[:] = [pool.submit(status) for _ in range(3)]
            return re.search(r"regard_(slots_busy|queue_jobs) [1-9]", server.ask("/metrics")[2])

        until(busy)
        children = {server.engine, *server.workers}
        assert server.stop() == 0
        answered = {each.result(PATIENCE) for each in asked}
        assert answered <= {200, 503, None}
        assert 200 in answered
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)
    assert not list(server.temporary.glob("regard-*"))


def test_a_server_that_cannot_start_says_so_once(tmp_path):
    damaged = tmp_path / "model"
    damaged.mkdir()
    (damaged / "config.json").write_text("{}")
    command = [
        sys.executable,
        "-m",
        "regard",
        "serve",
        f"en={damaged}",
        "--port",
        "0",
        "--workers",
        "1",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, "Traceback" in done.stderr) == (4, False)
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_children_end_with_their_supervisor(tmp_path):
    running = Processes(temporary=tmp_path)
    children = {running.engine, *running.workers}
    running.supervisor.kill()
    running.supervisor.wait(PATIENCE)
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))
    running.close()


def test_models_of_workers_are_paths():
    with pytest.raises(
        InvalidArgument, match="wanted paths of models, which another process loads"
    ):
        regard.serve({"en": translator(decoder="rnn")}, port=0, workers=1)
