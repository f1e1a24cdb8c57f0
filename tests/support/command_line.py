"""The command line for tests: in a process of its own, or in this one."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryFile

from regard.cli import main


def process(*arguments: str | Path, text: str | bytes = "") -> subprocess.CompletedProcess:
    """The command as a shell starts it, with something to read."""
    given = text.encode() if isinstance(text, str) else text
    done = subprocess.run(
        [sys.executable, "-m", "regard", *map(str, arguments)], input=given, capture_output=True
    )
    return subprocess.CompletedProcess(
        done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
    )


def command(*arguments: str | Path, text: str | bytes | None = None) -> subprocess.CompletedProcess:
    """The same without a process of its own, which takes seconds to import PyTorch."""
    code, given = 0, sys.argv
    with (
        TemporaryFile("w+", encoding="utf-8") as out,
        TemporaryFile("w+", encoding="utf-8") as errors,
    ):
        sys.argv = ["regard", *map(str, arguments)]
        try:
            with redirect_stdout(out), redirect_stderr(errors), standard_input(text):
                main()
        except SystemExit as exit:
            code = int(exit.code or 0)
        finally:
            sys.argv = given
        written = [stream.seek(0) or stream.read() for stream in (out, errors)]
    return subprocess.CompletedProcess(["regard", *arguments], code, *written)


@contextmanager
def standard_input(text: str | bytes | None) -> Iterator[None]:
    """Something to read from standard input; None: what there is."""
    if text is None:
        yield
        return
    before = os.dup(0)
    with TemporaryFile() as file:
        file.write(text.encode() if isinstance(text, str) else text)
        file.seek(0)
        os.dup2(file.fileno(), 0)
        try:
            yield
        finally:
            os.dup2(before, 0)
            os.close(before)
