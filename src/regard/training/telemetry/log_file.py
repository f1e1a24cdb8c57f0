"""log.jsonl, the log of a run: one JSON object a line for each training and validation event."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from regard.core.atomic_io import atomic_file, is_open_file, saving
from regard.core.errors import TrainingFailed
from regard.core.sanitize import as_json_line

LOG_FILE = "log.jsonl"
# "event" is its kind: start, resumed, prepare, update, train, validation, ...
Event = dict[str, Any]
EventHandler = Callable[[Event], None]


def ignore_event(event: Event) -> None:
    """An event handler that does nothing."""


class EventLog:
    """An event handler that appends events to log.jsonl, if it is open, and passes them on."""

    def __init__(self, run: Path, file: TextIO | None, on_event: EventHandler) -> None:
        self.run = run
        self.file = file
        self.on_event = on_event

    def __call__(self, event: Event) -> None:
        self.check_folder()
        if self.file is not None:
            with saving(self.run / LOG_FILE, "write the log"):
                self.file.write(as_json_line(event) + "\n")
                self.file.flush()
        self.on_event(event)

    def check_folder(self) -> None:
        """Raise TrainingFailed if the folder of the run was removed or renamed."""
        if self.file is not None and not is_open_file(self.file.fileno(), self.run / LOG_FILE):
            raise TrainingFailed(
                f"{self.run}: wanted the folder of this run with its {LOG_FILE}; got none: it was "
                "removed or renamed while training. Put it back, and resume."
            )


@contextmanager
def event_log(run: Path, on_event: EventHandler, *, write: bool) -> Iterator[EventLog]:
    """The log of a run; only rank 0 writes."""
    with ExitStack() as stack:
        file = None
        if write:
            file = (run / LOG_FILE).open("a", encoding="utf-8")
            stack.callback(_close, file)
        yield EventLog(run, file, on_event)


def _close(file: TextIO) -> None:
    with suppress(OSError):  # of text that could not be written, which was reported then
        file.close()


def truncate_log(run: Path, step: int) -> None:
    """Drop the lines after a checkpoint's step: these updates are made again.

    Lines cut short by a kill go too.
    """
    path = run / LOG_FILE
    if not path.exists():
        return
    lines = path.read_bytes().split(b"\n")
    with saving(path, "write the log"), atomic_file(path) as file:
        for line in lines:
            with suppress(ValueError, KeyError):
                if json.loads(line)["step"] <= step:
                    file.write(line + b"\n")
