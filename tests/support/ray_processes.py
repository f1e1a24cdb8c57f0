"""Programs that use Ray, for tests: in processes of their own, none of which is left behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

PATIENCE = 600.0  # seconds for anything that Ray does; a quiet machine needs a tenth
MARK = "REGARD_TEST_RAY"


def processes(mark: str) -> dict[int, str]:
    """Processes with this mark in their environment, with their commands."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile, or is of another user
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = (
                    (folder / "cmdline").read_text().replace("\0", " ").strip()
                )
    return found


@contextmanager
def ray_environment() -> Iterator[dict[str, str]]:
    """The environment of programs that use Ray: all of their processes have to end."""
    with TemporaryDirectory(prefix="ray") as folder:  # paths of its sockets must be short
        yield os.environ | {
            MARK: folder,
            "RAY_TMPDIR": folder,
            "RAY_AUTH_MODE": "disabled",
            "OMP_NUM_THREADS": "1",
        }
        end = (
            time.monotonic() + 150
        )  # an agent that starts while its cluster ends waits a minute for it
        while (left := processes(folder)) and time.monotonic() < end:
            time.sleep(0.1)
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        assert not left, f"processes are left behind: {left}"


def run(program: Path, *arguments: str | Path, text: str = "") -> subprocess.CompletedProcess:
    """A Python program and its output."""
    with ray_environment() as environment:
        return subprocess.run(
            [sys.executable, str(program), *map(str, arguments)],
            input=text, env=environment, capture_output=True, text=True, timeout=PATIENCE,
        )  # fmt: skip
