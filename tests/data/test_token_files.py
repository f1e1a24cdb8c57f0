"""Files with a token a line as data: which files are read so, which columns, and what is refused."""

import gzip
import json

import pytest

import regard
from regard.core.config import read
from regard.core.errors import InvalidArgument, InvalidData
from regard.data.config import DataConfig
from regard.data.sources import examples
from support.command_line import command
from support.tagging import noun_phrases, recipe

CONLLU = """\
# sent_id = 1
1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tDo\tdo\tAUX\tVB\t_\t3\taux\t_\t_
2\tn't\tnot\tPART\tRB\t_\t3\tadvmod\t_\t_
2.1\tgone\tgo\tVERB\tVB\t_\t_\t_\t_\t_
3\tgo\tgo\tVERB\tVB\t_\t0\troot\t_\t_

# sent_id = 2
1\t10 000\t10000\tNUM\tCD\t_\t2\tnummod\t_\t_
2\tdogs\tdog\tNOUN\tNNS\t_\t0\troot\t_\t_
"""
CONLL = """\
-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O

It PRP B-NP O
"""


def config(path, **keys):
    fields = {"source": {"kind": "words"}, "target": {"kind": "tags"}}
    for name in ("source", "target"):
        fields[name] |= keys.pop(name, {})
    return read(DataConfig, {"train": str(path), **fields, **keys}, "data")


def rows(data):
    return [(each.source, each.target) for each in examples(data, "train")]


def written(tmp_path, name, content):
    path = tmp_path / name
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(content.encode()))
    else:
        path.write_text(content, "utf-8")
    return path


OF_CONLLU = [("Do n't go", "AUX PART VERB"), ('["10 000", "dogs"]', "NUM NOUN")]
OF_CONLL = [("EU rejects", "B-ORG O"), ("It", "O")]
READ = {
    "CoNLL-U by its name": ("a.conllu", CONLLU, {}, OF_CONLLU),
    "packed": ("a.conllu.gz", CONLLU, {}, OF_CONLLU),
    "CoNLL-U by its first row": ("a.conll", CONLLU, {}, OF_CONLLU),
    "a named column": (
        "a.conllu",
        CONLLU,
        {"target": {"column": "XPOS"}},
        [("Do n't go", "VB RB VB"), ('["10 000", "dogs"]', "CD NNS")],
    ),
    "CoNLL by its name": ("a.conll", CONLL, {}, OF_CONLL),
    "by format": ("eng.train", CONLL, {"format": "conll"}, OF_CONLL),
    "a table by its name, by format": ("a.tsv", CONLL, {"format": "conll"}, OF_CONLL),
    "a column by its number": (
        "a.iob",
        CONLL,
        {"target": {"column": "2"}},
        [("EU rejects", "NNP VBZ"), ("It", "PRP")],
    ),
}


@pytest.mark.parametrize("case", READ)
def test_sentences_of_files(tmp_path, case):
    name, content, keys, wanted = READ[case]
    assert rows(config(written(tmp_path, name, content), **keys)) == wanted


def test_a_table_is_a_table_unless_the_format_says_otherwise(tmp_path):
    path = written(tmp_path, "a.tsv", "words\ttags\nEU rejects\tB-ORG O\n")
    columns = {"source": {"column": "words"}, "target": {"column": "tags"}}
    assert rows(config(path, **columns)) == [("EU rejects", "B-ORG O")]


REFUSED = {
    "format means nothing": ("a.jsonl", {"format": "conll"}, "data.format: wanted nothing here"),
    "nor for Parquet": ("a.parquet", {"format": "conll"}, "data.format: wanted nothing here"),
    "a name that no such file has": (
        "a.conll",
        {"target": {"column": "POS"}},
        "data.target.column: wanted a number from '1', or one of ID, FORM",
    ),
    "two files": (
        ["a.conll", "b.conll"],
        {},
        "data.train: wanted one file with words and tags; got 2 files",
    ),
    "a name that says nothing": ("eng.train", {}, 'or set format = "conll"'),
    "a table without columns": ("a.tsv", {}, 'or set format = "conll"'),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_before_files_are_read(case):
    file, keys, wanted = REFUSED[case]
    fields = {"source": {"kind": "words"}, "target": {"kind": "tags"}}
    for name in fields:
        fields[name] |= keys.get(name, {})
    problems = read(DataConfig, {**keys, "train": file, **fields}, "data")
    assert any(wanted in str(problem) for problem in problems), problems


def test_other_fields_do_not_read_files_so():
    table = {"train": "a.tsv", "format": "conll", "source": {"column": "1"}}
    problems = read(DataConfig, {**table, "target": {"column": "2"}}, "data")
    assert ["data.format" in str(problem) for problem in problems] == [True]


def test_a_word_without_its_part_of_speech_is_refused_by_its_line(tmp_path):
    path = written(tmp_path, "a.conllu", CONLLU.replace("\tNUM\t", "\t_\t"))
    with pytest.raises(InvalidData, match=r"a\.conllu, line 9: wanted a tag in column UPOS"):
        rows(config(path))
    assert len(rows(config(path, target={"column": "XPOS"}))) == 2


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A model trained from CoNLL files, and these."""
    folder = tmp_path_factory.mktemp("conll")
    for seed, (name, count) in enumerate({"train": 100, "valid": 20, "test": 20}.items()):
        lines = []
        for words, tags in noun_phrases(count, seed):
            lines += [f"{word} x {tag}\n" for word, tag in zip(words, tags, strict=True)]
            lines.append("\n")
        (folder / f"{name}.conll").write_text("".join(lines))
    table = recipe()
    table["train"]["max_steps"] = 10
    table["data"] |= {split: str(folder / f"{split}.conll") for split in ("train", "valid", "test")}
    regard.train(table, folder / "run", cache=folder / "cache")
    return folder


def json_of(*arguments):
    done = command(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_verb_reads_such_files(place):
    sentences = noun_phrases(20, 2)
    test = place / "test.conll"
    model = regard.load(place / "run")
    outputs = model.predict([words for words, _ in sentences])
    predicted = json_of("predict", place / "run", test)
    assert [line["output"] for line in predicted] == outputs
    own = regard.evaluate(model, trust_data_paths=True)
    assert own.examples == 20
    assert regard.evaluate(model, data=test) == own
    files = regard.evaluate(model, sources=test, references=[test], metrics=["accuracy"])
    assert files["accuracy"].value == own["accuracy"].value
    scores = json_of("score", place / "run", test)
    wanted = model.score([words for words, _ in sentences], [" ".join(t) for _, t in sentences])
    assert [line["log_probabilities"] for line in scores] == [
        pytest.approx(each.log_probabilities, abs=1e-5) for each in wanted
    ]
    seen = json_of("look", place / "run", "--data", test)
    assert seen[0]["output"]["text"] == " ".join(sentences[0][1])


def test_inputs_named_txt_have_a_sentence_a_line(place):
    (place / "sentences.txt").write_text("the big dog sees\n")
    (line,) = json_of("predict", place / "run", place / "sentences.txt")
    assert line["outputs"][0]["words"] == ["the", "big", "dog", "sees"]


def test_words_alone_are_inputs(place):
    (place / "words.conllu").write_text(CONLLU)
    lines = json_of("predict", place / "run", place / "words.conllu")
    assert [line["outputs"][0]["words"] for line in lines] == [
        ["Do", "n't", "go"],
        ["10 000", "dogs"],
    ]
    lines = json_of("predict", place / "run", place / "words.conllu", "--column", "LEMMA")
    assert lines[0]["outputs"][0]["words"] == ["do", "not", "go"]


def test_a_tag_that_the_model_does_not_give_is_refused_by_its_line(place):
    other = place / "other.conll"
    other.write_text("the O\ndog B-NP\n\na O\ncat B-VP\n")
    for arguments in ({"data": other}, {"sources": other, "references": [other]}):
        with pytest.raises(InvalidArgument, match=r"other\.conll, line 4: .*got 'B-VP'"):
            regard.evaluate(place / "run", metrics=["accuracy"], **arguments)
    done = command("score", place / "run", other)
    assert done.returncode == 2
    assert "other.conll, line 4: " in done.stderr


def test_files_of_tags_are_compared_without_a_model(place):
    report = regard.evaluate(place / "test.conll", references=[place / "test.conll"])
    assert report["accuracy"].value == 1.0
    assert report["accuracy"].totals["tokens"] > report.examples


def test_the_recipe_for_parts_of_speech_trains_on_files_that_are_named(tmp_path):
    (tmp_path / "a.conllu").write_text((CONLLU + "\n") * 8)
    changes = [f"data.{split}={tmp_path / 'a.conllu'}" for split in ("train", "valid", "test")]
    changes += ["train.max_steps=2", "train.warmup_steps=1", "train.device=cpu"]
    options = [part for change in changes for part in ("--set", change)]
    done = command(
        "train",
        "parts-of-speech",
        "--out",
        tmp_path / "run",
        "--cache",
        tmp_path / "cache",
        *options,
    )
    assert done.returncode == 0, done.stderr
    model = regard.load(tmp_path / "run")
    assert set(model.target.names) == {"AUX", "PART", "VERB", "NUM", "NOUN"}
