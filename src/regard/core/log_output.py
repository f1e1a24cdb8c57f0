"""Log records of the package as lines on stderr."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from regard.core.sanitize import indented

MORE_FOLLOWS = {"more_follows": True}  # `extra` of a record that is written with the next one


class _StderrHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to what is stderr now: lines for it are shown above a status line, which stands in its place."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self._kept: list[str] = []  # lines that are written with the next one

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        if getattr(record, "more_follows", False):
            self._kept.append(super().format(record) + self.terminator)
        else:
            super().emit(record)

    def format(self, record: logging.LogRecord) -> str:
        kept, self._kept = self._kept, []
        return "".join(kept) + super().format(record)


class _Printable(logging.Formatter):
    """Log records without the control characters of file names and data."""

    def format(self, record: logging.LogRecord) -> str:
        return indented(super().format(record))


@contextmanager
def logging_to_stderr(prefix: str) -> Iterator[None]:
    """Print the log records of the package, from INFO on, to stderr."""
    logger, handler = logging.getLogger("regard"), _StderrHandler()
    handler.setFormatter(_Printable(f"{prefix}%(message)s"))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
