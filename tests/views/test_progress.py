"""Progress on a terminal, in a notebook and in a pipe."""

import json
import os
import pty
import re
import select
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from itertools import pairwise
from types import ModuleType

import pytest

from regard.api.train import train
from regard.views import progress
from regard.views.progress import Status, StatusLine, TrainingProgress, status_line, tracked
from support.training_runs import table

ESCAPE = "\x1b"
UPDATE = {"loss": 3.0, "nll": 2.0, "perplexity": 7.4, "tokens_per_second": 1234.0}


@contextmanager
def terminal():
    """A pseudo-terminal as a stream, and a function that returns what it shows so far and when it came."""
    control, end = pty.openpty()
    chunks, stream = [], os.fdopen(end, "w", encoding="utf-8")

    def read():
        while select.select([control], [], [], 0.05)[0] or not stream.closed:
            if select.select([control], [], [], 0)[0]:
                try:
                    chunks.append((time.perf_counter(), os.read(control, 65536).decode()))
                except OSError:  # the other end is closed
                    return

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield (
            stream,
            lambda: "".join(text for _, text in chunks),
            lambda: [when for when, _ in chunks],
        )
    finally:
        stream.close()
        reader.join()
        os.close(control)


@pytest.fixture(autouse=True)
def _terminal_type(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")


def wait_for(condition, seconds=10.0):
    end = time.perf_counter() + seconds
    while not condition():
        assert time.perf_counter() < end
        time.sleep(0.01)


def test_a_status_line_is_renewed_at_least_twice_a_second():
    """Also while the work itself does nothing: its thread reads the status."""
    count = 0

    def status():
        nonlocal count
        count += 1
        return Status(f"renewed {count} times", 0.5)

    with terminal() as (stream, shown, times):
        line = StatusLine(stream, status)
        wait_for(lambda: "renewed 6 times" in shown())
        line.print("a line above")
        line.close()
        wait_for(lambda: "a line above\r\n" in shown())
        assert (
            sorted(later - earlier for earlier, later in pairwise(times()))[len(times()) // 2] < 0.5
        )
    assert f"\r{ESCAPE}[2K" in shown()  # erased, and written again
    assert f"{ESCAPE}[?25l" not in shown()  # the cursor stays


def test_the_training_line_has_loss_throughput_and_the_time_left():
    with terminal() as (stream, shown, _):
        handler = TrainingProgress(stream)
        handler({"event": "start", "steps": 1000, "model": "a model", "device": "cpu"})
        for step in (1, 2):
            handler({"event": "update", "step": step, **UPDATE})
            wait_for(lambda step=step: f"step {step}/1,000" in shown())
        handler({"event": "validation", "step": 2, "loss": 1.5, "best": True})
        handler.close()
        wait_for(lambda: shown().count("step 2/1,000   loss") > 1)
    line = re.search(r"step 2/1,000 .*", shown())[0]
    assert re.search(
        r"loss 3\.0000   nll 2\.0000   1,234 tokens/s   [\d:]+ left   perplexity 7\.40", line
    )
    assert "validation at step 2: loss 1.5000   (best)\r\n" in shown()


def test_a_narrow_terminal_has_the_whole_text_and_the_bar(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    status = Status("step 5/10   loss 3.0000   nll 2.0000   perplexity 7.39", 0.5)
    with terminal() as (stream, shown, _):
        line = StatusLine(stream, lambda: status, keep=True)
        wait_for(lambda: "perplexity 7.39" in shown())
        line.close()
        assert "━" * 10 in shown()


def test_a_terminal_that_is_gone_ends_nothing():
    with terminal() as (stream, shown, _):
        handler = TrainingProgress(stream)
        handler({"event": "update", "step": 1, **UPDATE})
        wait_for(lambda: "step 1" in shown())
        os.close(stream.fileno())
        handler({"event": "warning", "message": "into the void"})
        handler.close()
        os.open(os.devnull, os.O_RDWR)  # the number that the stream will close


def test_training_in_python_shows_progress_on_a_terminal_unless_asked_not_to(tmp_path, monkeypatch):
    recipe = table(max_steps=4)
    with terminal() as (stream, shown, _):
        monkeypatch.setattr(sys, "stderr", stream)
        train(recipe, tmp_path / "silent", cache=tmp_path / "cache", progress=False)
        assert shown() == ""
        train(recipe, tmp_path / "shown", cache=tmp_path / "cache")
        wait_for(lambda: "step 4/4   loss" in shown())
        assert sys.stderr is stream
        monkeypatch.undo()
    assert "validation at step 4" in shown()


def test_updates_are_not_logged_and_change_nothing(tmp_path):
    events = []
    train(
        table(max_steps=4, log_every=2),
        tmp_path / "run",
        cache=tmp_path / "cache",
        on_event=events.append,
    )
    assert [event["step"] for event in events if event["event"] == "update"] == [1, 2, 3, 4]
    lines = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["train", "train", "validation"]
    logged = [event for event in events if event["event"] == "train"]
    assert [line["loss"] for line in lines[:2]] == [event["loss"] for event in logged]


COUNTED = """
import sys, time
from regard.views.progress import tracked
for item in tracked(range(8), "lines", printing=sys.argv[1] == "printing"):
    time.sleep(0.1)
    print(item)
"""


def test_a_block_has_a_status_line_on_a_terminal_unless_it_is_not_to_be_shown(monkeypatch):
    for options, is_shown in (({}, True), ({"shown": True}, True), ({"shown": False}, False)):
        with terminal() as (stream, shown, _), monkeypatch.context() as patched:
            patched.setattr(sys, "stderr", stream)
            with status_line(lambda: Status("loss without each head"), **options):
                if is_shown:
                    wait_for(lambda shown=shown: "loss without each head" in shown())
            stream.flush()
            assert bool(shown()) is is_shown


def test_lines_are_counted_on_a_terminal_only():
    command = [sys.executable, "-c", COUNTED, "printing"]
    piped = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (piped.stdout.split(), piped.stderr) == (list("01234567"), "")
    with terminal() as (stream, shown, _):
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=stream, check=True)
        wait_for(lambda: "a second" in shown())
    assert re.search(r"lines [1-7]   \d+\.\d a second   0:00:00", shown())
    assert shown().endswith(f"\r{ESCAPE}[1A{ESCAPE}[2K")  # nothing is left
    with terminal() as (stream, shown, _):
        subprocess.run(
            command, stdout=stream, stderr=stream, check=True
        )  # its own lines are the progress
        wait_for(lambda: "7" in shown())
    assert shown().split() == list("01234567")


FAILING = """
import sys, time
import regard
from regard.cli import main
from regard.views.progress import tracked

raised = {"error": regard.RegardError("a message"), "interrupt": KeyboardInterrupt()}[sys.argv[1]]

def failing(*_, **__):
    items = tracked(range(8), "lines")  # a local variable, which the traceback of the exception keeps
    for item in items:
        time.sleep(0.4)
        raise raised

regard.plot, sys.argv = failing, ["regard", "plot", "."]
main()
"""


@pytest.mark.parametrize(
    ("name", "message"), [("error", "regard: a message"), ("interrupt", "regard: interrupted")]
)
def test_a_message_follows_the_end_of_the_status_line(name, message):
    with terminal() as (stream, shown, _):
        subprocess.run(
            [sys.executable, "-c", FAILING, name],
            stdout=subprocess.DEVNULL,
            stderr=stream,
            check=False,
        )
        wait_for(lambda: message in shown())
    *_, last = shown().split(f"{ESCAPE}[2K")  # after the status line was erased
    assert last.strip() == message


def test_plain_lines_in_a_pipe(tmp_path):
    with (tmp_path / "shown").open("w") as stream:
        handler = TrainingProgress(stream)
        handler({"event": "prepare", "stage": "train", "examples": 7})
        handler({"event": "start", "steps": 1000, "model": "a model", "device": "cpu"})
        handler({"event": "update", "step": 1, **UPDATE})
        handler({"event": "train", "step": 1, **UPDATE})
        handler.close()
    figures = "step 1/1,000   loss 3.0000   nll 2.0000   1,234 tokens/s   perplexity 7.40\n"
    assert (tmp_path / "shown").read_text() == f"a model\non cpu\n{figures}"


def test_a_notebook_shows_the_status_in_its_cell(monkeypatch, capsys):
    """IPython's display with an id, whose content is renewed."""
    contents, ipython, display = [], ModuleType("IPython"), ModuleType("IPython.display")

    class Output:
        def update(self, content, raw):
            assert raw
            contents.append(content["text/plain"])

    def show(content, raw, display_id):
        assert raw
        assert display_id
        contents.append(content["text/plain"])
        return Output()

    ipython.get_ipython = type("ZMQInteractiveShell", (), {})
    display.display = show
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(progress, "PERIOD", 0.01)
    assert progress.is_live(sys.stderr)
    for _ in tracked(range(2), "lines"):
        wait_for(lambda: len(contents) > 3)
    assert contents[0].startswith("lines 0 ")
    assert contents[-1] == ""
    handler = TrainingProgress(sys.stderr)
    handler({"event": "start", "steps": 4, "model": "a model", "device": "cpu"})
    handler({"event": "update", "step": 2, **UPDATE})
    handler.close()
    assert contents[-1].startswith("━━━━━━━━━━╌╌╌╌╌╌╌╌╌╌ step 2/4   loss 3.0000")
    assert capsys.readouterr().err == "a model\non cpu\n"
