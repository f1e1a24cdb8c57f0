"""`regard predict` counts what its outputs do not show, and says so on stderr."""

from pathlib import Path

import pytest

import regard
from regard.core.errors import InvalidArgument
from regard.data.special_tokens import UNKNOWN
from regard.inference.predictor import Predictor
from support.command_line import command
from support.predictors import classifier

PART = {"kind": "rnn", "dim": 16}
TRAIN = {"max_steps": 1, "warmup_steps": 0, "batch_tokens": 256, "device": "cpu"}
ROWS = [("ein hund", "a dog"), ("eine katze", "a cat")]


@pytest.fixture(scope="module")
def words(tmp_path_factory) -> Path:
    """A run of words to words, which gives the unknown word often."""
    folder = tmp_path_factory.mktemp("words")
    side = {"tokenizer": "words"}
    recipe = {
        "data": {"source": side, "target": side, "shared_vocab": False},
        "model": {"encoder": PART, "decoder": {**PART, "attention": "none"}},
        "train": TRAIN,
        "decode": {"max_length": 3},
    }
    data = {"train": ROWS * 4}
    regard.train(recipe, folder / "run", data=data, cache=folder / "cache", progress=False)
    return folder / "run"


def unknown(model: Predictor, change: float) -> Predictor:
    model.model.decoder.project.bias.data[UNKNOWN] += change
    return model


def test_unknown_words_of_inputs_are_counted(words):
    done = command("predict", words, text="ein zebra\neine katze\nzwei zebras\n")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 3
    assert "2 of 3 lines have words that the model does not know: 3 words" in done.stderr
    known = command("predict", words, text="ein hund\n")
    assert "does not know" not in known.stderr


def test_unknown_words_of_outputs_are_shown_and_counted(words, monkeypatch):
    load = regard.load
    monkeypatch.setattr(regard, "load", lambda *given, **named: unknown(load(*given, **named), 50))
    done = command("predict", words, text="ein hund\n\neine katze\n")
    assert done.stdout.splitlines() == ["<unk> <unk> <unk>", "", "<unk> <unk> <unk>"]
    assert "2 outputs have <unk>" in done.stderr
    assert '"<unk>"' in command("predict", words, "--json", text="ein hund\n").stdout


def test_tabs_are_told_where_a_model_reads_one_text(words):
    done = command("predict", words, text="ein\thund\nein hund\n")
    assert done.returncode == 0, done.stderr
    assert "1 line has a tab" in done.stderr


def test_a_pair_is_refused_by_an_imported_classifier_of_one_text():
    model = classifier()
    field = model.recipe.data.source
    object.__setattr__(field, "tokenizer", "pretrained")
    assert model.predict(["a premise and a hypothesis"])
    with pytest.raises(InvalidArgument, match=r"texts 2: wanted one text.*2 .*tabs"):
        model.predict(["a text", "a premise\ta hypothesis"])
