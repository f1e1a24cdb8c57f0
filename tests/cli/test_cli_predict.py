"""`regard predict` as a user meets it: running text, scores, reasons why outputs ended, class probabilities."""

import json
import math
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
    data = {
        "train": text,
        "valid": text,
        "target": {"tokenizer": "characters"},
        "context_length": 16,
    }
    regard.train(
        {"data": data, "model": {"decoder": RNN}, "train": TRAIN | {"learning_rate": 0.05}},
        folder / "run",
    )
    return folder


@pytest.fixture(scope="module")
def classifier(tmp_path_factory) -> Path:
    """A run that tells three labels apart, and a file of texts."""
    folder = tmp_path_factory.mktemp("classifier")
    (folder / "texts").write_text("a\n\nb\n")
    rows = [("a", "good"), ("b", "bad"), ("c", "fine")]
    data = {"source": {"tokenizer": "bytes"}, "target": {"kind": "label"}}
    model = {"encoder": RNN, "pool": {"kind": "mean"}}
    regard.train(
        {"data": data, "model": model, "train": TRAIN}, folder / "run", data={"train": rows}
    )
    return folder


def test_class_probabilities(classifier):
    arguments = ("predict", classifier / "run", classifier / "texts")
    rows = [json.loads(line) for line in command(*arguments, "--json").stdout.splitlines()]
    assert "probabilities" not in rows[1]  # an empty line
    for row in (rows[0], rows[2]):
        assert sorted(row["probabilities"]) == ["bad", "fine", "good"]
        assert sum(row["probabilities"].values()) == pytest.approx(1, abs=1e-5)
        assert row["output"] == max(row["probabilities"], key=row["probabilities"].get)
        assert math.log(row["probabilities"][row["output"]]) == pytest.approx(
            row["outputs"][0]["score"]
        )
    first, empty, _ = command(*arguments, "--probabilities").stdout.splitlines()
    assert empty == ""
    assert first == "\t".join(f"{label}\t{p:.4f}" for label, p in rows[0]["probabilities"].items())
    assert first.startswith(f"{rows[0]['output']}\t")


def test_the_best_labels_need_no_beam(classifier):
    arguments = ("predict", classifier / "run", classifier / "texts", "--n-best", "2")
    done = command(*arguments)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in command(*arguments, "--json").stdout.splitlines()]
    assert [each["text"] for each in rows[0]["outputs"]] == list(rows[0]["probabilities"])[:2]
    assert done.stdout.split("\n")[:2] == list(rows[0]["probabilities"])[:2]


def test_probabilities_are_of_labels_and_of_all_of_them(classifier, language_model):
    done = command(
        "predict", classifier / "run", classifier / "texts", "--probabilities", "--n-best", "2"
    )
    assert (done.returncode, "--n-best: wanted nothing beside --probabilities" in done.stderr) == (
        2,
        True,
    )
    done = command("predict", language_model / "run", language_model / "prompt", "--probabilities")
    assert (
        done.returncode,
        "--probabilities: wanted a model that gives labels" in done.stderr,
    ) == (2, True)


def test_scores_are_those_that_outputs_are_ranked_by(language_model):
    arguments = ("predict", language_model / "run", language_model / "prompt", "--max-length", "5")
    search = ("--beam", "4", "--n-best", "3", "--set", "decode.length_penalty=0.5")
    outputs = json.loads(command(*arguments, *search, "--json").stdout)["outputs"]
    scores = [each["score"] for each in outputs]
    assert scores == sorted(scores, reverse=True)
    assert scores == pytest.approx([each["log_probability"] / 5**0.5 for each in outputs], abs=1e-5)
    printed = command(*arguments, *search, "--scores").stdout
    shown = [f"{each['score']:.4f}\t{each['text']}\n" for each in outputs]
    assert printed == "".join(shown)


def test_repetitive_outputs_are_reported(language_model):
    arguments = ("predict", language_model / "run", language_model / "prompt", "--max-length", "30")
    done = command(*arguments, "--json")
    assert json.loads(done.stdout)["outputs"][0]["finish_reason"] == "repetition"
    assert done.stderr.startswith(
        "regard: outputs that repeat themselves to the maximum length: 1 ("
    )
    done = command(*arguments, "--json", "--set", "no_repeat_ngram_size=2")
    assert json.loads(done.stdout)["outputs"][0]["finish_reason"] == "length"
    assert done.stderr == ""


def test_outputs_of_running_text_have_lines(language_model):
    arguments = ("predict", language_model / "run", language_model / "prompt", "--max-length", "30")
    (wanted,) = regard.load(language_model / "run").predict(["a"], max_length=30)
    assert wanted.count("\n") > 5
    assert command(*arguments).stdout == f"{wanted}\n"
    assert command(*arguments, "--stream").stdout == f"{wanted}\n"
    assert json.loads(command(*arguments, "--json").stdout)["output"] == wanted


def test_an_ensemble_averages_probabilities(language_model, tmp_path):
    """Two runs that differ in their seed; the scores are those of `regard.load` of both."""
    run, prompt = language_model / "run", language_model / "prompt"
    other = regard.load(run).recipe.as_dict()
    other["train"]["seed"] = 2
    regard.train(other, tmp_path / "other")
    arguments = ("predict", run, prompt, "--max-length", "5", "--json")
    together = command(*arguments, "--ensemble", tmp_path / "other")
    assert together.returncode == 0, together.stderr
    score = json.loads(together.stdout)["outputs"][0]["score"]
    ((wanted,),) = regard.load([run, tmp_path / "other"]).outputs(["a"], max_length=5, scores=True)
    assert score == pytest.approx(wanted.score, abs=1e-5)
    assert score != pytest.approx(
        json.loads(command(*arguments).stdout)["outputs"][0]["score"], abs=1e-3
    )
    refused = command(*arguments, "--ensemble", tmp_path / "other", "--engine", "ray")
    assert (
        refused.returncode,
        "--ensemble: wanted nothing with --engine ray" in refused.stderr,
    ) == (2, True)
