"""Reading log.jsonl of a run that may still train: new lines only,
also where the log was cut back by a resumed run.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from regard.training.telemetry.log_file import Event

MOST = 1 << 20  # bytes that are read at once
TAIL = 256  # bytes before a position that are compared


@dataclass(frozen=True)
class LogPosition:
    """A place in a log: how far it was read, and a checksum of the bytes before.

    A resumed run rewrites its log without the lines after its checkpoint. Where the bytes before a
    position are no longer those that were read, the log is read again from its beginning.
    """

    offset: int = 0
    checksum: int = 0

    def __str__(self) -> str:
        return f"{self.offset}-{self.checksum:08x}"

    @staticmethod
    def parse(text: str) -> "LogPosition":
        """From `str`; anything else is the beginning."""
        found = re.fullmatch(r"(\d{1,18})-([0-9a-f]{8})", text, re.ASCII)
        if found is None:
            return LogPosition()
        return LogPosition(int(found[1]), int(found[2], 16))


BEGINNING = LogPosition()


@dataclass(frozen=True)
class NewLines:
    """The lines after a position, without one that is still being written."""

    lines: list[bytes]
    position: LogPosition  # after them
    restarted: bool  # they begin at the beginning of the log, although a later position was given
    complete: bool  # these are all that there are


def new_lines(path: Path, after: LogPosition = BEGINNING, *, most: int = MOST) -> NewLines:
    """The lines after a position, about `most` bytes of them; the file is only read."""
    with path.open("rb") as file:
        begin = max(0, after.offset - TAIL)
        file.seek(begin)
        before = file.read(after.offset - begin)
        known = len(before) == after.offset - begin and crc32(before) == after.checksum
        if not known:
            begin = 0
            before = b""
            file.seek(0)
        content = file.read(most)
        if b"\n" not in content:  # one long line
            content += file.readline()
        complete = not file.read(1)
    content = content[: content.rfind(b"\n") + 1]
    read = before + content
    position = LogPosition(begin + len(read), crc32(read[-TAIL:]))
    return NewLines(content.splitlines(), position, not known, complete)


def event_of(line: bytes) -> Event | None:
    """The event of a line; None: the line was cut short when a process was killed."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None
