"""The memory of a process on Linux, as /proc tells it."""

import subprocess
import sys
from pathlib import Path

import pytest

MEBIBYTE = 1 << 20
needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


def resident(process: int | str = "self") -> int:
    """Bytes that are in memory."""
    return _status(process, "VmRSS:")


def peak(process: int | str = "self") -> int:
    """The most bytes that were in memory, since the process began or `forget_peak` was called."""
    return _status(process, "VmHWM:")


def forget_peak(process: int | str = "self") -> None:
    Path(f"/proc/{process}/clear_refs").write_text("5")


def _status(process: int | str, name: str) -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    (found,) = (line for line in lines if line.startswith(name))
    return int(found.split()[1]) << 10


def output_of(code: str, *arguments: str) -> str:
    """What a program prints in a new process, which has no memory of others' tests."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent.parent,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
