"""`regard predict` as a user meets it: running text, scores, reasons why outputs ended, class probabilities."""

import json
import math
from pathlib import Path

import pytest

import regard
from support.command_line import command
from support.forged import GOLDEN

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


LONG = "y" * 30
SHORT_LIMIT = ("--set", "max_source_length=20")


@pytest.mark.parametrize("options", [(), ("--beam", "3", "--n-best", "2"), ("--stream",)])
def test_a_line_that_is_too_long_loses_no_other(options):
    model = GOLDEN / "rnn"
    lines = ["3 May 1999", LONG, "", "4 June 2001", LONG + "y"]
    short = ["3 May 1999", "", "", "4 June 2001", ""]
    wanted = command("predict", model, *options, *SHORT_LIMIT, text="\n".join(short) + "\n")
    assert wanted.returncode == 0, wanted.stderr
    done = command("predict", model, *options, *SHORT_LIMIT, text="\n".join(lines) + "\n")
    assert done.stdout == wanted.stdout
    assert done.returncode == 2
    *told, last = done.stderr.splitlines()
    refusals = [line for line in told if "wanted at most" in line]
    assert [line.partition(" Split it")[0] for line in refusals] == [
        "regard: line 2: wanted at most 20 tokens; got 30.",
        "regard: line 5: wanted at most 20 tokens; got 31.",
    ]
    assert last == "regard: 2 lines were too long and have an empty output"


def test_what_stands_beside_a_line_that_is_too_long_is_skipped_with_it(tmp_path):
    model = GOLDEN / "rnn"
    (tmp_path / "long").write_text(f"{LONG}\n3 May 1999\n")
    (tmp_path / "short").write_text("\n3 May 1999\n")
    (tmp_path / "prefixes").write_text("1\n2\n")
    (tmp_path / "constraints").write_text('{"required": ["7"]}\n{"banned": ["9"]}\n')
    beside = ["--prefix", tmp_path / "prefixes", "--constraints", tmp_path / "constraints"]
    for options in (beside, ["--sample"]):
        done, wanted = (
            command("predict", model, tmp_path / name, *SHORT_LIMIT, *options)
            for name in ("long", "short")
        )
        assert done.stdout == wanted.stdout
        assert (done.returncode, wanted.returncode) == (2, 0)
    assert command("predict", model, tmp_path / "long", *SHORT_LIMIT, *beside).stdout[1] == "2"


def test_json_and_files_hold_the_reason(tmp_path):
    model = GOLDEN / "rnn"
    arguments = ["predict", model, *SHORT_LIMIT, "--json", "--out", tmp_path / "out"]
    done = command(*arguments, text=f"{LONG}\n3 May 1999\n")
    assert done.returncode == 2
    refused, answered = map(json.loads, (tmp_path / "out").read_text().splitlines())
    assert refused["output"] == ""
    assert refused["error"].startswith("line 1: wanted at most 20 tokens; got 30.")
    assert answered["output"]
    assert "error" not in answered


def test_one_line_that_is_too_long():
    done = command("predict", GOLDEN / "classifier", *SHORT_LIMIT, text=f"{LONG * 9}\n")
    assert (done.returncode, done.stdout) == (2, "\n")
    assert done.stderr.endswith("regard: 1 line was too long and has an empty output\n")
    cut = command(
        "predict", GOLDEN / "classifier", *SHORT_LIMIT, "--truncate", text=f"{LONG * 9}\n"
    )
    assert cut.returncode == 0
    assert cut.stdout.strip()


def test_python_refuses_all_unless_told():
    model = regard.load(GOLDEN / "rnn")
    with pytest.raises(regard.InvalidArgument, match="text 2: wanted at most 20 tokens; got 30"):
        model.predict(["3 May 1999", LONG], max_source_length=20)
    kept, skipped = model.outputs(["3 May 1999", LONG], max_source_length=20, skip_too_long=True)
    assert kept == model.outputs(["3 May 1999"], max_source_length=20)[0]
    assert skipped[0].text == ""
    assert "got 30" in skipped[0].refused
    with pytest.raises(regard.InvalidArgument, match="prefixes: wanted 2"):
        model.outputs(
            ["3 May 1999", LONG], max_source_length=20, skip_too_long=True, prefixes=["1"]
        )


def test_outputs_that_reach_their_limit_are_counted():
    model = GOLDEN / "rnn"
    lines = "3 May 1999\n4 June 2001\n\n"
    cut = command("predict", model, "--max-length", "2", text=lines)
    assert cut.returncode == 0
    assert "regard: outputs that end at the maximum length: 2 (" in cut.stderr
    ended = command("predict", model, "--set", "max_length=200", text=lines)
    reasons = [
        outputs[0].finish_reason
        for outputs in regard.load(model).outputs(lines.split("\n")[:2], max_length=200)
    ]
    assert ("maximum length" in ended.stderr) == (reasons != ["end", "end"])


def test_outputs_of_running_text_have_lines(language_model):
    arguments = ("predict", language_model / "run", language_model / "prompt", "--max-length", "30")
    (wanted,) = regard.load(language_model / "run").predict(["a"], max_length=30)
    assert wanted.count("\n") > 5
    assert command(*arguments).stdout == f"{wanted}\n"
    assert command(*arguments, "--stream").stdout == f"{wanted}\n"
    assert json.loads(command(*arguments, "--json").stdout)["output"] == wanted


def test_an_ensemble_averages_probabilities(language_model, tmp_path):
    """Two runs that differ in their seed; the scores are those of `regard.load` of both."""
    run = language_model / "run"
    prompt = language_model / "prompt"
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
