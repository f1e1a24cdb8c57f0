"""log.jsonl, the log of a run: one JSON object a line for each training and validation event."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from regard.core.atomic_io import atomic_file
from regard.core.sanitize import as_json_line

LOG_FILE = "log.jsonl"
Event = dict[str, Any]  # "event" is its kind: start, resumed, prepare, train, validation, checkpoint, warning
EventHandler = Callable[[Event], None]


def ignore_event(event: Event) -> None:
    """An event handler that does nothing."""


@contextmanager
def event_log(run: Path, on_event: EventHandler, *, write: bool) -> Iterator[EventHandler]:
    """An event handler that appends events to log.jsonl, if `write`, and passes them on."""
    with (run / LOG_FILE if write else Path(os.devnull)).open("a", encoding="utf-8") as file:

        def handle(event: Event) -> None:
            file.write(as_json_line(event) + "\n")
            file.flush()
            on_event(event)

        yield handle


def truncate_log(run: Path, step: int) -> None:
    """Drop the lines after a checkpoint's step: these updates are made again. Lines cut short by a kill go too."""
    path = run / LOG_FILE
    if not path.exists():
        return
    lines = path.read_bytes().split(b"\n")
    with atomic_file(path) as file:
        for line in lines:
            with suppress(ValueError, KeyError):
                if json.loads(line)["step"] <= step:
                    file.write(line + b"\n")
