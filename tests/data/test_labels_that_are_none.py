"""Targets that become classes although they were meant otherwise are refused or told."""

import logging
import random
from pathlib import Path

import pytest

from regard.core.config import read
from regard.core.errors import InvalidArgument
from regard.data import corpus
from regard.data.config import DataConfig


def prepared(folder: Path, labels: list[str]) -> corpus.Prepared:
    table = folder / "data.tsv"
    rows = [f"some text {number}\t{label}" for number, label in enumerate(labels)]
    table.write_text("text\tlabel\n" + "".join(f"{row}\n" for row in rows))
    fields = {
        "source": {"tokenizer": "bytes", "column": "text"},
        "target": {"kind": "label", "column": "label"},
    }
    config = read(DataConfig, {"train": str(table), **fields}, "data")
    assert isinstance(config, DataConfig)
    return corpus.prepare(config, folder / "cache")


def numbers(count: int) -> list[str]:
    chance = random.Random(1)
    return [f"{chance.uniform(-5, 5):.4f}" for _ in range(count)]


@pytest.mark.parametrize(
    "labels",
    [numbers(200), numbers(40) * 2, ["1e-3", *numbers(30)], ["2", "3", *numbers(30)]],
    ids=["all different", "each twice", "exponents", "whole ones among them"],
)
def test_numbers_are_refused(labels, tmp_path):
    with pytest.raises(
        InvalidArgument, match=r"data\.target: wanted labels; got .*numbers"
    ) as told:
        prepared(tmp_path, labels)
    assert "classes" in str(told.value)


@pytest.mark.parametrize(
    "labels",
    [
        ["0.5", "1.0", "1.5", "2.0", "2.5", "3.0", "3.5", "4.0", "4.5", "5.0"] * 30,
        [str(number) for number in range(10)] * 10,
        ["good", "bad"] * 20,
        ["1.1.0", "2.0.3", "0.9.1"] * 4,
    ],
    ids=["ratings", "digits", "words", "versions"],
)
def test_labels_are_taken_without_a_word(labels, tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        assert prepared(tmp_path, labels).target.size == len(set(labels))
    assert not caplog.records


def test_labels_that_occur_once_are_told(tmp_path, caplog):
    labels = [f"title {number}" for number in range(190)] + ["other"] * 10
    prepared(tmp_path, labels)
    (said,) = [record.getMessage() for record in caplog.records]
    assert "190 of 200 examples" in said


@pytest.mark.parametrize("separator", ["|", ";", " | ", "; "])
def test_several_labels_in_one_are_told(separator, tmp_path, caplog):
    several = separator.join(("sport", "politics"))
    labels = ["sport", "politics", "art"] * 10 + [several] * 3
    assert prepared(tmp_path, labels).target.size == 4
    (said,) = [record.getMessage() for record in caplog.records]
    assert repr(several) in said
    assert "one label" in said


def test_several_labels_that_never_stand_alone_are_told(tmp_path, caplog):
    labels = ["sport|politics", "art|sport", "politics|art"] * 10
    assert prepared(tmp_path, labels).target.size == 3
    (said,) = [record.getMessage() for record in caplog.records]
    assert "3 such labels" in said
    assert 'kind = "labels"' in said


def test_labels_with_a_bar_are_told_though_no_other_label_has_their_parts(tmp_path, caplog):
    """A bar is the separator of kind = "labels", and in hardly any name."""
    assert prepared(tmp_path, ["x|y", "z"] * 10).target.size == 2
    (said,) = [record.getMessage() for record in caplog.records]
    assert "'x|y' is learned as one label" in said
    assert 'kind = "labels"' in said


def test_a_separator_within_a_name_is_nothing(tmp_path, caplog):
    prepared(tmp_path, ["|", "a|", "c", "d;e"] * 10)
    assert not caplog.records
