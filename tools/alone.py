"""Runs every file of tests in a process of its own: none may need what another file has imported or left behind.

    python tools/alone.py [--jobs 2] [--order 7] [tests/data tests/test_package.py …]

Each process is forked from one that has imported PyTorch and NumPy, but nothing of Regard: that saves most of the time
to start. Tests marked slow are left out. The output of files that fail is printed at the end, and the exit code is 1.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).parents[1]
PRELOADED = ("numpy", "torch")
PASSED = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)  # the latter: all tests are slow


@dataclass
class Run:
    """A file whose tests run in a process."""

    file: str
    output: Path
    began: float


def test_files(chosen: list[str]) -> list[str]:
    """The files of tests that git knows, in these files and folders."""
    listed = subprocess.check_output(["git", "ls-files", *chosen], cwd=ROOT, text=True)
    return [name for name in listed.splitlines() if Path(name).match("test_*.py")]


def start(file: str, folder: Path, options: list[str]) -> tuple[int, Run]:
    """Run the tests of a file in a new process; returns the number of the process."""
    output = folder / file.replace("/", ".")
    sys.stdout.flush()
    process = os.fork()
    if process == 0:
        run_here(file, output, options)
    return process, Run(file, output, time.monotonic())


def run_here(file: str, output: Path, options: list[str]) -> NoReturn:
    """Run the tests of a file in this process, and end it with pytest's exit code."""
    code = int(pytest.ExitCode.INTERNAL_ERROR)
    try:
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        code = int(pytest.main([*options, file]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("chosen", nargs="*", default=["tests"], help="files and folders")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at once")
    parser.add_argument("--order", type=int, default=1, help="seed of the order of the tests")
    arguments = parser.parse_args()
    os.chdir(ROOT)
    for name in PRELOADED:
        import_module(name)
    options = ["-q", "-m", "not slow", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist"]
    options.append(f"--randomly-seed={arguments.order}")
    waiting = test_files(arguments.chosen)[::-1]
    total = len(waiting)
    running: dict[int, Run] = {}
    failed: list[Run] = []
    with tempfile.TemporaryDirectory() as folder:
        done = 0
        while waiting or running:
            while waiting and len(running) < arguments.jobs:
                process, run = start(waiting.pop(), Path(folder), options)
                running[process] = run
            process, status = os.wait()
            run = running.pop(process)
            done += 1
            passed = os.waitstatus_to_exitcode(status) in PASSED
            if not passed:
                failed.append(run)
            taken = time.monotonic() - run.began
            word = "passed" if passed else "FAILED"
            print(f"{done}/{total} {word} {run.file} in {taken:.1f} s", flush=True)
        for run in failed:
            print(f"\n{run.file}\n{run.output.read_text('utf-8', errors='replace')}")
    print(f"{total - len(failed)} files passed, {len(failed)} failed")
    return 1 if failed or not total else 0


if __name__ == "__main__":
    sys.exit(main())
