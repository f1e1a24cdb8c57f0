"""Fields: the class of each kind, what it reads from a cell, and what it learns."""

import numpy as np
import pytest
import torch

from regard.core.config import read
from regard.core.errors import InvalidArgument, InvalidData, InvalidRecipe
from regard.data.config import DataConfig
from regard.data.corpus import prepare
from regard.data.fields.base import make_field
from regard.data.fingerprint import key_of
from regard.data.statistics import Statistics

# As Regard 0.1 wrote them into every checkpoint: each field with the keys of all kinds.
EVERY_KEY = {
    "column": None,
    "tokenizer": "bpe",
    "vocab_size": 8000,
    "lowercase": False,
    "max_tokens": None,
    "image_size": 64,
    "image_resize": "bicubic",
    "image_crop_from": None,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "augment": None,
}


@pytest.mark.parametrize("kind", ["text", "label", "image"])
def test_a_field_of_an_earlier_version_is_read(kind):
    assert make_field(kind, **EVERY_KEY) == make_field(kind)


def test_a_key_of_another_kind_is_refused():
    with pytest.raises(InvalidRecipe) as caught:
        make_field("label", vocab_size=50, image_size=32)
    messages = [str(problem) for problem in caught.value.problems]
    assert len(messages) == 2
    assert (
        "field.vocab_size: wanted nothing here: it means nothing to a label; got 50" in messages[0]
    )


def test_an_unknown_kind_is_refused_with_the_nearest():
    with pytest.raises(InvalidRecipe, match=r"field\.kind: wanted one of 'text'.*'labl'.*'label'"):
        make_field("labl")


def test_all_problems_of_a_recipe_are_reported_together():
    found = read(DataConfig, {"source": {"kind": "sound"}, "target": {"vocab_sise": 3}}, "data")
    keys = sorted(problem.key for problem in found)
    assert keys == ["data.source.kind", "data.target.vocab_sise"]


# The keys of corpora that were prepared before kinds of fields had classes of their own.
CORPORA = {
    "a20648baa119979d": {
        "train": ["a", "b"],
        "source": {"tokenizer": "words", "vocab_size": 50},
        "target": {"max_tokens": 9},
    },
    "4169838f0ad33684": {
        "train": "t.csv",
        "source": {"column": "x", "lowercase": True},
        "target": {"kind": "label", "column": "y"},
    },
    "82d52f16d04cbbf1": {
        "train": "t.csv",
        "source": {"kind": "image", "column": "x", "image_size": 32, "augment": ["flip"]},
        "target": {"column": "y"},
    },
    "44197bbb98d0334a": {
        "train": "t.csv",
        "sources": [{"kind": "label", "column": "x"}, {"column": "z"}],
        "target": {"column": "y"},
    },
}


@pytest.mark.parametrize("key", CORPORA)
def test_corpora_that_were_prepared_earlier_are_found(key):
    config = read(DataConfig, CORPORA[key], "data")
    assert key_of(config, {}, None).startswith(key)


@pytest.mark.parametrize(
    ("cell", "numbers"),
    [("2.5", [2.5]), ("1 -2e3", [1, -2000]), ("[1, 2]", [1, 2]), (3, [3]), ([4, 5.5], [4, 5.5])],
)
def test_numbers_of_a_cell(cell, numbers):
    assert make_field("number").parse(cell).tolist() == numbers


@pytest.mark.parametrize(
    "cell", ["", "two", "nan", "1 inf", "[1, null]", None, [], [[1]], "[1, 2", "1_000"]
)
def test_a_cell_without_finite_numbers_is_refused(cell):
    with pytest.raises(InvalidArgument, match="wanted a number"):
        make_field("number").parse(cell)


@pytest.mark.parametrize(
    ("cell", "labels"),
    [
        ("a|b", ("a", "b")),
        (" b | a ", ("b", "a")),
        ("", ()),
        ('["x|y"]', ("x|y",)),
        (["a", "a"], ("a",)),
    ],
)
def test_labels_of_a_cell(cell, labels):
    assert make_field("labels").parse(cell) == labels


def test_vectors_with_a_missing_value_are_refused_with_its_place():
    with pytest.raises(InvalidArgument, match="got nan as number 2 of vector 3"):
        make_field("vectors").parse([[1, 2], [3, 4], [5, float("nan")]])
    for wrong in (1.0, [[[1, 2]]], [[1, 2], [3]], [], [[]], "text", "x.npy", None, ["a"]):
        with pytest.raises(InvalidArgument, match="wanted a list of vectors of one dimension"):
            make_field("vectors").parse(wrong)


def test_statistics_are_those_of_all_rows():
    """Also of large numbers that hardly differ, whose squares would lose the difference."""
    rows = np.random.default_rng(0).normal(1e6, 0.1, (1000, 3)) * [1.0, 10.0, 0.0]
    found = Statistics.of(np.array_split(rows, 7))
    assert found.mean == pytest.approx(rows.mean(0))
    # Numbers that never change keep their distance from the mean.
    assert found.scale == pytest.approx([rows[:, 0].std(), rows[:, 1].std(), 1.0], rel=1e-6)
    restored = found.restore(found.normalize(rows))
    assert restored == pytest.approx(rows, rel=1e-6)
    assert Statistics.from_json(found.to_json()).hash == found.hash


def test_numbers_whose_squares_overflow_are_refused():
    rows = np.array([[1e300], [-1e300], [3.0]])
    with pytest.raises(InvalidArgument, match="data: wanted numbers whose squares are finite"):
        Statistics.of([rows], normalize=True)
    assert Statistics.of([rows], normalize=False).scale == (1.0,)


def test_a_corpus_of_vectors_and_numbers(tmp_path):
    """Normalized by the training split alone; vectors in a batch are padded with zeros."""
    (tmp_path / "train.jsonl").write_text(
        '{"x": "[[1, 10], [3, 10]]", "y": "5"}\n{"x": "[[5, 10]]", "y": "9"}\n'
    )
    (tmp_path / "valid.jsonl").write_text('{"x": "[[3, 11]]", "y": "7"}\n')
    table = {
        **{split: str(tmp_path / f"{split}.jsonl") for split in ("train", "valid")},
        "source": {"kind": "vectors", "column": "x"},
        "target": {"kind": "number", "column": "y"},
    }
    data = prepare(read(DataConfig, table, "data"), tmp_path / "cache")
    assert data.sources[0].mean == (3.0, 10.0)
    assert data.target.mean == (7.0,)
    batch = data.train.source.gather(np.array([0, 1]))
    scale = data.sources[0].scale[0]
    expected = torch.tensor([[[-2 / scale, 0], [0, 0]], [[2 / scale, 0], [0, 0]]])
    torch.testing.assert_close(batch.values, expected)
    assert batch.lengths.tolist() == [2, 1]
    assert data.train.target.gather(np.array([0, 1])).tolist() == [[-1.0], [1.0]]
    assert data.valid.target.gather(np.array([0])).tolist() == [[0.0]]


def test_vectors_of_another_dimension_are_refused_with_their_file_and_line(tmp_path):
    table = tmp_path / "t.jsonl"
    table.write_text(
        '{"x": [[1, 2]], "y": 1}\n{"x": [[1, 2], [3, 4]], "y": 1}\n{"x": [[1]], "y": 1}\n'
    )
    config = {
        "train": str(table),
        "source": {"kind": "vectors", "column": "x"},
        "target": {"kind": "number", "column": "y"},
    }
    message = r"t\.jsonl, line 3: wanted vectors of 2 numbers, as in the first example; got 1\."
    with pytest.raises(InvalidData, match=message):
        prepare(read(DataConfig, config, "data"), tmp_path / "cache")


def test_a_wrong_column_of_tags_is_reported_once():
    config = {
        "train": "train.conll",
        "valid": "valid.conll",
        "test": "test.conll",
        "source": {"kind": "words"},
        "target": {"kind": "tags", "column": "POSX"},
    }
    problems = read(DataConfig, config, "data")
    assert [problem.key for problem in problems] == ["data.target.column"]


def test_a_wrong_number_is_refused_with_its_file_and_line(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("x,y\na,1\nb,many\n")
    config = {
        "train": str(table),
        "source": {"column": "x"},
        "target": {"kind": "number", "column": "y"},
    }
    with pytest.raises(InvalidData, match=r"t\.csv, line 3: wanted a number.*'many'"):
        prepare(read(DataConfig, config, "data"), tmp_path / "cache")
