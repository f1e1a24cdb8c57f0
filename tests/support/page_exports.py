"""Models exported as pages and programs: each once for all tests and workers of a run, by a process of its own.

The shape checks of the tests do not know the symbolic sizes of torch.export: that process runs without them.

    python -m support.page_exports FOLDER    reads a line of JSON for each export, [kind, name], and answers each
"""

import io
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

PATIENCE = 300.0  # seconds until another worker must have exported what it began with


class PageExports:
    """Exports on demand into a folder that the workers of a run share; what one has begun with, the others wait for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen | None = None
        folder.mkdir(exist_ok=True)

    def page(self, name: str) -> Path:
        """A page of `page_members.PAGES`."""
        return self._exported("page", name, ".html")

    def program(self, kind: str, name: str) -> Path:
        """A member of the contract family ("encoder" or "decoder") as `page_members.write_program` writes it."""
        return self._exported(kind, name, ".json")

    def _exported(self, kind: str, name: str, suffix: str) -> Path:
        path, error = (self.folder / f"{kind} {name}{end}" for end in (suffix, ".error"))
        try:
            (self.folder / f"{kind} {name}.begun").touch(exist_ok=False)
        except FileExistsError:
            until = time.monotonic() + PATIENCE
            while not (path.exists() or error.exists()) and time.monotonic() < until:
                time.sleep(0.02)
        else:
            self._export(kind, name, error)
        assert path.exists(), (
            error.read_text() if error.exists() else f"{path} was not exported in {PATIENCE} s"
        )
        return path

    def _export(self, kind: str, name: str, error: Path) -> None:
        if self.process is None:
            path = os.pathsep.join(
                [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
            )
            self.process = subprocess.Popen(
                [sys.executable, "-m", "support.page_exports", str(self.folder)],
                env=os.environ | {"PYTHONPATH": path},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        self.process.stdin.write(json.dumps([kind, name]) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if answer != json.dumps("") + "\n":  # the export failed, or has written something
            error.write_text(answer)

    def close(self) -> None:
        if self.process is not None:
            self.process.stdin.close()
            assert self.process.wait(60) == 0
            self.process.stdout.close()


@contextmanager
def page_exports(folder: Path) -> Iterator[PageExports]:
    made = PageExports(folder)
    try:
        yield made
    finally:
        made.close()


def main(folder: Path) -> None:
    from support import page_members

    for line in sys.stdin:
        told = io.StringIO()
        with redirect_stdout(told), redirect_stderr(told):
            try:
                page_members.export(folder, *json.loads(line))
            except Exception:
                traceback.print_exc()
        print(json.dumps(told.getvalue()), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
