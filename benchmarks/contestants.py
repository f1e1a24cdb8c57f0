"""Contestants in processes of their own: environments that are installed once, workers that wait for their turn."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent


class Worker:
    """A contestant's process, warm and waiting: a line in, a line of JSON out. The first line says what it is."""

    def __init__(self, label: str, command: Sequence[str | Path], threads: int) -> None:
        self.label = label
        self.process = subprocess.Popen(
            command,
            cwd=HERE,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(threads),
        )
        self.about = self._answer()

    def ask(self, question: object) -> dict[str, Any]:
        assert self.process.stdin is not None
        print(question, file=self.process.stdin, flush=True)
        return self._answer()

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.label} ended before it answered; its output is above.")
        return json.loads(line)


def environment(threads: int) -> dict[str, str]:
    quiet = {
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_VERBOSITY": "error",
        "HF_HUB_OFFLINE": "1",
    }
    # Threads that wait must not spin: not beside the worker whose turn it is, nor in the count of busy time.
    return {
        **os.environ,
        **quiet,
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        "KMP_BLOCKTIME": "0",
    }


def install(
    folder: Path,
    requirements: Sequence[str],
    *,
    alone: Sequence[str] = (),
    needs: Sequence[str] = (),
) -> None:
    """A virtual environment, made once and again whenever these lists change; torch as the project pins it.

    Packages in `alone` come without what they ask for; `needs` is what they need.
    """
    ready = folder / ".ready"
    wanted = " ".join((*requirements, *alone, *needs))
    if ready.exists() and ready.read_text() == wanted:
        return
    print(f"Setting up {folder.relative_to(ROOT)} (once; a minute or two) ...", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    pip = [
        folder / "bin" / "python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]
    pip += ["--constraint", ROOT / "constraints.txt"]
    subprocess.run([*pip, *requirements, *needs], check=True)
    if alone:
        subprocess.run([*pip, "--no-deps", *alone], check=True)
    ready.write_text(wanted)
