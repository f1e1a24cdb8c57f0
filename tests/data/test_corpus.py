"""Preparing a corpus: validation of [data], tokenizing, caching by content, killed and concurrent runs."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from regard.core import atomic_io
from regard.core.config import read
from regard.core.errors import InvalidArgument, InvalidData, InvalidRecipe, Locked
from regard.data import corpus as module
from regard.data.columns import RunningTextColumn
from regard.data.config import DataConfig
from regard.data.corpus import Prepared, prepare
from regard.data.example import Example
from regard.data.fields.base import make_field
from regard.data.fingerprint import fingerprints, key_of
from regard.data.sources import examples
from regard.data.special_tokens import END, START
from regard.data.tokenizer import Tokenizer
from regard.data.train_tokenizer import train_tokenizer
from regard.data.vocabulary import Labels

CHARACTERS = make_field(tokenizer="characters", vocab_size=400)


@pytest.fixture
def pairs(tmp_path):
    """A small corpus of two files per split, and its configuration."""
    for split, count in (("train", 40), ("valid", 7)):
        (tmp_path / f"{split}.en").write_text(
            "".join(f"number {i} of {split}\n" for i in range(count))
        )
        (tmp_path / f"{split}.de").write_text("".join(f"Nummer {i}\n" for i in range(count)))
    files = {
        split: (str(tmp_path / f"{split}.en"), str(tmp_path / f"{split}.de"))
        for split in ("train", "valid")
    }
    return DataConfig(**files, source=CHARACTERS, target=CHARACTERS)


REFUSED = {
    "nothing to learn from": (
        {"valid": "a"},
        ["data.train: wanted files to learn from, beside others; got none"],
    ),
    "size of a pretrained tokenizer": (
        {"train": "a", "target": {"tokenizer": "pretrained", "vocab_size": 900, "lowercase": True}},
        [
            "data.target.vocab_size: wanted nothing here: it means nothing to a pretrained",
            "data.target.lowercase: ",
        ],
    ),
    "both": (
        {"train": "a", "synthetic": "copy", "source": {}},
        ["data.train: wanted no files beside synthetic; got 'a'"],
    ),
    "a share of synthetic data": (
        {"valid": 0.05, "synthetic": "copy", "source": {}},
        ["data.valid: wanted no share beside synthetic; got 0.05. Leave one out."],
    ),
    "unknown key": (
        {"trian": "a"},
        ["data.trian: wanted a key of data; got an unknown one. Did you mean 'train'?"],
    ),
    "unknown field key": (
        {"train": "a", "target": {"token": "bpe"}},
        ["data.target.token: ", "Did you mean 'tokenizer'?"],
    ),
    "unknown tokens": (
        {"train": "a", "target": {"tokenizer": "bpee"}},
        ["data.target.tokenizer: wanted one of 'bpe',"],
    ),
    "unknown generator": (
        {"synthetic": "date", "source": {}},
        ["data.synthetic: ", "Did you mean 'dates'?"],
    ),
    "two files for one field": (
        {"train": ["a", "b"]},
        ["data.train: wanted one file, of targets; got 2 files."],
    ),
    "one file for two fields": (
        {"train": "a", "source": {}},
        ["data.train: wanted a file for each of source, target"],
    ),
    "three files": (
        {"train": ["a", "b", "c"], "source": {}},
        ["data.train: wanted a file for each of source"],
    ),
    "no files": ({"train": []}, ["data.train: wanted a text or a list"]),
    "table without columns": (
        {"train": "a.csv", "source": {}},
        ["data.train: wanted source.column and target.column"],
    ),
    "one column": (
        {"train": "a.csv", "source": {"column": "a"}},
        ["data.train: wanted source.column and target"],
    ),
    "columns of lines": (
        {"train": "a.txt", "target": {"column": "a"}},
        ["data.train: wanted a table (.tsv, .csv, "],
    ),
    "two tables": (
        {"train": ["a.tsv", "b.tsv"], "source": {"column": "a"}, "target": {"column": "a"}},
        ["one table"],
    ),
    "valid is checked too": ({"train": "a", "valid": ["a", "b"]}, ["data.valid: wanted one file"]),
    "stretched pairs": (
        {"train": ["a", "b"], "source": {}, "context_length": 9},
        ["data.context_length: wanted nothing here"],
    ),
    "longest stretch": (
        {"train": "a", "target": {"max_tokens": 9}, "context_length": 9},
        ["data.target.max_tokens: wanted nothing"],
    ),
    "unequal and joint": (
        {"train": ["a", "b"], "source": {"tokenizer": "words"}, "shared_vocab": True},
        ["data.shared_vocab: wanted false, unless all texts are tokenized alike"],
    ),
    "settings of a label": (
        {
            "train": ["a", "b"],
            "source": {},
            "target": {"kind": "label", "lowercase": True, "max_tokens": 3},
        },
        [
            "data.target.lowercase: wanted nothing here: it means nothing to a label",
            "data.target.max_tokens: ",
        ],
    ),
    "vocabulary of bytes": (
        {"train": "a", "target": {"tokenizer": "bytes", "vocab_size": 300}},
        ["data.target.vocab_size"],
    ),
    "small vocabulary": (
        {"train": "a", "target": {"vocab_size": 200}},
        [
            "data.target.vocab_size: wanted at least 262, for the special tokens and all bytes; got 200"
        ],
    ),
    "no vocabulary": (
        {"train": "a", "target": {"vocab_size": 0}},
        ["data.target.vocab_size: wanted a whole number"],
    ),
    "generated language model": (
        {"synthetic": "copy"},
        ["data.source: wanted [data.source]: 'copy' has text; got 0 sources"],
    ),
    "generated labels": (
        {"synthetic": "copy", "source": {"kind": "label"}},
        ["data.source: wanted kind = 'text' without a"],
    ),
    "seed of files": (
        {"train": "a", "seed": 3},
        ["data.seed: wanted nothing here: nothing is drawn at random; got 3."],
    ),
    "seed of spelling": (
        {"synthetic": "spelling", "source": {}, "seed": 3},
        ["data.seed: wanted nothing here: nothing is drawn"],
    ),
    "label of nothing": (
        {"train": "a", "target": {"kind": "label"}},
        ["data.source: wanted something to predict the"],
    ),
    "errors": (
        {"train": "a", "encoding_errors": "ignore"},
        ["data.encoding_errors: wanted one of 'strict', 'replace'"],
    ),
    "one of several sources": (
        {"train": ["a", "b"], "sources": [{}]},
        ["data.sources: wanted at least two tables; got one. Write [data.source]."],
    ),
    "a source and sources": (
        {"train": ["a", "b", "c"], "source": {}, "sources": [{}, {}]},
        ["data.sources: wanted nothing beside [data.source]; got 2 tables"],
    ),
    "all for validation": (
        {"train": ["a", "b"], "source": {}, "valid": 0.5, "test": 0.5},
        ["data.valid: wanted shares that leave something to train on; got all of it"],
    ),
}
ACCEPTED: dict[str, dict] = {  # next to what is refused
    "two sources": {"train": ["a", "b", "c"], "sources": [{}, {}]},
    "three sources": {"train": ["a", "b", "c", "d"], "sources": [{}, {}, {}]},
    "the smallest vocabulary": {"train": "a", "target": {"vocab_size": 262}},
    "much for validation": {"train": ["a", "b"], "source": {}, "valid": 0.5, "test": 0.4},
    "one file for one field": {"train": "a"},
    "a table of two columns": {
        "train": "a.csv",
        "source": {"column": "a"},
        "target": {"column": "b"},
    },
    "unequal, not joint": {
        "train": ["a", "b"],
        "source": {"tokenizer": "words"},
        "shared_vocab": False,
    },
    "running text": {"train": "a", "context_length": 1},
}


@pytest.mark.parametrize(
    ("fields", "shared"),
    [
        ({"source": {}}, True),
        ({"source": {"tokenizer": "words"}}, False),
        ({"source": {"vocab_size": 999}}, False),
        ({"target": {"lowercase": True}, "source": {}}, False),
        ({"source": {"max_tokens": 9}}, True),  # which texts are left out is no matter of tokens
        ({"source": {"tokenizer": "words"}, "target": {"kind": "label"}}, True),  # nothing to share
        ({"sources": [{}, {}]}, True),
        ({"sources": [{}, {"tokenizer": "bytes"}]}, False),
        ({"sources": [{"kind": "image"}, {}], "synthetic": "questions"}, True),
    ],
)
def test_a_vocabulary_is_shared_by_texts_that_are_tokenized_alike(fields, shared):
    config = read(DataConfig, fields, "data")
    assert isinstance(config, DataConfig), config
    assert config.shared_vocab is shared


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_settings_are_refused(name):
    table, messages = REFUSED[name]
    problems = read(DataConfig, table, "data")
    assert isinstance(problems, list)
    for message in messages:
        assert any(message in str(problem) for problem in problems), list(map(str, problems))


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_is_next_to_invalid_settings_is_accepted(name):
    assert isinstance(read(DataConfig, ACCEPTED[name], "data"), DataConfig)


def test_a_configuration_round_trips_through_json(pairs):
    assert read(DataConfig, json.loads(json.dumps(asdict(pairs))), "data") == pairs
    with pytest.raises(InvalidRecipe, match="train: wanted files"):
        DataConfig(valid="a")


def test_examples_of_files_tables_and_synthetic_tasks(tmp_path, pairs):
    assert next(examples(pairs, "train")) == Example("number 0 of train", "Nummer 0")
    (tmp_path / "t.tsv").write_text("label\ttext\nyes\tgood\n")
    table = DataConfig(
        train=str(tmp_path / "t.tsv"),
        source=make_field(column="text"),
        target=make_field("label", column="label"),
    )
    assert list(examples(table, "train")) == [Example("good", "yes")]
    assert list(
        examples(DataConfig(train=str(tmp_path / "t.tsv").replace("t.tsv", "valid.de")), "train")
    )[6] == Example(None, "Nummer 6")
    copied = next(examples(DataConfig(synthetic="copy", source=make_field()), "valid"))
    assert copied.source == copied.target
    with pytest.raises(InvalidArgument, match="split: wanted one of train; got 'test'"):
        examples(table, "test")


def test_empty_files_are_refused(tmp_path):
    for name, content in (("a.txt", ""), ("b.txt", "\ufeff")):
        (tmp_path / name).write_text(content)
        with pytest.raises(
            InvalidData, match=f"{name}: wanted at least one example; got an empty file"
        ):
            prepare(DataConfig(train=str(tmp_path / name)), tmp_path / "out")
    (tmp_path / "c.tsv").write_text("text\n")
    with pytest.raises(InvalidData, match=r"c\.tsv: wanted at least one example"):
        prepare(
            DataConfig(train=str(tmp_path / "c.tsv"), target=make_field(column="text")),
            tmp_path / "out",
        )
    assert list((tmp_path / "out").iterdir()) == []


def test_prepared_pairs_hold_the_encoded_texts(tmp_path, pairs, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 15)
    stages = []
    made = prepare(
        pairs, tmp_path / "out", progress=lambda stage, count: stages.append((stage, count))
    )
    assert stages == [
        ("vocabulary", 15),
        ("vocabulary", 30),
        ("train", 15),
        ("train", 30),
        ("train", 40),
        ("valid", 7),
    ]
    assert made.source is made.target
    assert (len(made.train), len(made.valid), made.test) == (40, 7, None)
    for split, corpus in (("train", made.train), ("valid", made.valid)):
        for i, example in enumerate(examples(pairs, split)):
            source, target = corpus.row(i)
            assert source.tolist() == [*made.source.encode(example.source), END]
            assert target.tolist() == [START, *made.target.encode(example.target), END]
        indices = np.arange(len(corpus))[::-1]
        assert corpus.source_lengths(indices).tolist() == [
            len(corpus.row(i)[0]) for i in indices.tolist()
        ]
        assert corpus.target.lengths(indices).tolist() == [
            len(corpus.row(i)[1]) for i in indices.tolist()
        ]
    assert isinstance(made.train.source.ids, np.memmap)
    assert made.train.source.ids.dtype == np.uint16
    assert made.record["splits"]["train"]["tokens"]["target"] == len(made.train.target.ids)


def test_a_large_vocabulary_is_stored_as_uint32(tmp_path):
    words = [f"w{i}" for i in range(70_000)]
    (tmp_path / "a.txt").write_text(" ".join(words))
    config = DataConfig(
        train=str(tmp_path / "a.txt"), target=make_field(tokenizer="words", vocab_size=80_000)
    )
    made = prepare(config, tmp_path / "out")
    assert made.train.target.ids.dtype == np.uint32
    assert made.target.decode(made.train.row(0)[1]) == " ".join(words)


def test_unusual_texts_are_kept_exactly(tmp_path):
    texts = [
        "",
        "  a ",
        "\0",
        "e\u0301é",
        "👩‍👩‍👧",
        "\u202eabc\u202c",
        "a\u2028b\x85c",
        "x" * 2**20,
        "</s>",
    ]
    (tmp_path / "a").write_text("".join(f"{text}\n" for text in texts), newline="")
    (tmp_path / "b").write_text("".join(f"{text}\r\n" for text in reversed(texts)), newline="")
    field = make_field(vocab_size=300)
    made = prepare(
        DataConfig(train=(str(tmp_path / "a"), str(tmp_path / "b")), source=field, target=field),
        tmp_path,
    )
    assert len(made.train) == len(texts)
    rows = [made.train.row(i) for i in range(len(texts))]
    assert [made.source.decode(source) for source, _ in rows] == texts
    assert [made.target.decode(target) for _, target in rows] == texts[::-1]
    assert rows[0][0].tolist() == [END]
    assert rows[-1][1].tolist() == [START, END]


def test_invalid_utf8_is_refused_or_replaced(tmp_path):
    (tmp_path / "a").write_bytes(b"good\nb\xffd\n")
    config = DataConfig(train=str(tmp_path / "a"), target=CHARACTERS)
    with pytest.raises(
        InvalidData, match="a, line 2: wanted UTF-8 text; got byte 0xff at offset 6"
    ):
        prepare(config, tmp_path / "out")
    made = prepare(replace(config, encoding_errors="replace"), tmp_path / "out")
    assert made.target.decode(made.train.row(1)[1]) == "b\ufffdd"


def test_unequal_files_are_refused(tmp_path, pairs):
    with Path(pairs.train[1]).open("a") as file:
        file.write("one more\n")
    with pytest.raises(InvalidData, match=r"got 40 in .*train\.en and 41 in .*train\.de"):
        prepare(pairs, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_labels(tmp_path):
    (tmp_path / "train.tsv").write_text("label\ttext\npos\tgood\nneg\tbad\npos\tfine\n")
    (tmp_path / "valid.tsv").write_text("label\ttext\nneg\tsad\nposs\tglad\n")
    config = DataConfig(
        train=str(tmp_path / "train.tsv"),
        source=make_field(column="text", tokenizer="characters"),
        target=make_field("label", column="label"),
    )
    made = prepare(config, tmp_path / "out")
    assert made.target.names == ("neg", "pos")
    assert [made.train.row(i)[1] for i in range(3)] == [1, 0, 1]
    assert made.train.target.lengths(np.arange(3)).tolist() == [1, 1, 1]
    with pytest.raises(
        InvalidData,
        match=r"valid\.tsv, line 3: wanted one of the 2 labels of the training data; got 'poss'.* 'pos'\?",
    ):
        prepare(replace(config, valid=str(tmp_path / "valid.tsv")), tmp_path / "out")


def test_long_examples_are_left_out_of_training_and_counted(tmp_path, pairs):
    source, target = (
        replace(CHARACTERS, max_tokens=len("number 9 of train")),
        replace(CHARACTERS, max_tokens=100),
    )
    made = prepare(replace(pairs, source=source, target=target), tmp_path / "out")
    assert len(made.train) == 10
    assert made.record["splits"]["train"]["left_out"] == {
        "source.max_tokens": 30,
        "target.max_tokens": 0,
    }
    assert len(made.valid) == 7
    assert made.record["splits"]["valid"]["left_out"] == {}
    assert made.source.decode(made.train.row(9)[0]) == "number 9 of train"
    with pytest.raises(
        InvalidArgument, match="wanted an example that is short enough; got none of 40"
    ):
        prepare(replace(pairs, target=replace(CHARACTERS, max_tokens=1)), tmp_path / "out")


def test_running_text(tmp_path):
    (tmp_path / "a").write_text("abc\n\nde\n")
    made = prepare(
        DataConfig(train=str(tmp_path / "a"), target=CHARACTERS, context_length=3), tmp_path / "out"
    )
    a, b, c, d, e = made.target.encode("abcde")
    assert made.train.target.ids.tolist() == [END, a, b, c, END, END, d, e, END]
    assert made.target.decode(made.train.target.ids[1:]) == "abc\n\nde\n"
    assert [made.train.row(i)[1].tolist() for i in range(len(made.train))] == [
        [END, a, b, c],
        [c, END, END, d],
        [d, e, END],
    ]
    assert made.train.target.lengths(np.arange(3)).tolist() == [4, 4, 3]
    assert made.source is None
    assert isinstance(made.train.target, RunningTextColumn)


def test_the_key_does_not_depend_on_the_order_in_which_splits_are_read(pairs):
    config = replace(pairs, valid=pairs.train)
    keys = [
        key_of(config, fingerprints(config, lambda *_: None, splits), None)
        for splits in (("train", "valid"), ("valid", "train"))
    ]
    assert keys[0] == keys[1]


def test_the_key_depends_on_content(tmp_path, pairs):
    first = prepare(pairs, tmp_path / "out")
    again = prepare(pairs, tmp_path / "out")
    assert (again.key, again.folder) == (first.key, first.folder)
    moved = tmp_path / "moved.en"
    moved.write_bytes(Path(pairs.train[0]).read_bytes())
    assert (
        prepare(replace(pairs, train=(str(moved), pairs.train[1])), tmp_path / "out").key
        == first.key
    )
    moved.write_text(moved.read_text().replace("number 7 of", "number 8 of"))
    changed = prepare(replace(pairs, train=(str(moved), pairs.train[1])), tmp_path / "out")
    assert changed.key != first.key
    assert prepare(replace(pairs, shared_vocab=False), tmp_path / "out").key != first.key
    other = train_tokenizer("bytes", [])
    given = prepare(pairs, tmp_path / "out", vocabularies=((other,), other))
    assert given.key != first.key
    assert given.target.hash == other.hash
    assert len(list((tmp_path / "out").iterdir())) == 4


def test_vocabularies_that_would_be_learned_make_no_second_corpus(tmp_path, pairs):
    """A model's own vocabularies, loaded from its checkpoint, find the corpus that it was trained on."""
    first = prepare(pairs, tmp_path / "out")
    loaded = [Tokenizer.from_json(first.target.to_json()) for _ in range(2)]
    stages = []
    again = prepare(
        pairs,
        tmp_path / "out",
        vocabularies=(tuple(loaded[:1]), loaded[1]),
        progress=lambda *now: stages.append(now),
    )
    assert (again.folder, again.key, stages) == (first.folder, first.key, [])
    alone = prepare(
        pairs, tmp_path / "elsewhere", vocabularies=(tuple(loaded[:1]), loaded[1])
    )  # nothing learned there yet
    assert alone.key == first.key
    assert alone.source is alone.target


def test_given_vocabularies_are_used(tmp_path, pairs):
    tokenizer = train_tokenizer("bytes", [])
    made = prepare(pairs, tmp_path / "out", vocabularies=((tokenizer,), tokenizer))
    assert made.target.hash == tokenizer.hash
    assert made.train.row(0)[0].tolist() == [*tokenizer.encode("number 0 of train"), END]
    with pytest.raises(
        InvalidArgument,
        match=r"vocabularies: wanted .*, Tokenizer for target; got Tokenizer, Labels",
    ):
        prepare(pairs, tmp_path / "out", vocabularies=((tokenizer,), Labels(["a"])))


def test_truncated_files_are_refused(tmp_path, pairs):
    folder = prepare(pairs, tmp_path / "out").folder
    for path in folder.iterdir():
        whole = path.read_bytes()
        for length in {0, 1, len(whole) // 2, len(whole) - 1}:
            path.write_bytes(whole[:length])
            with pytest.raises(
                InvalidData, match=rf"{path.name}: wanted a whole prepared corpus; got"
            ):
                Prepared.open(folder)
        path.write_bytes(whole)
    Prepared.open(folder)
    (folder / "train.source.ids.npy").unlink()
    with pytest.raises(
        InvalidData,
        match=r"train\.source\.ids\.npy: wanted a whole prepared corpus; got No such file",
    ):
        Prepared.open(folder)
    with pytest.raises(
        InvalidData, match=r"prepared\.json: wanted a whole prepared corpus; got .*No such file"
    ):
        Prepared.open(tmp_path)


@pytest.mark.parametrize("most", [20, pytest.param(500, marks=pytest.mark.slow)])
def test_every_flipped_bit_is_refused(most, tmp_path, pairs):
    """Of each file so many bits, or all that there are."""
    folder, draw = prepare(pairs, tmp_path / "out").folder, np.random.default_rng(1)
    for path in folder.iterdir():
        whole = path.read_bytes()
        size = len(whole) * 8
        for place in draw.permutation(size)[:most]:
            flipped = bytearray(whole)
            flipped[place // 8] ^= 1 << (place % 8)
            path.write_bytes(flipped)
            with pytest.raises(
                InvalidData, match=rf"{path.name}: wanted a whole prepared corpus; got"
            ):
                Prepared.open(folder)
        path.write_bytes(whole)
    Prepared.open(folder)


def test_a_file_that_is_truncated_while_it_is_mapped_is_refused(tmp_path, pairs):
    """Reading beyond the end of a mapped file would end the process."""
    made = prepare(pairs, tmp_path / "out")
    os.truncate(made.folder / "train.source.ids.npy", 100)
    os.truncate(made.folder / "train.target.ends.npy", 0)
    indices = np.arange(3)
    with pytest.raises(
        InvalidData, match=r"train\.source\.ids\.npy: wanted .*; got 100 bytes of .*Delete"
    ):
        made.train.source.gather(indices)
    with pytest.raises(InvalidData, match=r"train\.target\.ends\.npy: wanted .*; got 0 bytes of"):
        made.train.target.lengths(indices)
    assert made.valid.target.gather(indices).ids.shape[0] == 3


KILLED = """
import signal, sys, time
from pathlib import Path
from regard.data import corpus
from regard.data.config import DataConfig
corpus.CHUNK = 10
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a background process may ignore
def wait(stage, count):
    if stage == "train" and count == 20:
        Path(sys.argv[2]).touch()
        time.sleep(60)
corpus.prepare(DataConfig(train=sys.argv[1]), sys.argv[3], progress=wait)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_prepare_leaves_no_corpus_and_a_waiting_process_makes_it(tmp_path, number):
    lines, flag, out = tmp_path / "a.txt", tmp_path / "flag", tmp_path / "out"
    lines.write_text("".join(f"line {i}\n" for i in range(40)))
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, lines, flag, out], stderr=subprocess.DEVNULL
    )
    while not flag.exists():
        assert process.poll() is None
        time.sleep(0.02)
    assert sorted(path.suffix for path in out.iterdir()) == [".lock", ".partial"]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(
            prepare, DataConfig(train=str(lines)), out
        )  # for the lock that the process holds
        time.sleep(0.1)
        assert not waiting.done()
        os.kill(process.pid, number)
        process.wait(20)
        made = waiting.result(20)
    assert len(made.train) == 40
    assert list(out.iterdir()) == [made.folder]


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path, pairs):
    other = tmp_path / "other"
    other.write_text(
        (tmp_path / "train.en").read_text().replace("number", "letter")
    )  # as many bytes

    def change(stage, count):
        if other.exists():
            other.rename(tmp_path / "train.en")

    with pytest.raises(
        InvalidData, match=r"train\.en: wanted a file that does not change while it is read"
    ):
        prepare(pairs, tmp_path / "out", progress=change)
    assert not list((tmp_path / "out").glob("*corpus*"))


def test_concurrent_runs_make_one_corpus(tmp_path, pairs):
    """The second waits for the first and reuses its corpus."""
    begun, go_on, stages = threading.Event(), threading.Event(), []

    def wait(stage, count):
        begun.set()
        assert go_on.wait(20)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(prepare, pairs, tmp_path / "out", progress=wait)
        assert begun.wait(20)
        second = pool.submit(
            prepare, pairs, tmp_path / "out", progress=lambda stage, count: stages.append(stage)
        )
        time.sleep(0.2)
        assert not second.done()
        go_on.set()
        assert first.result(20).key == second.result(20).key
    assert stages == []
    assert len(list((tmp_path / "out").iterdir())) == 1


@contextmanager
def preparing(config: DataConfig, folder: Path) -> Iterator[None]:
    """Another thread that prepares a corpus until the end of the block."""
    begun, go_on = threading.Event(), threading.Event()

    def wait(stage, count):
        begun.set()
        assert go_on.wait(20)

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(prepare, config, folder, progress=wait)
        assert begun.wait(20)
        try:
            yield
        finally:
            go_on.set()
            first.result(20)


def test_another_corpus_is_prepared_without_waiting(tmp_path, pairs):
    (tmp_path / "a.txt").write_text("a line\n")
    with preparing(pairs, tmp_path / "out"), ThreadPoolExecutor(1) as pool:
        other = pool.submit(prepare, DataConfig(train=str(tmp_path / "a.txt")), tmp_path / "out")
        assert len(other.result(10).train) == 1
    assert not list((tmp_path / "out").glob(".corpus*"))


def test_waiting_for_a_corpus_names_its_maker_and_ends(tmp_path, pairs, monkeypatch, caplog):
    monkeypatch.setattr(atomic_io, "PATIENCE", 1.5)
    with preparing(pairs, tmp_path / "out"), caplog.at_level("INFO"):
        with pytest.raises(
            Locked,
            match=rf"out: wanted a folder that no other process.*got process {os.getpid()} on",
        ):
            prepare(pairs, tmp_path / "out")
        assert f"waiting for process {os.getpid()} on" in caplog.text


def test_a_share_of_the_training_data_is_held_out(tmp_path):
    """By a hash of the source: no source is in two splits, and the split of an example does not depend on others."""
    rows = [(f"number {n % 700}", f"{n}") for n in range(1000)]
    for name, column in (("a", 0), ("b", 1)):
        (tmp_path / name).write_text("".join(f"{row[column]}\n" for row in rows))
    files = (str(tmp_path / "a"), str(tmp_path / "b"))
    config = DataConfig(train=files, valid=0.1, test=0.05, source=make_field())
    splits = {split: list(examples(config, split)) for split in ("train", "valid", "test")}
    assert sum(map(len, splits.values())) == 1000
    assert 60 < len(splits["valid"]) < 140
    assert 25 < len(splits["test"]) < 80
    sources = [{each.source for each in found} for found in splits.values()]
    assert not sources[0] & sources[1]
    assert not (sources[0] | sources[1]) & sources[2]
    whole = replace(config, valid=None, test=None)
    assert len(list(examples(whole, "train"))) == 1000
    assert (
        prepare(config, tmp_path / "out").key
        != prepare(replace(config, valid=0.2), tmp_path / "out").key
    )
    prepared = prepare(config, tmp_path / "out")
    assert [len(each) for each in (prepared.train, prepared.valid, prepared.test)] == list(
        map(len, splits.values())
    )
    with pytest.raises(
        InvalidRecipe, match=r"valid: wanted shares that leave something to train on"
    ):
        DataConfig(train=files, valid=0.6, test=0.5, source=make_field())
    with pytest.raises(
        InvalidRecipe, match=r"valid: wanted a file: running text is not split; got a share"
    ):
        DataConfig(train=files[0], valid=0.1, context_length=8)
