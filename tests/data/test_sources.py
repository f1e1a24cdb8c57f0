"""Data sources of the user's own: registered under a name, chosen by `[data] reader`."""

import pytest

from regard.core.config import read
from regard.core.errors import InvalidArgument
from regard.data.config import DATA_SOURCES, DataConfig
from regard.data.corpus import prepare
from regard.data.example import Example
from regard.data.fields.base import make_field
from regard.data.sources import DataSource, examples


class Squares(DataSource):
    """Numbers and their squares, as many as the name of the split's file says."""

    def examples(self, split):
        for number in range(int(self.config.files(split)[0])):
            yield Example(str(number), str(number * number))


@pytest.fixture
def squares():
    DATA_SOURCES.register("squares", Squares)
    yield DataConfig(
        train="12",
        reader="squares",
        source=make_field(tokenizer="characters", vocab_size=300),
        target=make_field(tokenizer="characters", vocab_size=300),
    )
    DATA_SOURCES.unregister("squares")


def test_a_registered_source_is_read_and_prepared(squares, tmp_path):
    assert list(examples(squares, "train"))[-1] == Example("11", "121")
    prepared = prepare(squares, tmp_path)
    assert len(prepared.train) == 12
    assert prepared.target.decode(prepared.train.target.row(11)) == "121"


def test_prepared_data_are_reused_by_the_examples_of_the_source(squares, tmp_path, monkeypatch):
    first = prepare(squares, tmp_path).folder
    assert prepare(squares, tmp_path).folder == first
    monkeypatch.setattr(Squares, "examples", lambda self, split: iter([Example("1", "2")]))
    assert prepare(squares, tmp_path).folder != first


def test_an_unknown_source_is_refused():
    problems = read(DataConfig, {"train": "12", "reader": "sqares"}, "data")
    assert "data.reader: wanted one of" in str(problems[0])


def test_an_empty_source_is_refused(squares, monkeypatch):
    monkeypatch.setattr(Squares, "examples", lambda self, split: iter(()))
    with pytest.raises(InvalidArgument, match="12: wanted at least one example"):
        examples(squares, "train")
