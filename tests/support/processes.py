"""Runs of several ranks, for tests: every process works through a list of jobs and records the result of each.

    python tests/support/processes.py JOBS.json

A job is a call of `regard.train`: {"name", "recipe", "run", "cache"}, optionally "resume", "changes" of one rank's
recipe ({"1": ["train.learning_rate=0.1"]}), and "end", a signal that a rank sends itself: {"rank": 1, "update": 5,
"signal": 15}.
"""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

LIMIT = 300  # seconds, for any number of processes together; a quiet machine needs a tenth of them


def free_ports(count: int) -> list[int]:
    """Ports below the ephemeral range, so that they are still free when a job binds them minutes later."""
    ports = set[int]()
    while len(ports) < count:
        port = random.SystemRandom().randrange(15000, 32000)
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            ports.add(port)
    return list(ports)


def started(world: int, jobs: list[dict], folder: Path) -> list[subprocess.Popen]:
    """Start `world` processes that work through these jobs, without torchrun."""
    folder.mkdir(parents=True, exist_ok=True)
    ports = free_ports(len(jobs))
    (folder / "jobs.json").write_text(
        json.dumps([job | {"port": port} for job, port in zip(jobs, ports, strict=True)])
    )
    command = [sys.executable, __file__, str(folder / "jobs.json")]
    environment = os.environ | {
        "MASTER_ADDR": "127.0.0.1",
        "WORLD_SIZE": str(world),
        "OMP_NUM_THREADS": "1",
    }
    return [
        subprocess.Popen(
            command,
            env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]


def end(processes: list[subprocess.Popen]) -> None:
    for process in processes:
        process.kill()
        process.communicate()


def seconds_to_end(process: subprocess.Popen, number: int, limit: float = 120) -> tuple[float, str]:
    """Send a signal. Returns the seconds until the process has ended, and what it wrote to stderr.

    Seconds in which its main thread could run and had no processor do not count, as others may be at work.
    """
    sent, waited = time.monotonic(), _waited(process)
    process.send_signal(number)
    last = waited
    while time.monotonic() < sent + limit:
        with suppress(subprocess.TimeoutExpired):
            _, errors = process.communicate(timeout=0.05)
            return time.monotonic() - sent - (last - waited), errors
        last = max(last, _waited(process))
    end([process])  # a test that fails leaves none behind
    raise AssertionError(f"signal {number}: wanted an end within {limit} seconds; got none")


def _waited(process: subprocess.Popen) -> float:
    """Seconds that the main thread of a process has waited for a processor; 0 where the kernel does not count them."""
    try:
        return int(Path(f"/proc/{process.pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):  # no Linux, or the process has ended
        return 0.0


def done(world: int, jobs: list[dict], folder: Path) -> list[dict[str, dict]]:
    """The results of the jobs at each rank, all within the time limit."""
    processes = started(world, jobs, folder)
    try:
        output = [process.communicate(timeout=LIMIT)[0] for process in processes]
    finally:
        end(processes)
    assert [process.returncode for process in processes] == [0] * world, "\n".join(output)
    return results(world, folder)


def results(world: int, folder: Path) -> list[dict[str, dict]]:
    return [json.loads((folder / f"done-{rank}.json").read_text()) for rank in range(world)]


def work(path: Path) -> None:
    rank = int(os.environ["RANK"])
    outcomes = {}
    for job in json.loads(path.read_text()):
        if "port" in job:
            os.environ["MASTER_PORT"] = str(job["port"])
        outcomes[job["name"]] = work_on(job, rank)
    (path.parent / f"done-{rank}.json").write_text(json.dumps(outcomes))
    if "TORCHELASTIC_RUN_ID" in os.environ:
        sys.exit(max(outcome["code"] for outcome in outcomes.values()))


def work_on(job: dict, rank: int) -> dict:
    from regard.api.train import train
    from regard.core.errors import RegardError
    from regard.training.trainer import Trainer

    update, rows, events, last = Trainer._update, [], [], time.monotonic()

    def noted(self, group):
        nonlocal last
        end, last = job.get("end"), time.monotonic()
        first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
        if end and first and (end["rank"], end["update"]) == (rank, self.state.step + 1):
            os.kill(os.getpid(), end["signal"])
        rows.append([row for batch in group if not batch.borrowed for row in batch.rows.tolist()])
        return update(self, group)

    Trainer._update = noted
    outcome = {"error": None, "code": 0}
    try:
        train(
            job["recipe"],
            job["run"],
            cache=Path(job["cache"]),
            resume=job.get("resume", False),
            changes=job.get("changes", {}).get(str(rank), ()),
            on_event=lambda event: events.append(event["event"]),
        )
    except RegardError as error:
        outcome = {"error": str(error), "code": error.exit_code}
    finally:
        Trainer._update = update
    return outcome | {"rows": rows, "events": events, "waited": time.monotonic() - last}


if __name__ == "__main__":
    signal.alarm(LIMIT)
    work(Path(sys.argv[1]))
