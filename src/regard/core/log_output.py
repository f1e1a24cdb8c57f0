"""Log records of the package as lines on stderr."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from regard.core.sanitize import indented


class _StderrHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to what is stderr now: lines for it are shown above a status line, which stands in its place."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


class _Printable(logging.Formatter):
    """Log records without the control characters of file names and data."""

    def format(self, record: logging.LogRecord) -> str:
        return indented(super().format(record))


@contextmanager
def logging_to_stderr(prefix: str) -> Iterator[None]:
    """Print the log records of the package, from INFO on, to stderr."""
    logger, handler = logging.getLogger("regard"), _StderrHandler(sys.stderr)
    handler.setFormatter(_Printable(f"{prefix}%(message)s"))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
