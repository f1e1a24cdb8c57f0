"""log.jsonl, the log of a run: one JSON object a line for each training and validation event."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from regard.core.atomic_io import atomic_file
from regard.core.sanitize import as_json_line

LOG_FILE = "log.jsonl"
Event = dict[str, Any]  # "event" is its kind: start, resumed, prepare, train, validation, checkpoint, warning
EventHandler = Callable[[Event], None]


def ignore_event(event: Event) -> None:
    """The handler of a caller that is not interested."""


class EventLog:
    """Appends events to log.jsonl and passes them on. Only rank 0 writes."""

    def __init__(self, run: Path, on_event: EventHandler, *, write: bool = True) -> None:
        self.file = (run / LOG_FILE if write else Path(os.devnull)).open("a", encoding="utf-8")
        self.on_event = on_event

    def __enter__(self) -> "EventLog":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.file.close()

    def __call__(self, event: Event) -> None:
        self.file.write(as_json_line(event) + "\n")
        self.file.flush()
        self.on_event(event)


def truncate_log(run: Path, step: int) -> None:
    """Drop the lines after a checkpoint's step: these updates are made again. Lines cut short by a kill go too."""
    path = run / LOG_FILE
    if not path.exists():
        return
    kept = []
    for line in path.read_bytes().split(b"\n"):
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line + b"\n")
        except (ValueError, KeyError):
            continue
    with atomic_file(path) as file:
        file.write(b"".join(kept))
