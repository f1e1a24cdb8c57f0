"""Tables are read as tables by every verb that takes files, and any model is evaluated on new data."""

import json

import pytest

import regard
from regard.data.text import line_of
from regard.recipe.load import read_recipe
from support.command_line import command

ROWS = [("nice, fine", "good"), ("awful", "bad"), ("great\nfilm", "good"), ("poor", "bad")] * 4
MODEL = {"encoder": {"kind": "rnn", "dim": 8}, "pool": {"kind": "mean"}}
TRAIN = {"max_steps": 2, "validate_every": 2, "warmup_steps": 1, "log_samples": 0, "device": "cpu"}


def csv(path, rows=ROWS):
    path.write_text("text,label\n" + "".join(f'"{text}",{label}\n' for text, label in rows))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    for name in ("train", "valid", "test"):
        csv(folder / f"{name}.csv")
    fields = {
        "source": {"column": "text", "tokenizer": "bytes"},
        "target": {"column": "label", "kind": "label"},
    }
    splits = {split: str(folder / f"{split}.csv") for split in ("train", "valid", "test")}
    recipe = read_recipe({"data": splits | fields, "model": MODEL, "train": TRAIN})
    regard.train(recipe, folder / "run", cache=folder / "cache")
    lines = {"train": str(folder / "lines.txt"), "target": {"tokenizer": "bytes"}}
    (folder / "lines.txt").write_text("some text\n" * 8)
    language = {"data": lines, "model": {"decoder": {"kind": "rnn", "dim": 8}}, "train": TRAIN}
    regard.train(read_recipe(language), folder / "language", cache=folder / "cache")
    return folder


def accuracy(*arguments):
    done = command("evaluate", *arguments, "--metric", "accuracy", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    return report["examples"], report["systems"][0]["metrics"]["accuracy"]["value"]


def test_evaluate_reads_sources_and_references_of_a_table(folder):
    table = folder / "test.csv"
    files = accuracy(folder / "run", "--sources", table, "--references", table)
    assert files == accuracy(folder / "run")
    assert files == accuracy(folder / "run", "--data", csv(folder / "new.csv"))
    assert files[0] == len(ROWS)


def test_columns_of_other_names(folder):
    (folder / "named.jsonl").write_text(
        "".join(json.dumps({"a": a, "b": b}) + "\n" for a, b in ROWS)
    )
    columns = ("--column", "a", "--column", "b")
    assert accuracy(folder / "run", "--data", folder / "named.jsonl", *columns) == accuracy(
        folder / "run"
    )
    refused = command("evaluate", folder / "run", "--data", folder / "named.jsonl")
    assert refused.returncode == 2
    assert "named.jsonl, line 1: wanted a key 'text'; got the keys 'a', 'b'" in refused.stderr


def test_files_of_outputs_are_read_by_column(folder):
    table = folder / "test.csv"
    assert accuracy(table, "--references", table, "--column", "label") == (len(ROWS), 1.0)
    refused = command("evaluate", table, "--references", table)
    assert (refused.returncode, "Add --column NAME" in refused.stderr) == (2, True)


@pytest.mark.parametrize("metric", ["accuracy", "loss"])
def test_an_unknown_label_is_refused_with_its_line(folder, metric):
    table = csv(folder / "unknown.csv", [*ROWS, ("two\nlines", "ugly")])
    line = len(table.read_text().splitlines())
    given = [("--data", table)] + [("--sources", table, "--references", table)] * (
        metric == "accuracy"
    )
    for arguments in given:
        refused = command(
            "evaluate", folder / "run", *arguments, "--metric", metric, "--cache", folder / "cache"
        )
        assert refused.returncode == 2
        assert f"unknown.csv, line {line}: wanted one of the 2 labels" in refused.stderr
    refused = command("score", folder / "run", table)
    assert f"unknown.csv, line {line}: wanted" in refused.stderr


def test_predict_score_and_look_read_tables(folder):
    table, run = folder / "test.csv", folder / "run"
    model = regard.load(run)
    texts, labels = zip(*ROWS, strict=True)
    assert command("predict", run, table).stdout.splitlines() == model.predict(texts)
    assert len(command("predict", run, table, "--column", "label").stdout.splitlines()) == len(ROWS)
    scores = [score.log_probability for score in model.score(texts, labels)]
    printed = command("score", run, table, "--json").stdout.splitlines()
    assert [json.loads(line)["log_probability"] for line in printed] == pytest.approx(scores)
    refused = command("predict", run, table, "--column", "text", "--column", "label")
    assert "--column: wanted one, of the source; got 2" in refused.stderr


def test_a_language_model_is_evaluated_on_new_data(folder):
    (folder / "new.txt").write_text("other text\n")
    figures = [
        regard.evaluate(folder / "language", data=data, columns=columns, cache=folder / "cache")[
            "loss"
        ].value
        for data, columns in [(folder / "new.txt", ()), (_with_header(folder), ["words"])]
    ]
    assert figures[0] == figures[1] > 0


def _with_header(folder):
    (folder / "new.tsv").write_text("number\twords\n1\tother text\n")
    return folder / "new.tsv"


def test_compare_on_new_data(folder):
    compared = regard.compare(
        [folder / "run", folder / "run"], data=folder / "test.csv", cache=folder / "cache"
    )
    assert compared.report.examples == len(ROWS)


def test_data_beside_a_split_are_refused(folder):
    refused = command("evaluate", folder / "run", "--data", folder / "test.csv", "--split", "test")
    assert (refused.returncode, "data: wanted none beside split" in refused.stderr) == (2, True)


def test_lines_of_examples(tmp_path):
    assert line_of(csv(tmp_path / "a.csv"), 3) == 5
    assert (line_of("a.tsv", 3), line_of("a.jsonl", 3), line_of("a.txt", 3)) == (4, 3, 3)


def test_evaluate_from_elsewhere_reads_the_split_alone(folder, tmp_path, monkeypatch):
    """Relative paths of a recipe in Python are stored as absolute ones too; other splits may be gone."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    for name in ("train", "valid", "test"):
        csv(here / f"{name}.csv")
    fields = {
        "source": {"column": "text", "tokenizer": "bytes"},
        "target": {"column": "label", "kind": "label"},
    }
    data = {split: f"{split}.csv" for split in ("train", "valid", "test")} | fields
    regard.train({"data": data, "model": MODEL, "train": TRAIN}, "run", cache=tmp_path / "cache")
    (here / "train.csv").unlink()
    (here / "valid.csv").unlink()
    monkeypatch.chdir(tmp_path)
    report = regard.evaluate("here/run", cache=tmp_path / "other")
    assert report.examples == len(ROWS)
    refused = command("evaluate", "here/run", "--split", "train", "--cache", tmp_path / "other")
    assert (
        refused.returncode,
        f"none at {here}/train.csv nor at {tmp_path}/train.csv" in refused.stderr,
    ) == (2, True)
