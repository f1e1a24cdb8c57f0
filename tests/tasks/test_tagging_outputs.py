"""What a tagger gives: spans, CoNLL columns and JSON, from the command line and from a server."""

import json
import subprocess
import sys

import msgspec
import pytest

pytest.importorskip("uvicorn", reason="needs the extra `serve`")

import regard
from regard.data import conll
from regard.serving.processes.message_types import packed, unpacked
from regard.tasks.pipeline import Output, TaggedSpan
from regard.tasks.tag_pipeline import spans_of
from support.command_line import command
from support.servers import served
from support.tagging import recipe, splits

SENTENCES = ["the big red dog sees a cat", "a bird", "the house likes an old cat"]
CONLLU = "1\tbig\tbig\tADJ\t_\t_\t2\t_\t_\t_\n2\tdog\tdog\tNOUN\t_\t_\t0\t_\t_\t_\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Runs of taggers: of phrases, and of tags that mark no spans."""
    folder = tmp_path_factory.mktemp("outputs")
    regard.train(recipe("rnn", "crf"), folder / "phrases", data=splits())
    plain = {
        split: [(words, [tag[:1].lower() for tag in tags]) for words, tags in rows]
        for split, rows in splits(40).items()
    }
    regard.train(recipe("rnn", "softmax", {"max_steps": 4}), folder / "plain", data=plain)
    (folder / "sentences.txt").write_text("".join(f"{each}\n" for each in SENTENCES))
    return folder


def lines_of(*arguments):
    done = command(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_spans_by_hand():
    words = ["Mr", "Ng", "of", "New", "York", "City", "and", "Rome"]
    tags = ["O", "B-PER", "O", "B-LOC", "I-LOC", "I-LOC", "O", "B-LOC"]
    assert spans_of(words, tags) == (
        TaggedSpan("PER", 1, 2, "Ng"),
        TaggedSpan("LOC", 3, 6, "New York City"),
        TaggedSpan("LOC", 7, 8, "Rome"),
    )
    of_bioes = ["O", "S-PER", "O", "B-LOC", "I-LOC", "E-LOC", "O", "S-LOC"]
    assert spans_of(words, of_bioes) == spans_of(words, tags)


def test_outputs_have_the_spans_of_their_tags(folder):
    found = 0
    for (output,) in regard.load(folder / "phrases").outputs(SENTENCES):
        assert output.spans == spans_of(output.words, output.tags)
        assert all(
            span.text.split() == list(output.words[span.start : span.end]) for span in output.spans
        )
        found += len(output.spans)
    assert found > 0


def test_tags_that_mark_no_spans_have_none(folder):
    [[output]] = regard.load(folder / "plain").outputs(SENTENCES[:1])
    assert output.spans is None
    assert "spans" not in output.as_json()


def test_json_has_words_tags_probabilities_and_spans(folder):
    printed = lines_of("predict", folder / "phrases", folder / "sentences.txt", "--json")
    outputs = regard.load(folder / "phrases").outputs(SENTENCES, scores=True)
    for line, sentence, (output,) in zip(printed.splitlines(), SENTENCES, outputs, strict=True):
        (given,) = json.loads(line)["outputs"]
        assert given["words"] == sentence.split()
        assert given["tags"] == list(output.tags)
        assert given["tag_probabilities"] == pytest.approx(output.tag_probabilities, abs=1e-6)
        assert given["spans"] == [
            {"label": span.label, "start": span.start, "end": span.end, "text": span.text}
            for span in output.spans
        ]


@pytest.mark.parametrize("run", ["phrases", "plain"])
def test_an_empty_line_has_the_keys_of_any_other(folder, tmp_path, run):
    lines = tmp_path / "lines.txt"
    lines.write_text(f"{SENTENCES[0]}\n\n{' '.join(['cat'] * 2000)}\n")
    done = command("predict", folder / run, lines, "--json")
    told = [json.loads(line) for line in done.stdout.splitlines()]
    full, empty, refused = (each["outputs"][0] for each in told)
    assert "error" in told[2]
    for name in ("words", "tags", "tag_probabilities", *(["spans"] if run == "phrases" else [])):
        assert (empty[name], refused[name]) == ([], [])
    assert set(full) == set(empty) == set(refused)


def test_columns_can_be_read_again(folder, tmp_path):
    out = tmp_path / "out.conll"
    arguments = ("predict", folder / "phrases", folder / "sentences.txt", "--conll")
    printed = lines_of(*arguments)
    lines_of(*arguments, "--out", out)
    assert out.read_text() == printed
    outputs = regard.load(folder / "phrases").outputs(SENTENCES)
    read = list(conll.sentences(out, ["words", "tags"]))
    assert read == [(output.words, output.tags) for (output,) in outputs]
    report = regard.evaluate(out, references=[out])
    assert report["accuracy"].value == 1.0


def test_a_file_of_words_and_tags_is_scored(folder, tmp_path):
    """Each sentence has the log-probability of its tags."""
    rows = [(["a", "bird"], ["o", "b"]), (["the", "old", "cat"], ["o", "b", "i"])]
    text = ""
    for words, tags in rows:
        for number, (word, tag) in enumerate(zip(words, tags, strict=True), 1):
            text += f"{number}\t{word}\t_\t{tag}" + "\t_" * 6 + "\n"
        text += "\n"
    source = tmp_path / "a.conllu"
    source.write_text(text)
    texts = [" ".join(words) for words, _ in rows]
    wanted = regard.load(folder / "plain").score(texts, [" ".join(tags) for _, tags in rows])
    printed = lines_of("score", folder / "plain", source).splitlines()
    found = [float(line.split("\t")[0]) for line in printed]
    assert found == pytest.approx([each.log_probability for each in wanted], abs=1e-3)


def test_conllu_gives_conllu(folder, tmp_path):
    source = tmp_path / "a.conllu"
    source.write_text(CONLLU)
    printed = lines_of("predict", folder / "plain", source, "--conll")
    [[output]] = regard.load(folder / "plain").outputs([["big", "dog"]])
    rows = [line.split("\t") for line in printed.splitlines() if line]
    assert [row[:2] + row[3:4] for row in rows] == [
        ["1", "big", output.tags[0]],
        ["2", "dog", output.tags[1]],
    ]
    assert {len(row) for row in rows} == {10}


def test_columns_beside_other_formats_are_refused(folder):
    for other in ("--json", "--scores", "--stream"):
        done = command("predict", folder / "phrases", folder / "sentences.txt", "--conll", other)
        assert done.returncode == 2
        assert "wanted nothing" in done.stderr


def test_a_model_without_tags_has_no_columns(tmp_path):
    table = {
        "data": {"source": {"tokenizer": "bytes"}, "target": {"kind": "label"}},
        "model": {"encoder": {"kind": "rnn", "dim": 8}, "pool": {"kind": "mean"}},
        "train": {"max_steps": 1},
    }
    rows = [("a", "x"), ("b", "y")]
    regard.train(table, tmp_path / "run", data={"train": rows, "valid": rows})
    done = command("predict", tmp_path / "run", "--conll", text="a\n")
    assert done.returncode == 2
    assert "--conll: wanted a model that gives tags; got one that gives labels" in done.stderr


def test_a_server_answers_as_predict_does(folder):
    model = regard.load(folder / "phrases")
    with served({"tagger": model}) as server:
        status, _, answer = server.ask("/predict", {"input": SENTENCES, "scores": True})
        assert status == 200
        wanted = model.outputs(SENTENCES, scores=True)
        for result, (output,) in zip(answer["results"], wanted, strict=True):
            (given,) = result["outputs"]
            own = output.as_json()
            assert given["text"] == own["text"]
            for name in ("words", "tags", "spans"):
                assert given[name] == own[name]
            for name in ("score", "tag_probabilities"):
                assert given[name] == pytest.approx(own[name], abs=1e-5)
        # A list of several texts is the words of one sentence; of one text, its words are at spaces.
        for words in (["the", "New York", "dog"], ["the red dog"]):
            status, _, answer = server.ask("/predict", {"input": [words]})
            assert status == 200
            [[result]] = [each["outputs"] for each in answer["results"]]
            assert result["words"] == (words if len(words) > 1 else words[0].split())
        status, _, answer = server.ask("/look", {"input": SENTENCES[0]})
        assert answer["output"]["tokens"] == list(wanted[0][0].tags)


def test_the_studio_shows_a_tagger(folder):
    with served({"tagger": regard.load(folder / "phrases")}) as server:
        status, _, answer = server.ask("/studio/models")
        assert status == 200
        (model,) = answer["models"]
        assert (model["reads"], model["generates"]) == (["words"], False)
        status, _, look = server.ask("/studio/look", {"input": SENTENCES[:1], "model": "tagger"})
        assert status == 200
        assert look["output"]["words"] == SENTENCES[0].split()


def test_spans_cross_from_one_process_to_another():
    output = Output("B-X", tags=("B-X",), spans=(TaggedSpan("X", 0, 1, "a"),))
    sent = msgspec.msgpack.encode(packed(output))
    assert msgspec.msgpack.decode(sent, ext_hook=unpacked) == output


def test_given_tags_are_scored_from_the_command_line(folder, tmp_path):
    # In a process of its own: checks of types, which tests run with, change inference mode.
    tags = [" ".join("O" for _ in sentence.split()) for sentence in SENTENCES]
    (tmp_path / "tags.txt").write_text("".join(f"{each}\n" for each in tags))
    files = [folder / "phrases", folder / "sentences.txt", tmp_path / "tags.txt"]
    command_line = [sys.executable, "-m", "regard", "score", *map(str, files)]
    done = subprocess.run(command_line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    scores = regard.load(folder / "phrases").score(SENTENCES, tags)
    for line, score in zip(done.stdout.splitlines(), scores, strict=True):
        assert float(line.split()[0]) == pytest.approx(sum(score.log_probabilities), abs=1e-3)
