"""What is shown of a text: all that people write, and nothing that could pass for anything else."""

import io
import logging
import sys
from contextlib import redirect_stderr
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from regard.cli.options import show
from regard.core.errors import (
    CheckpointRefused,
    InvalidArgument,
    InvalidData,
    InvalidRecipe,
    Problem,
    RegardError,
)
from regard.core.log_output import MORE_FOLLOWS, logging_to_stderr
from regard.core.sanitize import printable
from regard.evaluation.report import collect, report
from regard.evaluation.report_text import report_text
from regard.views import caption_overlay, charts
from regard.views.canvas import SvgCanvas
from regard.views.caption_overlay import Overlay
from regard.views.progress import TrainingProgress
from regard.views.terminal import heat_map

ORDINARY = {
    "french": "« Bonjour\u00a0! » 1\u202f000",
    "emoji": "👨\u200d👩\u200d👧 ❤\ufe0f",
    "persian": "می\u200cخواهم",
    "japanese": "東京\u3000大阪 か\u3099",
    "soft hyphen": "Donau\u00addampf",
    "hindi": "क्\u200dष नमस्ते",
}
REPLACED = {
    "controls": "\x00\x07\x1b\x7f\x85\x9b",
    "ends of lines": "\n\r\x0b\x0c\u2028\u2029",
    "tab": "\t",
    "directions": "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f",
    "unseen": "\ufeff\u200b\u2060\u2063\U000e0041",
    "halves": "\ud800\udfff",
    "no characters": "\ufffe\uffff\ufdd0\U0010ffff",
    "unassigned": "\u0378",
    "private": "\ue000\U000f0000",
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_text_is_shown_as_it_is(name):
    pytest.importorskip("PIL", reason="Pillow is not installed: pip install 'regard[images]'")
    text = ORDINARY[name]
    assert printable(text) == text
    assert charts.text(text) == text
    assert text in report_text(
        report([collect("one", [(("", [text]), text)], ["f1"])])
    )  # class by class
    assert "�" not in heat_map(torch.ones(1, 1), [text], [text])  # which are cut to fit
    drawn, sheet = (
        Overlay(text, np.zeros((4, 4, 3), np.uint8), [text], torch.ones(1, 2, 2)),
        SvgCanvas(9, 9),
    )
    sheet.text((0, 0), text)
    for svg in (
        caption_overlay.draw(drawn, ".svg").decode(),
        sheet.content().decode(),
        f"<a>{charts.text(text)}</a>",
    ):
        assert text in {node.text for node in ElementTree.fromstring(svg).iter()}


@pytest.mark.parametrize("name", REPLACED)
def test_unprintable_characters_are_replaced(name):
    text = REPLACED[name]
    assert printable(f"a {text}b") == f"a {'�' * len(text)}b"
    assert charts.text(text) == (
        text if name == "tab" else "".join(one if one == "\n" else "�" for one in text)
    )
    ElementTree.fromstring(f"<a>{charts.text(text)}</a>")


HOSTILE = "a\x1b]0;title\x07b\u202ec\nregard: forged\x9b31m"


def raised(error: RegardError) -> str:
    return str(error)


def test_messages_hold_no_control_characters_and_no_forged_line():
    options = {"wanted": "a name", "got": HOSTILE, "remedy": "Rename it."}
    for message in (
        raised(InvalidArgument(HOSTILE, **options)),
        raised(InvalidData(HOSTILE, 3, **options)),
        raised(InvalidRecipe([Problem(HOSTILE, **options)])),
    ):
        assert printable(message) == message
    assert printable(raised(CheckpointRefused(HOSTILE)), also="\n") == raised(
        CheckpointRefused(HOSTILE)
    )


def test_progress_shows_samples_and_warnings_without_control_characters(tmp_path):
    stream = (tmp_path / "shown").open("w", encoding="utf-8")
    progress = TrainingProgress(stream)
    progress({"event": "warning", "message": HOSTILE})
    sample = {"source": HOSTILE, "output": HOSTILE, "reference": "two\tsources"}
    progress({"event": "validation", "step": 4, "loss": 1.0, "best": True, "samples": [sample]})
    stream.close()
    shown = (tmp_path / "shown").read_text("utf-8")
    assert printable(shown, also="\n\t") == shown
    assert "two\tsources" in shown
    assert not [line for line in shown.splitlines() if line.startswith("regard:")]


def test_log_records_on_stderr_hold_no_control_characters():
    done = io.StringIO()
    with redirect_stderr(done), logging_to_stderr("regard: "):
        logging.getLogger("regard.test").warning("%s: damaged", HOSTILE)
    assert printable(done.getvalue(), also="\n") == done.getvalue()
    assert [line[:7] for line in done.getvalue().splitlines()] == ["regard:", "  regar"]


def test_log_lines_that_another_follows_are_written_with_it():
    writes: list[str] = []

    class Stream(io.StringIO):
        def write(self, text: str) -> int:
            writes.append(text)
            return len(text)

    log = logging.getLogger("regard.test")
    with redirect_stderr(Stream()), logging_to_stderr("regard: "):
        log.warning("one", extra=MORE_FOLLOWS)
        log.warning("two", extra=MORE_FOLLOWS)
        assert writes == []
        log.warning("three")
        log.warning("four")
    assert writes == ["regard: one\nregard: two\nregard: three\n", "regard: four\n"]


@pytest.mark.parametrize("terminal", [False, True])
def test_texts_are_exact_in_a_pipe_and_printable_on_a_terminal(terminal, monkeypatch):
    stream = io.StringIO()
    stream.isatty = lambda: terminal
    monkeypatch.setattr(sys, "stdout", stream)
    show(HOSTILE)
    assert stream.getvalue() == (printable(HOSTILE, also="\n") if terminal else HOSTILE) + "\n"
