"""Lists in the cells of tables: from JSON lines, Parquet and Python, for the fields that have lists."""

import json
from pathlib import Path

import pytest

import regard
from regard.core.errors import InvalidArgument, InvalidData
from regard.data import text
from regard.data.fields.base import make_field
from regard.data.token_lists import ListCell, cell_text
from support import regressions, tagging

parquet = pytest.importorskip("pyarrow.parquet")
pyarrow = pytest.importorskip("pyarrow")

ROWS = [
    {"words": ["New York", "is", "1"], "tags": ["B", "O", "O"], "vector": [0.5, -1.0], "text": "a"},
    {"words": ["[x]", "é"], "tags": ["O", "O"], "vector": [1e-7, 3.0], "text": '["b"]'},
]


def as_jsonl(folder: Path, rows=ROWS) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    return path


def as_parquet(folder: Path, rows=ROWS) -> Path:
    path = folder / "rows.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


FORMATS = {"jsonl": as_jsonl, "parquet": as_parquet}


@pytest.mark.parametrize("format", FORMATS)
def test_fields_with_lists_read_them(tmp_path, format):
    path = FORMATS[format](tmp_path)
    cells = list(text.rows(path, ["words", "tags", "vector"]))
    fields = [make_field("words"), make_field("tags"), make_field("number")]
    for row, (words, tags, vector) in zip(ROWS, cells, strict=True):
        assert fields[0].parse(words) == tuple(row["words"])
        assert fields[1].parse(tags) == tuple(row["tags"])
        assert fields[2].parse(vector).tolist() == row["vector"]


@pytest.mark.parametrize("format", FORMATS)
def test_a_text_that_looks_like_a_list_is_a_text(tmp_path, format):
    cells = [cell for (cell,) in text.rows(FORMATS[format](tmp_path), ["text"])]
    assert cells == ["a", '["b"]']
    assert [make_field("text").parse(cell) for cell in cells] == cells


@pytest.mark.parametrize("kind", ["text", "label", "image"])
def test_a_field_without_lists_refuses_one(kind):
    field = make_field(kind)
    with pytest.raises(InvalidArgument, match=r"got the list \[.*'words', 'tags' have lists"):
        field.parse(ListCell('["a", "b"]'))


@pytest.mark.parametrize("format", FORMATS)
def test_a_list_for_a_text_is_refused_with_its_line(tmp_path, format):
    path = FORMATS[format](tmp_path, regressions_rows())
    recipe = regressions.recipe()
    recipe["data"]["train"] = str(path)
    recipe["data"]["source"]["column"] = "vector"
    recipe["data"]["target"]["column"] = "value"
    with pytest.raises(InvalidData, match=r"rows\.\w+, line 1: .*wanted a text; got the list"):
        regard.train(recipe, tmp_path / "run", cache=tmp_path / "cache")


def regressions_rows() -> list[dict]:
    return [{"vector": [1.0, 2.0], "value": 1.0}] * 4


def test_what_is_no_cell_is_refused(tmp_path):
    with pytest.raises(InvalidData, match=r"line 1: wanted a text, a number or a list of these"):
        list(text.rows(as_jsonl(tmp_path, [{"a": {"b": 1}}]), ["a"]))
    with pytest.raises(InvalidData, match=r"wanted a text, a number or a list of these in 'a'"):
        list(text.rows(as_parquet(tmp_path, [{"a": None, "b": "x"}]), ["a"]))
    assert cell_text([True]) is None
    assert cell_text([[["too deep"]]]) is None


def test_a_damaged_parquet_file_and_a_missing_column_are_refused(tmp_path):
    path = as_parquet(tmp_path)
    with pytest.raises(InvalidData, match=r"wanted a column 'word'; .*Did you mean 'words'"):
        list(text.rows(path, ["word"]))
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InvalidData, match=r"wanted a Parquet file"):
        list(text.rows(path, ["words"]))


@pytest.mark.parametrize("format", [*FORMATS, "python"])
def test_a_tagger_is_the_same_from_every_format(tmp_path, format):
    splits = tagging.splits(40)
    recipe = tagging.recipe(train={"max_steps": 2, "validate_every": 1, "warmup_steps": 1})
    python = regard.train(recipe, tmp_path / "python", data=splits)
    if format == "python":
        assert python.predict(["the dog"]) == python.predict([["the", "dog"]])
        return
    data = recipe["data"]
    for split, sentences in splits.items():
        (tmp_path / split).mkdir()
        rows = [{"words": words, "tags": tags} for words, tags in sentences]
        data[split] = str(FORMATS[format](tmp_path / split, rows))
    data["source"]["column"] = "words"
    data["target"]["column"] = "tags"
    model = regard.train(recipe, tmp_path / "files", cache=tmp_path / "cache")
    for name, weight in python.model.state_dict().items():
        assert model.model.state_dict()[name].equal(weight), name
