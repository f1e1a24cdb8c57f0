"""Log records on stderr that a thread writes: nothing waits for who reads them, and what is lost is counted."""

import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr

import pytest

from regard.core.log_output import dropped_lines, logging_in_background, logging_to_stderr

log = logging.getLogger("regard.test")
PATIENCE = 60.0


@contextmanager
def piped_stderr() -> Iterator[int]:
    """The reading end of a pipe that is stderr. (A fixture cannot do this: pytest sets stderr after them.)"""
    reading, writing = os.pipe()
    with os.fdopen(writing, "w", encoding="utf-8") as stream, redirect_stderr(stream):
        yield reading
        os.close(reading)  # a thread that is still writing fails now


@contextmanager
def logging_to_pipe() -> Iterator[int]:
    with piped_stderr() as reader, logging_to_stderr("regard: "), logging_in_background():
        yield reader


def read_until(reader: int, wanted: str) -> str:
    """What is written until a text appears."""
    content = ""
    while wanted not in content:
        content += os.read(reader, 1 << 16).decode()
    return content


def test_lines_that_nobody_reads_are_dropped_and_counted():
    count = 10_000
    with logging_to_pipe() as reader:
        for number in range(count):
            log.info("line %d %s", number, "x" * 1000)
        dropped = dropped_lines()
        assert 0 < dropped < count  # and this point is reached
        content = read_until(reader, "were dropped")
        log.info("after all")
        content += read_until(reader, "after all\n")
    lines = content.splitlines()
    numbers = [int(line.split()[2]) for line in lines if line.startswith("regard: line")]
    assert numbers == list(range(count - dropped))
    assert f"regard: {dropped:,} lines of the log were dropped" in content


def test_a_program_ends_although_nobody_reads_its_last_lines():
    began = time.monotonic()
    with piped_stderr():
        with logging_to_stderr("regard: "), logging_in_background():
            for _ in range(1000):
                log.info("%s", "x" * 1000)
        print("after the end", file=sys.stderr, flush=True)  # does not wait either
    assert time.monotonic() - began < PATIENCE


def test_all_lines_are_written_before_the_end():
    with piped_stderr() as reader:
        with logging_to_stderr("regard: "), logging_in_background():
            for number in range(20):
                log.info("line %d", number)
        content = os.read(reader, 1 << 16).decode()
    assert content.splitlines() == [f"regard: line {number}" for number in range(20)]


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers of Unix")
def test_a_signal_handler_may_log_while_its_thread_does():
    """The handlers of signals run between any two steps of the main thread, also while it logs."""
    interrupted = []

    def handle(number: int, frame: object) -> None:
        interrupted.append(number)
        log.info("inner")

    before = signal.signal(signal.SIGALRM, handle)
    try:
        with logging_to_pipe() as reader:
            signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
            while len(interrupted) < 300:
                log.info("outer")
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            log.info("end")
            assert "outer" in read_until(reader, "end\n")
    finally:
        signal.signal(signal.SIGALRM, before)


def test_warnings_of_libraries_are_lines_like_others():
    with logging_to_pipe() as reader:
        logging.getLogger("library.part").warning("first\nsecond")
        logging.getLogger("library.part").info("not of interest")
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("old", stacklevel=1)
        content = read_until(reader, "old")
    first, second, third, *_ = content.splitlines()
    assert first == "regard: library.part: first"
    assert second == "  second"
    assert third.startswith("regard: py.warnings: ")
    assert "old" in third


def test_without_handlers_of_its_own_nothing_changes():
    before = [*logging.getLogger().handlers]
    with logging_in_background():
        assert logging.getLogger().handlers == before
        assert not [each for each in threading.enumerate() if each.name == "log"]
