"""The command line for tests: in a process of its own, or in this one."""

import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryFile

from regard.cli import main


def process(*arguments: str | Path, text: str | bytes = "") -> subprocess.CompletedProcess:
    """The command as a shell starts it, with something to read."""
    given = text.encode() if isinstance(text, str) else text
    done = subprocess.run([sys.executable, "-m", "regard", *map(str, arguments)], input=given, capture_output=True)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def command(*arguments: str | Path) -> subprocess.CompletedProcess:
    """The same without a process of its own, which takes seconds to import PyTorch."""
    code, given = 0, sys.argv
    with TemporaryFile("w+", encoding="utf-8") as out, TemporaryFile("w+", encoding="utf-8") as errors:
        sys.argv = ["regard", *map(str, arguments)]
        try:
            with redirect_stdout(out), redirect_stderr(errors):
                main()
        except SystemExit as exit:
            code = int(exit.code or 0)
        finally:
            sys.argv = given
        written = [stream.seek(0) or stream.read() for stream in (out, errors)]
    return subprocess.CompletedProcess(["regard", *arguments], code, *written)
