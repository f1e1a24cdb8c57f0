"""Log records of the package as lines on stderr."""

import logging
import os
import queue
import select
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from regard.core.sanitize import indented

MORE_FOLLOWS = {"more_follows": True}  # `extra` of a record that is written with the next one
MOST_WAITING = 4 << 20  # characters of lines that wait to be written
WRITE = 1 << 16  # characters that are written at a time, if as many wait
FLUSH_SECONDS = 2.0  # in which the last lines must be written


class BackgroundWriter:
    """Writes lines to stderr in a thread of its own, so that a slow reader of stderr stops nothing else.

    Lines that find no room are dropped and counted, and the count is written when there is room again.

    dropped   lines that were dropped
    """

    def __init__(self, prefix: str) -> None:
        self.dropped = 0
        self._prefix = prefix
        self._reported = 0  # of the lines that were dropped
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._waiting = 0  # characters
        # A signal handler may log while the same thread is in `write`.
        self._lock = threading.RLock()
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def write(self, text: str, lines: int = 1) -> None:
        """Queue a text of this many lines. This does not wait."""
        with self._lock:
            if self._waiting + len(text) > MOST_WAITING:
                self.dropped += lines
                return
            self._waiting += len(text)
        self._lines.put(text)

    def flush(self, seconds: float = FLUSH_SECONDS) -> bool:
        """Wait until all lines are written, but not longer than this. Return whether they are written."""
        end = time.monotonic() + seconds
        while self._waiting and time.monotonic() < end:
            time.sleep(0.005)
        return not self._waiting

    def close(self) -> None:
        """Write the waiting lines. If nobody reads them in time, close stderr, so that later writes cannot block."""
        written = self.flush()
        self._lines.put(None)
        if written:
            self._thread.join(FLUSH_SECONDS)
        if self._thread.is_alive():
            with suppress(OSError, ValueError):  # stderr is no file
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())

    def _run(self) -> None:
        while (text := self._lines.get()) is not None:
            parts = [text]
            size = len(text)
            while size < WRITE and not self._lines.empty():
                more = self._lines.get()
                if more is None:
                    self._lines.put(None)  # the end comes after these lines
                    break
                parts.append(more)
                size += len(more)
            _write("".join(parts))
            if self.dropped > self._reported:
                count = self.dropped - self._reported
                self._reported += count
                _write(
                    f"{self._prefix}{count:,} lines of the log were dropped here, because stderr was not read "
                    "fast enough. Read it faster, or send it to a file.\n"
                )
            with self._lock:
                self._waiting -= size


def _write(text: str) -> None:
    """Write to the present stderr without its buffer: a thread that waits there would stop Python from exiting."""
    stream = sys.stderr
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError, AttributeError):  # it is no file
        with suppress(OSError, ValueError):
            stream.write(text)
            stream.flush()
        return
    content = memoryview(text.encode(stream.encoding or "utf-8", "replace"))
    while content:
        try:
            content = content[os.write(descriptor, content) :]
        except BlockingIOError:
            select.select([], [descriptor], [], 1.0)
        except OSError:  # it is closed, or its disk is full
            return


class _StderrHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to the present stderr, which a status line may have replaced to show lines above itself.

    writer   writes the lines in its thread; None: they are written here
    """

    def __init__(self, prefix: str) -> None:
        super().__init__(sys.stderr)
        self.prefix = prefix
        self.writer: BackgroundWriter | None = None
        self._kept: list[str] = []  # lines that are written with the next one
        self.setFormatter(_Printable(f"{prefix}%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        if getattr(record, "more_follows", False):
            self._kept.append(super().format(record) + self.terminator)
        elif self.writer is None:
            super().emit(record)
        else:
            lines = len(self._kept) + 1
            try:
                self.writer.write(self.format(record) + self.terminator, lines)
            except Exception:
                # A record that cannot be formatted is handled as `logging` handles it.
                self.handleError(record)

    def format(self, record: logging.LogRecord) -> str:
        kept = self._kept
        self._kept = []
        return "".join(kept) + super().format(record)


class _Printable(logging.Formatter):
    """Log records without the control characters of file names and data."""

    def format(self, record: logging.LogRecord) -> str:
        return indented(super().format(record))


@contextmanager
def logging_to_stderr(prefix: str) -> Iterator[None]:
    """Print the log records of the package, from INFO on, to stderr."""
    logger = logging.getLogger("regard")
    handler = _StderrHandler(prefix)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


_writers: list[BackgroundWriter] = []  # of this process: one, while it serves


@contextmanager
def logging_in_background() -> Iterator[None]:
    """Write the lines of `logging_to_stderr` in a thread meanwhile, with the warnings of libraries among them.

    Where it is not in use, as in a program that sets up its own logging, nothing changes.
    """
    handlers = logging.getLogger("regard").handlers
    own = [handler for handler in handlers if isinstance(handler, _StderrHandler)]
    if not own:
        yield
        return
    writer = BackgroundWriter(own[0].prefix)
    # Without a handler, Python would print warnings of libraries itself, and wait for whoever reads them.
    others = _StderrHandler(f"{own[0].prefix}%(name)s: ")
    others.setLevel(logging.WARNING)
    others.addFilter(lambda record: not record.name.startswith("regard"))
    logging.getLogger().addHandler(others)
    logging.captureWarnings(True)
    _writers.append(writer)
    for handler in (*own, others):
        handler.writer = writer
    try:
        yield
    finally:
        writer.close()
        for handler in (*own, others):
            handler.writer = None
        _writers.remove(writer)
        logging.captureWarnings(False)
        logging.getLogger().removeHandler(others)


def dropped_lines() -> int:
    """How many lines of the log this process has dropped."""
    return sum(writer.dropped for writer in _writers)


def flush_log(seconds: float = FLUSH_SECONDS) -> None:
    """Wait until the log is written, but not longer than this: for a process that ends at once."""
    for writer in _writers:
        writer.flush(seconds)
