"""Sequences of vectors on the command line: lists, files and tables in; lines, arrays and drawings out."""

import json

import numpy as np
import pytest

from regard.inference.file_inputs import file_inputs
from support.command_line import command
from support.series import DIM, LABELS, series, trained


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return {
        "labels": trained(folder / "labels"),
        "numbers": trained(folder / "numbers", "number"),
        "vectors": trained(folder / "vectors", "vectors"),
    }


@pytest.fixture(scope="module")
def given():
    return series(4, seed=2)


@pytest.fixture
def folder(tmp_path, monkeypatch, given):
    """Files of the same series, and a file of names beside them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "arrays").mkdir()
    for number, each in enumerate(given):
        np.save(f"arrays/{number}.npy", each)
    lists = [json.dumps(each.tolist()) for each in given]
    (tmp_path / "lists.txt").write_text("\n".join(lists) + "\n")
    (tmp_path / "lists.jsonl").write_text("\n".join(lists) + "\n")
    rows = [json.dumps({"source": each.tolist()}) for each in given]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows) + "\n")
    names = [f"{number}.npy" for number in range(len(given))]
    (tmp_path / "arrays" / "names.csv").write_text("\n".join(["source", *names]) + "\n")
    paths = [f"arrays/{name}" for name in names]
    (tmp_path / "paths.txt").write_text("\n".join(paths) + "\n")
    return tmp_path


INPUTS = ["lists.txt", "lists.jsonl", "rows.jsonl", "arrays/names.csv", "paths.txt", "arrays"]


@pytest.mark.parametrize("name", INPUTS)
def test_series_are_read_from_every_form(runs, given, folder, name):
    column = ("--column", "source") if name.endswith(("rows.jsonl", ".csv")) else ()
    printed = command("predict", runs["labels"].folder, name, *column).stdout
    assert printed.splitlines() == runs["labels"].predict(given)


def test_a_file_is_one_input(runs, given, folder):
    printed = command("predict", runs["labels"].folder, "arrays/2.npy", "arrays/0.npy").stdout
    assert printed.splitlines() == runs["labels"].predict([given[2], given[0]])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[[1, 2, 3]]\n[[1, 2]]\n", "x.txt, line 2: wanted vectors of 3 numbers"),
        ("[[1, 2, 3]]\n\n[[1, 2, NaN]]\n", "x.txt, line 3: wanted finite numbers"),
        ("[[1, 2, 3\n", "x.txt, line 1: wanted a list of vectors"),
        ("none.npy\n", "none.npy: wanted a file to read"),
        ("/etc\n", "x.txt, line 1: wanted a list of vectors"),
    ],
)
def test_wrong_lines_are_told_with_their_place(runs, folder, content, message):
    (folder / "x.txt").write_text(content)
    failed = command("predict", runs["labels"].folder, "x.txt")
    assert failed.returncode
    assert message in failed.stderr
    assert "Traceback" not in failed.stderr


def test_an_empty_line_has_an_empty_output(runs, folder):
    (folder / "x.txt").write_text("[[1, 2, 3]]\n\n[[4, 5, 6]]\n")
    printed = command("predict", runs["labels"].folder, "x.txt").stdout
    assert [bool(line) for line in printed.splitlines()] == [True, False, True]


def test_outputs_are_written_as_arrays(runs, given, folder):
    command("predict", runs["numbers"].folder, "arrays", "--out", "out.npy")
    wanted = [each[0].numbers for each in runs["numbers"].outputs(given)]
    np.testing.assert_allclose(np.load("out.npy"), wanted, rtol=1e-4)
    command("predict", runs["vectors"].folder, "arrays", "--out", "out.npz")
    outputs = runs["vectors"].outputs(given)
    with np.load("out.npz") as arrays:
        assert [*arrays] == ["1", "2", "3", "4"]
        for name, (output,) in zip(arrays, outputs, strict=True):
            np.testing.assert_allclose(arrays[name], output.vectors, rtol=1e-3, atol=1e-4)
    command("predict", runs["vectors"].folder, "arrays/1.npy", "--out", "one.npy")
    assert np.load("one.npy").shape == given[1].shape


def test_arrays_that_cannot_be_written_leave_no_file(runs, folder):
    failed = command("predict", runs["vectors"].folder, "arrays", "--out", "x.npy")
    assert "Write x.npz, which has an array for each input" in failed.stderr
    failed = command("predict", runs["labels"].folder, "arrays", "--out", "x.npy")
    assert (
        "wanted a model that gives vectors or numbers; got one that gives labels" in failed.stderr
    )
    assert not (folder / "x.npy").exists()
    refused = ("predict", runs["numbers"].folder, "arrays", "--out", "x.npy", "--json")
    assert "with --out x.npy" in command(*refused).stderr


def test_vectors_are_printed_as_lists(runs, given, folder):
    printed = command("predict", runs["vectors"].folder, "arrays").stdout
    for line, each in zip(printed.splitlines(), given, strict=True):
        assert np.array(json.loads(line)).shape == each.shape


def test_scores_of_named_files(runs, given, folder):
    rows = [f"{number}.npy,{LABELS[0]}" for number in range(len(given))]
    (folder / "arrays" / "t.csv").write_text("\n".join(["source,target", *rows]) + "\n")
    columns = ("--column", "source", "--column", "target")
    printed = command("score", runs["labels"].folder, "arrays/t.csv", *columns).stdout
    wanted = runs["labels"].score(given, [LABELS[0]] * 4)
    found = [float(line.split("\t")[0]) for line in printed.splitlines()]
    assert found == pytest.approx([each.log_probability for each in wanted], abs=1e-3)
    # The recipe's folder of arrays, if it has one, is also that of new data.
    rows = [f"{folder}/arrays/{row}" for row in rows]
    (folder / "t.csv").write_text("\n".join(["source,target", *rows]) + "\n")
    evaluated = command("evaluate", runs["labels"].folder, "--data", "t.csv", *columns, "--json")
    right = [each == LABELS[0] for each in runs["labels"].predict(given)]
    metrics = json.loads(evaluated.stdout)["systems"][0]["metrics"]
    assert metrics["accuracy"]["value"] == pytest.approx(sum(right) / 4)


def test_a_look_at_a_series(runs, given, folder):
    for typed in ("arrays/0.npy", json.dumps(given[0].tolist())):
        shown = command("look", runs["labels"].folder, typed).stdout
        assert f"1 {'▁▂▃▄▅▆▇█'[0]}"[:2] in shown
        assert f"→ {runs['labels'].predict(given[:1])[0]}" in shown
    command("look", runs["vectors"].folder, "--file", "paths.txt", "--out", "x.html")
    assert '"kind": "series"' in (folder / "x.html").read_text()
    command("look", runs["labels"].folder, "arrays/0.npy", "--out", "x.svg")
    assert (folder / "x.svg").read_text().startswith("<svg")
    failed = command("look", runs["labels"].folder, "none.npy")
    assert "none.npy: wanted a file to read" in failed.stderr


def test_a_look_at_vectors_does_not_print_them_all(runs, folder):
    shown = command("look", runs["vectors"].folder, "arrays/0.npy").stdout
    assert shown.splitlines()[0].endswith(f"vectors of {DIM} numbers")


def test_files_are_paths_and_lines_are_values(runs, folder):
    """A line is never opened where it does not name a file of the kind that the model reads."""
    (folder / "secret.txt").write_text("[[1, 2, 3]]")
    (folder / "x.txt").write_text("secret.txt\n")
    with pytest.raises(Exception, match="wanted a list of vectors"):
        list(file_inputs(runs["labels"], folder / "x.txt"))
