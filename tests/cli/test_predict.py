"""`regard predict` as a user meets it: running text, scores, reasons why outputs ended, class probabilities."""

import json
from pathlib import Path

import pytest

import regard
from support.command_line import command

RNN = {"kind": "rnn", "dim": 16}
TRAIN = {"max_steps": 4, "warmup_steps": 2, "validate_every": 4, "batch_tokens": 256}


@pytest.fixture(scope="module")
def language_model(tmp_path_factory) -> Path:
    """A run on a text of short lines, and a file with a prompt."""
    folder = tmp_path_factory.mktemp("language-model")
    (folder / "text").write_text("a\n\nb\n" * 100)
    (folder / "prompt").write_text("a\n")
    text = str(folder / "text")
    data = {"train": text, "valid": text, "target": {"tokenizer": "characters"}, "context_length": 16}
    regard.train({"data": data, "model": {"decoder": RNN}, "train": TRAIN | {"learning_rate": 0.05}}, folder / "run")
    return folder


def test_outputs_of_running_text_have_lines(language_model):
    arguments = ("predict", language_model / "run", language_model / "prompt", "--max-length", "30")
    (wanted,) = regard.load(language_model / "run").predict(["a"], max_length=30)
    assert wanted.count("\n") > 5
    assert command(*arguments).stdout == f"{wanted}\n"
    assert command(*arguments, "--stream").stdout == f"{wanted}\n"
    assert json.loads(command(*arguments, "--json").stdout)["output"] == wanted
