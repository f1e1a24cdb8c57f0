"""A fault in the engine's own thread: every client that waits gets a clear answer, and the process ends."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("uvicorn", reason="needs the extra `serve`")

from regard.core.errors import EngineCrashed
from regard.serving import ray
from regard.serving.http.service import HttpLimits
from regard.serving.scheduler.jobs import Generation, Job
from regard.serving.scheduler.replicas import ReplicaRouter
from regard.serving.scheduler.scheduler import Scheduler, SchedulerLimits
from regard.serving.scheduler.searches import SearchGroup
from support.forged import GOLDEN
from support.predictors import translator
from support.servers import PATIENCE, until

# Makes the engine of a process raise where a file says so, when it has as many jobs as the file says; found by Python
# when a process starts.
FAULT = """
import os
import time
from pathlib import Path
from regard.serving.scheduler.scheduler import Scheduler
drop = Scheduler._drop_late
def fault(engine, *arguments):
    path = Path(os.environ["FAULT"])
    if path.exists():
        jobs = int(path.read_text())
        while engine.busy < jobs:
            time.sleep(0.01)
        path.unlink()
        raise ZeroDivisionError("planted")
    drop(engine, *arguments)
Scheduler._drop_late = fault
"""


@pytest.fixture
def crashing(monkeypatch) -> Scheduler:
    """An engine that ends with a fault when it has begun to work on its first job."""

    def fault(engine: Scheduler) -> Sequence[SearchGroup]:
        if any(each is not None for each in engine._jobs.values()):
            raise ZeroDivisionError("planted")
        return ()

    monkeypatch.setattr(Scheduler, "_begin_rounds", fault)
    engine = Scheduler(SchedulerLimits(slots=1))
    engine.load("m", "1", translator())
    return engine


def test_a_fault_of_the_engine_ends_every_job_and_is_told(crashing, caplog):
    results, told = [], threading.Event()
    for _ in range(3):  # one in the slot, two in the queue
        crashing.submit(Job("m", Generation("the cat", {"min_length": 8}), results.append))
    crashing.when_crashed(lambda error: told.set())
    crashing.start()
    assert told.wait(PATIENCE)
    assert [type(each) for each in results] == [EngineCrashed] * 3
    assert (
        str(results[0])
        == "wanted an engine that answers; got one that ZeroDivisionError ended. Ask again later."
    )
    assert "planted" in caplog.text
    assert not crashing.ready
    assert crashing.stuck() == crashing.busy == 0
    with pytest.raises(EngineCrashed):
        crashing.submit(Job("m", Generation("the cat"), results.append))
    late: list[EngineCrashed] = []
    ReplicaRouter([crashing], {"m": [0]}).when_crashed(
        late.append
    )  # one that asks too late is told at once
    assert late == [results[0]]
    assert crashing.stop(PATIENCE)


def test_a_crashed_replica_of_ray_ends_its_process(crashing, monkeypatch):
    ended = threading.Event()
    monkeypatch.setattr(ray, "ANSWER_SECONDS", 0.0)
    monkeypatch.setattr(ray.os, "_exit", lambda code: ended.set() if code == 1 else None)
    models = {"m": str(GOLDEN / "transformer")}
    replica = ray.ReplicaApplication(models, "cpu", [], SchedulerLimits(slots=1), HttpLimits(), [])
    replica._load()
    replica.engine.submit(Job("m", Generation("the cat", {"min_length": 8}), lambda result: None))
    assert ended.wait(PATIENCE)


@contextmanager
def server(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen, int]]:
    (folder / "sitecustomize.py").write_text(FAULT)
    paths = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": paths, "FAULT": str(folder / "fault")}
    model = f"en={GOLDEN / 'transformer'}"
    command = [sys.executable, "-m", "regard", "serve", model, "--port", "0", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        yield (
            process,
            next(
                int(said[1])
                for line in process.stderr
                if (said := re.search(r"on http.*:(\d+)", line))
            ),
        )
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def ask(port: int, **options) -> tuple[int, dict]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    body = json.dumps({"input": "abc", **options})
    connection.request("POST", "/predict", body, {"content-type": "application/json"})
    answer = connection.getresponse()
    found = answer.status, json.loads(answer.read())
    connection.close()
    return found


def crash(folder: Path, port: int) -> list[tuple[int, dict]]:
    """The answers to requests that a fault of the engine meets, all of which have come before it."""
    inputs = ["abc"] * 60
    requests = 3
    waiting = folder / "not yet the fault"
    waiting.write_text(str(requests * len(inputs)))
    waiting.rename(folder / "fault")
    with ThreadPoolExecutor() as pool:
        asked = [pool.submit(ask, port, input=inputs) for _ in range(requests)]
        return [each.result(PATIENCE) for each in asked]


@pytest.mark.slow
def test_a_server_whose_engine_crashes_answers_503_and_ends_with_a_failure(tmp_path):
    with server(tmp_path) as (process, port):
        assert ask(port, max_length=3)[0] == 200
        answers = crash(tmp_path, port)
        assert {status for status, _ in answers} == {503}
        assert "ZeroDivisionError ended" in answers[0][1]["detail"]
        assert process.wait(PATIENCE) == 1
        log = process.stderr.read()
    assert "the engine's thread has ended" in log
    assert "planted" in log
    assert log.splitlines()[-1].startswith("regard: wanted an engine that answers")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs Unix sockets")
def test_a_crashed_engine_process_is_started_again(tmp_path):
    with server(tmp_path, "--workers", "1") as (process, port):
        assert {status for status, _ in crash(tmp_path, port)} == {503}
        for line in process.stderr:
            if "the engine process is ready again" in line:
                break
        until(lambda: ask(port, max_length=3)[0] == 200)  # front ends have found it again
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
