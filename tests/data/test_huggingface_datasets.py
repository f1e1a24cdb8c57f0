"""Data from Hugging Face datasets and from Python, without a network."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import regard
from regard.core.config import read
from regard.core.errors import InvalidData, MissingExtra
from regard.data.config import DataConfig
from regard.data.corpus import prepare
from regard.data.example import Example
from regard.data.fields.base import make_field
from regard.data.from_python import with_python_data
from regard.data.sources import examples
from regard.recipe.load import read_recipe

SIDES = {
    "source": make_field(column="de", tokenizer="bytes"),
    "target": make_field(column="en", tokenizer="bytes"),
}


class Table:
    """The part of `datasets.Dataset` that is used."""

    def __init__(self, columns: dict, features: dict | None = None) -> None:
        self.columns, self.column_names = columns, list(columns)
        self.features = {name: (features or {}).get(name, object()) for name in columns}

    def flatten(self) -> "Table":
        return self

    def select_columns(self, names: list[str]) -> "Table":
        return Table({name: self.columns[name] for name in names}, self.features)

    def iter(self, size: int):
        for first in range(0, len(next(iter(self.columns.values()))), size):
            yield {name: values[first : first + size] for name, values in self.columns.items()}


@pytest.fixture
def hub(monkeypatch):
    """A stand-in for the package, with the calls it received and the table it returns."""
    made = SimpleNamespace(
        asked=[],
        answer=Table({"de": ["ja", "nein"] * 800, "en": ["yes", "no"] * 800, "n": [7] * 1600}),
    )

    def load_dataset(name, configuration=None, *, split, revision=None):
        made.asked.append((name, configuration, split, revision))
        if isinstance(made.answer, Exception):
            raise made.answer
        return made.answer

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    return made


ADDRESSES = {
    "hf:owner/name:train": ("owner/name", None, "train", None),
    "hf:owner/name@v2:train": ("owner/name", None, "train", "v2"),
    "hf:owner/name:de-en:test": ("owner/name", "de-en", "test", None),
    "hf:name@main:plain:train[10:20%]": ("name", "plain", "train[10:20%]", "main"),
    "hf:data/here:train[:10]": ("data/here", None, "train[:10]", None),
}


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_names_dataset_configuration_and_split(address, hub):
    found = list(examples(DataConfig(train=address, **SIDES), "train"))
    assert hub.asked == [ADDRESSES[address]]
    assert found[:2] == [Example("ja", "yes"), Example("nein", "no")]
    assert len(found) == 1600  # more than are read at once


REFUSED = {
    "no split": (
        {"train": "hf:owner/name"},
        "data.train: wanted hf:NAME:SPLIT, or hf:NAME:CONFIGURATION:SPLIT; got hf",
    ),
    "no columns": (
        {"train": "hf:a/b:train", "source": {}, "target": {}},
        "wanted source.column and target.column",
    ),
    "two": (
        {"train": ["hf:a/b:x", "hf:a/b:y"]},
        "data.train: wanted one table, or files of lines; got 2 files",
    ),
    "errors": (
        {"train": "hf:a/b:train", "encoding_errors": "replace"},
        "data.encoding_errors: wanted nothing here: datasets hold no",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_addresses_are_refused(name):
    table, message = REFUSED[name]
    problems = read(
        DataConfig, {"source": {"column": "a"}, "target": {"column": "b"}} | table, "data"
    )
    assert any(message in str(problem) for problem in problems), list(map(str, problems))


def test_a_corpus_is_reused_by_the_content_of_its_columns(hub, tmp_path):
    config = DataConfig(train="hf:owner/name:train", **SIDES)
    first = prepare(config, tmp_path)
    assert len(first.train) == 1600
    assert first.target.decode(first.train.row(1)[1]) == "no"
    assert prepare(replace(config, train="hf:other/name:train"), tmp_path).folder == first.folder
    hub.answer.columns["n"] = [8] * 1600  # not read
    assert prepare(config, tmp_path).folder == first.folder
    hub.answer.columns["en"][-1] = "never"
    assert prepare(config, tmp_path).key != first.key


def test_classes_are_given_by_their_names(hub):
    label = SimpleNamespace(num_classes=2, int2str=["bad", "good"].__getitem__)
    hub.answer = Table({"text": ["a", "b"], "label": [1, 0]}, {"label": label})
    fields = {
        "source": make_field(column="text"),
        "target": make_field("label", column="label"),
    }
    config = DataConfig(train="hf:a/b:train", **fields)
    assert list(examples(config, "train")) == [Example("a", "good"), Example("b", "bad")]
    hub.answer.columns["label"] = [1, -1]
    with pytest.raises(
        InvalidData,
        match=r"hf:a/b:train, row 2: wanted a text, a number, a class or a list of these in 'label'; got -1",
    ):
        list(examples(config, "train"))


@pytest.mark.parametrize("value", [None, True, [["a"], None], {"a": 1}])
def test_a_cell_that_is_not_a_text_is_refused(value, hub):
    hub.answer = Table({"de": ["a", "b", "c"], "en": ["a", 3.5, value]})
    with pytest.raises(
        InvalidData,
        match=r"hf:a/b:train, row 3: wanted a text, a number, a class or a list of these",
    ):
        list(examples(DataConfig(train="hf:a/b:train", **SIDES), "train"))


class Names:
    """A feature of classes."""

    num_classes = 2

    def int2str(self, number: int) -> str:
        return ("O", "B-LOC")[number]


class ListOf:
    """A feature of lists."""

    def __init__(self, feature: object) -> None:
        self.feature = feature


def test_lists_of_texts_and_of_classes_are_read(hub):
    columns = {"tokens": [["New York", "is"], ["[1]"]], "tags": [[1, 0], [0]]}
    features = {"tokens": ListOf(object()), "tags": ListOf(Names())}
    hub.answer = Table(columns, features)
    fields = {
        "source": make_field("words", column="tokens"),
        "target": make_field("tags", column="tags"),
    }
    config = DataConfig(train="hf:a/b:train", **fields)
    found = [
        (config.source.parse(row.source), config.target.parse(row.target))
        for row in examples(config, "train")
    ]
    assert found == [(("New York", "is"), ("B-LOC", "O")), (("[1]",), ("O",))]
    columns["tags"][1] = [2]
    with pytest.raises(InvalidData, match=r"row 2: .* in 'tags'; got \[2\]"):
        list(examples(config, "train"))


def test_an_unknown_column_names_the_nearest(hub):
    wrong = SIDES | {"target": make_field(column="eng", tokenizer="bytes")}
    with pytest.raises(
        InvalidData,
        match=r"wanted a column 'eng'; got the columns 'de', 'en', 'n'. Did you mean 'en'\?",
    ):
        examples(DataConfig(train="hf:a/b:train", **wrong), "train")


FAILURES = {
    "no network": (ConnectionError("Couldn't reach 'a/b' on the Hub"), "Connect to the network"),
    "no such dataset": (
        FileNotFoundError("Dataset 'a/b' doesn't exist\non the Hub"),
        "as at https",
    ),
    "no such split": (
        ValueError("Unknown split \"trian\". Should be one of ['train']."),
        "hf:NAME:SPLIT",
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_errors_of_loading_are_reported(name, hub, tmp_path):
    hub.answer, remedy = FAILURES[name]
    with pytest.raises(InvalidData) as caught:
        prepare(DataConfig(train="hf:a/b:train", **SIDES), tmp_path / "out")
    message = str(caught.value)
    assert message.startswith("hf:a/b:train: wanted a dataset that can be loaded; got ")
    assert remedy in message
    assert "\n" not in message
    assert not (tmp_path / "out").exists()


def test_a_missing_package_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        MissingExtra, match=r"hf:a/b:train needs the package 'datasets'.*'regard\[datasets\]'"
    ):
        examples(DataConfig(train="hf:a/b:train", **SIDES), "train")


@pytest.mark.filterwarnings("ignore")  # of the package and what it imports
def test_the_real_package(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets", reason="the extra `datasets` is not installed")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    features = datasets.Features(
        {
            "translation": datasets.Translation(["de", "en"]),
            "label": datasets.ClassLabel(names=["rude", "kind"]),
        }
    )
    rows = [
        {"translation": {"de": "ja", "en": "yes"}, "label": 1},
        {"translation": {"de": "nein", "en": "no"}, "label": 0},
    ]
    made = datasets.Dataset.from_list(rows, features=features)
    datasets.DatasetDict({"train": made}).save_to_disk(tmp_path / "saved")
    made.save_to_disk(tmp_path / "one")
    pair = {
        "source": make_field(column="translation.de"),
        "target": make_field(column="translation.en"),
    }
    label = pair | {"target": make_field("label", column="label")}
    for folder in ("saved", "one"):
        address = f"hf:{tmp_path / folder}:train"
        assert list(examples(DataConfig(train=address, **pair), "train")) == [
            Example("ja", "yes"),
            Example("nein", "no"),
        ]
        assert [row.target for row in examples(DataConfig(train=address, **label), "train")] == [
            "kind",
            "rude",
        ]
        with pytest.raises(InvalidData, match="wanted a dataset that can be loaded; got 'test'"):
            examples(DataConfig(train=f"hf:{tmp_path / folder}:test", **pair), "train")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "train.jsonl").write_text(
        "".join(json.dumps({"de": f"d{i}", "en": i}) + "\n" for i in range(9))
    )
    found = list(
        examples(DataConfig(train=f"hf:{tmp_path / 'files'}:train[2:4]", **SIDES), "train")
    )
    assert found == [Example("d2", "2"), Example("d3", "3")]
    with pytest.raises(
        InvalidData,
        match=r"nobody/nothing:train: wanted a dataset that can be loaded; got .* Connect to the network",
    ):
        examples(DataConfig(train="hf:nobody/nothing:train", **SIDES), "train")


# ---- from Python ----

RECIPE = {
    "data": {"source": {"tokenizer": "bytes"}, "target": {"tokenizer": "bytes"}},
    "model": {"encoder": {"kind": "rnn", "dim": 8}, "decoder": {"kind": "rnn", "dim": 8}},
    "train": {
        "max_steps": 4,
        "warmup_steps": 1,
        "validate_every": 2,
        "batch_tokens": 64,
        "log_samples": 0,
    },
}
PAIRS = [(letter, letter * 2) for letter in "abcdefgh"]


def test_iterables_as_training_and_validation_data(tmp_path):
    rows = ({"en": target, "de": source} for source, target in PAIRS)
    named = {
        "source": {"tokenizer": "bytes", "column": "de"},
        "target": {"tokenizer": "bytes", "column": "en"},
    }
    forms = {"pairs": (RECIPE, iter(PAIRS)), "named": (RECIPE | {"data": named}, rows)}
    made = {}
    for name, (recipe, given) in forms.items():
        data = {"train": given, "valid": [Example(*pair) for pair in PAIRS[:3]]}
        made[name] = regard.train(recipe, tmp_path / name, data=data, cache=tmp_path / "cache")
    states = [found.model.state_dict() for found in made.values()]
    assert all(bool((states[0][key] == states[1][key]).all()) for key in states[0])
    log = (tmp_path / "pairs" / "log.jsonl").read_text()
    assert log.count('"validation"') == 2
    kept = Path(made["pairs"].recipe.data.train)
    assert [json.loads(line) for line in kept.read_text().splitlines()][1] == {
        "source": "b",
        "target": "bb",
    }
    assert regard.evaluate(
        tmp_path / "pairs", split="valid", metrics=["accuracy"], cache=tmp_path / "cache"
    )
    more = read_recipe(made["pairs"].recipe.as_dict(), ["train.max_steps=6"])
    assert (
        regard.train(more, tmp_path / "pairs", resume=True, cache=tmp_path / "cache").folder.name
        == "step-00000006"
    )
    with pytest.raises(regard.CheckpointRefused, match="wanted the data that the run began with"):
        regard.train(
            more,
            tmp_path / "pairs",
            data={"train": PAIRS[:5]},
            resume=True,
            cache=tmp_path / "cache",
        )


def test_rows_are_kept_in_a_folder_that_is_made_with_those_above_it(tmp_path):
    for _ in range(2):  # the second time, the folder and the file are there
        table = with_python_data(RECIPE["data"], {"valid": PAIRS}, tmp_path / "above" / "cache")
        (path,) = (tmp_path / "above" / "cache").iterdir()
        assert table["valid"] == str(path)
    assert len(path.read_text().splitlines()) == len(PAIRS)
    (tmp_path / "file").touch()
    with pytest.raises(regard.InvalidArgument, match="wanted a folder to write to"):
        with_python_data(RECIPE["data"], {"valid": PAIRS}, tmp_path / "file" / "cache")


def test_texts_alone_make_a_language_model(tmp_path):
    recipe = {
        "data": {"target": {"tokenizer": "bytes"}},
        "model": {"decoder": {"kind": "rnn", "dim": 8}},
    }
    recipe |= {"train": RECIPE["train"]}
    found = regard.train(
        recipe, tmp_path / "run", data={"train": (text * 5 for text in "abc")}, cache=tmp_path
    )
    assert found.source is None


BAD_ROWS = {
    "one text for a pair": (
        [("a", "b"), "a"],
        r"data\['train'\], row 2: wanted \(source, target\); got 'a'",
    ),
    "three": ([("a", "b", "c")], r"row 1: wanted \(source, target\)"),
    "no sequence": ([7], r"row 1: wanted \(source, target\)"),
    "nothing": (
        [("a", None)],
        r"row 1: wanted texts, numbers or lists of these; got \('a', None\)",
    ),
    "a wrong key": (
        [{"source": "a", "targe": "b"}],
        r"row 1: wanted a key 'target'; got \['source', 'targe'\]",
    ),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_an_invalid_row_is_refused_and_leaves_no_file(name, tmp_path):
    rows, message = BAD_ROWS[name]
    with pytest.raises(regard.InvalidArgument, match=message):
        regard.train(RECIPE, tmp_path / "run", data={"train": iter(rows)}, cache=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_an_unknown_split_and_no_rows_are_refused(tmp_path):
    with pytest.raises(
        regard.InvalidArgument,
        match="data: wanted splits among train, valid, test; got 'validation'",
    ):
        regard.train(RECIPE, tmp_path / "run", data={"validation": PAIRS}, cache=tmp_path)
    with pytest.raises(InvalidData, match="wanted at least one example"):
        regard.train(RECIPE, tmp_path / "run", data={"train": []}, cache=tmp_path)
