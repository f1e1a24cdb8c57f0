"""`regard.export` and `regard export`: what every format has in common."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import regard
from regard.cli import app
from regard.core.errors import InvalidArgument, RegardError
from regard.interop import interfaces
from regard.interop.interfaces import ExportOptions, FolderTarget
from support.predictors import classifier, translator


class Plain(FolderTarget):
    """Writes the type of a model, of translators only, into a folder inside the folder."""

    name, title, options = "plain", "Plain", frozenset({"dtype"})

    def obstacles(self, model):
        return (
            []
            if model.model.generator
            else ["pool: it has no pools", "classifier: it has no labels"]
        )

    def write(self, model, folder: Path, options: ExportOptions) -> None:
        (folder / "inside").mkdir()
        (folder / "inside" / "model.txt").write_text(
            f"{type(model.model).__name__} {options.dtype}"
        )


class Broken(Plain):
    """Fails in the middle."""

    name, title = "broken", "Broken"

    def write(self, model, folder: Path, options: ExportOptions) -> None:
        (folder / "half").write_text("half of it")
        raise OSError(28, "No space left on device")


@pytest.fixture(autouse=True)
def targets(monkeypatch):
    here = {each.name: (__name__, each.__name__) for each in (Plain, Broken)}
    monkeypatch.setattr(interfaces, "TARGETS", here)
    monkeypatch.setattr("regard.api.export.TARGETS", here)


def test_a_model_is_written_into_a_new_or_empty_folder(tmp_path):
    (tmp_path / "empty").mkdir()
    for out in ("new/er", "empty"):
        assert (
            regard.export(translator(), "plain", tmp_path / out, dtype="float16") == tmp_path / out
        )
        assert (tmp_path / out / "inside" / "model.txt").read_text() == "Seq2Seq float16"


def test_a_model_that_cannot_be_expressed_is_refused_part_by_part(tmp_path):
    with pytest.raises(
        InvalidArgument,
        match="that Plain can express; got pool: it has no pools; classifier: it has",
    ):
        regard.export(classifier(), "plain", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("to", "options", "message"),
    [
        ("plane", {}, "to: wanted one of plain, broken; got 'plane'. Did you mean 'plain'"),
        ("plain", {"dtype": "float8"}, "export.dtype: wanted .*float16.*; got 'float8'"),
        (
            "plain",
            {"quantization": "int8"},
            "quantization: wanted nothing here: Plain does not take it; got 'int8'",
        ),
        ("plain", {"color": "red"}, "export.color: wanted a key of export; got an unknown one"),
    ],
)
def test_wrong_options_are_refused_before_the_model_is_read(tmp_path, to, options, message):
    with pytest.raises(RegardError, match=message):
        regard.export(tmp_path / "no model", to, tmp_path / "out", **options)


def test_what_lies_in_the_folder_is_kept(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    for out in (tmp_path, tmp_path / "mine.txt", "", "."):
        with pytest.raises(InvalidArgument, match="out: wanted a folder that does not exist yet"):
            regard.export(translator(), "plain", out)
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_nothing_half_written_is_left(tmp_path):
    with pytest.raises(InvalidArgument, match="No space left on device"):
        regard.export(translator(), "broken", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_the_list_says_which_formats_can_and_why_not(monkeypatch):
    monkeypatch.setattr("regard.api.export.load", lambda model, device: classifier())
    said = CliRunner().invoke(app, ["export", "run", "--list"])
    assert said.stdout.splitlines()[:3] == [
        "plain: no",
        "  pool: it has no pools",
        "  classifier: it has no labels",
    ]
    listed = json.loads(CliRunner().invoke(app, ["export", "run", "--list", "--json"]).stdout)
    assert listed == {
        key: ["pool: it has no pools", "classifier: it has no labels"]
        for key in ("plain", "broken")
    }
    monkeypatch.setattr("regard.api.export.load", lambda model, device: translator())
    assert (
        CliRunner().invoke(app, ["export", "run", "--list"]).stdout == "plain: yes\nbroken: yes\n"
    )


def test_the_command_line_asks_for_what_is_missing():
    refused = CliRunner().invoke(app, ["export", "run", "--to", "plain"])
    assert "--out: wanted a value; got none" in str(refused.exception)
