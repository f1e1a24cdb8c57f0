"""`regard compare`: systems side by side, as a table, a page and a figure."""

import json
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
import torch

import regard
from golden.write import HERE, PAIRS
from regard.api import compare as compare_verb
from regard.api.evaluate import evaluate, system_name
from regard.evaluation.metrics import score
from regard.views import charts
from regard.views.comparison import comparison_figure, comparison_page, comparison_text
from support.command_line import command
from support.predictors import translator

GOLDEN = HERE / "0.1.0"
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>]]>\x1b[31m\u202e"
ROWS = [(a, b) for a, b in PAIRS if a]


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("s").write_text("".join(f"{source}\n" for source, _ in ROWS))
    Path("r").write_text("".join(f"{target}\n" for _, target in ROWS))
    Path("ours").write_text("".join(f"{target}\n" for _, target in ROWS))
    Path("theirs").write_text(f"{ROWS[0][1]}\n{ROWS[1][1]}!\n{HOSTILE}\n{ROWS[3][1]}\n")
    return tmp_path


def test_the_most_different_outputs_come_first(place):
    found = regard.compare(
        ["ours", "theirs"], sources="s", references=["r"], by_length="2", resamples=50
    )
    assert [sentence.number for sentence in found.sentences] == [3, 2]  # the others are the same
    assert found.sentences[0].source == ROWS[2][0]
    assert found.sentences[1].difference == pytest.approx(1 / (len(ROWS[1][1]) + 1))
    for sentence in found.sentences:
        for name, answer in zip(("ours", "theirs"), sentence.answers, strict=True):
            assert answer.output == Path(name).read_text().split("\n")[sentence.number - 1]
            assert list(answer.scores) == ["chrf"]  # the BLEU of a sentence says little
            changed = [each.second for each in answer.difference if each.second]
            assert changed == (answer.output.split() if name == "theirs" else [])
            for metric, value in answer.scores.items():
                assert value == pytest.approx(score(metric, [answer.output], [sentence.references]))
    wanted = evaluate(
        ["ours", "theirs"], sources="s", references=["r"], by_length="2", resamples=50
    )
    assert found.report == wanted
    assert (
        len(
            regard.compare(
                ["ours", "theirs"], sources="s", references=["r"], sentences=1, resamples=9
            ).sentences
        )
        == 1
    )


def test_evaluate_takes_a_path_a_model_or_several(place):
    """`regard evaluate` is `regard.evaluate`: the report is the same for a checkpoint and for its loaded model."""
    options = {"sources": "s", "references": ["r"], "metrics": ["chrf"], "resamples": 9}
    loaded = regard.load(GOLDEN / "transformer")
    report = regard.evaluate(GOLDEN / "transformer", **options, outputs="out.txt")
    assert report["chrf"] == regard.evaluate(loaded, **options)["chrf"]
    assert Path("out.txt").read_text().splitlines() == loaded.predict(
        [source for source, _ in ROWS]
    )
    done = command(
        "evaluate", GOLDEN / "transformer", "theirs", "--sources", "s", "--references", "r", "--metric", "chrf",
        "--resamples", 9, "--json",
    )  # fmt: skip
    several = regard.evaluate([GOLDEN / "transformer", "theirs"], **options)
    assert json.loads(done.stdout) == json.loads(json.dumps(asdict(several)))
    assert several["chrf"] == report["chrf"]


def test_models_are_compared_with_their_attention(place):
    Path("s").write_text("a cat\na dog\n")  # to which these small models answer at great length
    Path("r").write_text("A CAT\nA DOG\n")
    Path("theirs").write_text("A CAT\nA DOG\n")
    systems = [GOLDEN / "transformer", "theirs"]
    found = regard.compare(
        systems, sources="s", references=["r"], metrics=["chrf"], resamples=9, sentences=1
    )
    (sentence,) = found.sentences
    ours, theirs = sentence.answers
    assert theirs.attention is None
    seen = regard.look(regard.load(systems[0]), sentence.source)
    assert (ours.output, ours.attention.keys) == (seen.output.text, seen.source.tokens)
    assert ours.attention.rows == seen.output.tokens
    weights = seen["decoder 1 cross"].weights().mean(0).tolist()
    for found_row, row in zip(ours.attention.weights, weights, strict=True):
        assert found_row == pytest.approx(row, abs=1e-4)


def test_models_search_as_they_are_told(place):
    Path("s").write_text("a cat\n")
    Path("r").write_text("A CAT\n")
    Path("theirs").write_text("A CAT\n")
    systems = [GOLDEN / "transformer", "theirs"]
    told = command(
        "compare",
        *systems,
        "--sources",
        "s",
        "--references",
        "r",
        "--set",
        "max_length=2",
        "--json",
    )
    (sentence,) = json.loads(told.stdout)["sentences"]
    short = sentence["answers"][0]
    assert short["output"] == regard.load(systems[0]).predict(["a cat"], max_length=2)[0]
    assert short["output"] != regard.load(systems[0]).predict(["a cat"])[0]
    assert len(short["attention"]["rows"]) == 2  # of the same search


class Page(HTMLParser):
    """What a browser would make of it."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.tags: dict[str, list[dict[str, str | None]]] = {}
        self.texts: list[str] = []
        self.feed(content)

    def handle_starttag(self, tag, attrs):
        self.tags.setdefault(tag, []).append(dict(attrs))

    def handle_data(self, data):
        self.texts.append(data)


def test_the_page_shows_all_and_runs_nothing(place):
    systems = ["ours", "theirs", GOLDEN / "transformer"]
    found = regard.compare(systems, sources="s", references=["r"], by_length="2", resamples=9)
    content = comparison_page(found)
    page = Page(content)
    assert not page.tags.keys() & {"script", "img", "link", "iframe", "object", "a"}
    for attributes in (each for same in page.tags.values() for each in same):
        assert not [
            name for name in attributes if name.startswith("on") or name in ("style", "src", "href")
        ]
    (policy,) = (each["content"] for each in page.tags["meta"] if "http-equiv" in each)
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert any("<script>alert(1)</script>" in text for text in page.texts)  # as text, whole
    assert "\x1b" not in content
    assert len(page.tags["svg"]) == 2 + sum(
        sentence.answers[2].attention is not None for sentence in found.sentences
    )
    assert len(page.tags["svg"]) > 2
    drawing = ElementTree.fromstring(comparison_figure(found))
    marks = drawing.findall(".//{http://www.w3.org/2000/svg}circle")
    assert len(marks) == 2 * 3 * 2  # metrics, systems, groups of lengths
    for each in content.split("<figure>")[1:]:
        ElementTree.fromstring(each.split("</figure>")[0])


def test_lines_stand_where_their_values_are():
    drawn = [
        charts.ChartLine("a", [(0.0, 1.0, 2.0), None, (1.0, 2.0, 3.0)]),
        charts.ChartLine("b", [(0.0, 0.0, 0.0)] * 3),
    ]
    root = ElementTree.fromstring(
        charts.lines("t", ["1–2", "3–4", "5–6"], drawn, "{:.1f}".format).content()
    )
    circles = root.findall(".//{http://www.w3.org/2000/svg}circle")
    heights = [float(each.get("cy")) for each in circles]
    assert len(heights) == 5
    assert heights[0] > heights[1]  # the larger is the higher
    assert heights[2:] == [heights[2]] * 3
    assert heights[2] - heights[0] == pytest.approx(heights[0] - heights[1], abs=0.2)
    labels = [
        each.text
        for each in root.findall(".//{http://www.w3.org/2000/svg}text[@text-anchor='end']")
    ]
    assert labels == ["0.0", "1.0", "2.0", "3.0"]
    assert [each[0].text for each in circles[:2]] == ["a: 1.0 (0.0 to 2.0)", "a: 2.0 (1.0 to 3.0)"]


def test_the_command_compares(place):
    done = command(
        "compare",
        "ours",
        "theirs",
        "--sources",
        "s",
        "--references",
        "r",
        "--resamples",
        9,
        "--out",
        "x.svg",
    )
    assert done.returncode == 0, done.stderr
    assert "bleu ↑ by source length (examples)" in done.stdout
    assert "example 3: outputs differ by" in done.stdout
    assert "\x1b" not in done.stdout
    ElementTree.fromstring(Path("x.svg").read_text())
    told = command(
        "compare",
        "ours",
        "theirs",
        "--sources",
        "s",
        "--references",
        "r",
        "--json",
        "--out",
        "x.html",
    )
    sentences = json.loads(told.stdout)["sentences"]
    assert [each["number"] for each in sentences] == [3, 2]
    assert sentences[0]["answers"][1]["output"] == HOSTILE
    assert Path("x.html").read_text().startswith("<!doctype html>")


def test_language_models_have_figures_alone(place):
    Path("train.jsonl").write_text(json.dumps({"target": "a cat"}) + "\n")
    systems = [GOLDEN / "language-model"] * 2
    found = regard.compare(
        systems, split="train", resamples=9, cache=place / "cache", trust_data_paths=True
    )
    assert found.sentences == []
    assert "perplexity" in comparison_text(found)
    assert "perplexity" in comparison_page(found)
    with pytest.raises(ValueError, match="out: wanted systems with outputs"):
        comparison_figure(found)


REFUSED = {
    "one alone": (
        ("ours", "--references", "r", "--sources", "s"),
        "systems: wanted two systems or more; got 1",
    ),
    "unknown ending": (
        ("ours", "theirs", "--out", "x.png"),
        r"out: wanted a name in .html or .svg; got x.png",
    ),
    "no references": (
        ("ours", "theirs"),
        "references: wanted a file beside outputs without a model",
    ),
    "no sources": (
        ("ours", "theirs", "--references", "r"),
        "sources: wanted a file whose lengths count",
    ),
    "groups": (
        ("ours", "theirs", "--sources", "s", "--references", "r", "--by-length", "x"),
        "by-length: wanted",
    ),
    "other lines": (
        ("ours", "s2", "--sources", "s", "--references", "r"),
        "s2: wanted an output for each of 4",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_compared_is_refused(name, place):
    Path("s2").write_text("a\n")
    arguments, message = REFUSED[name]
    done = command("compare", *arguments)
    assert done.returncode == 2
    with pytest.raises(ValueError, match=message):
        raise ValueError(done.stderr)
    assert not list(place.glob("x.*"))


def test_a_system_is_named_by_its_folder(tmp_path):
    model = translator()
    assert system_name(model) == "model"
    assert system_name(replace(model, folder=tmp_path)) == str(tmp_path)
    assert system_name(tmp_path / "outputs.txt") == str(tmp_path / "outputs.txt")


@pytest.mark.parametrize(
    ("rows", "keys", "shown"), [(64, 64, True), (17, 241, False), (1, 4096, True), (4097, 1, False)]
)
def test_maps_of_up_to_4096_weights_are_shown(monkeypatch, rows, keys, shown):
    """The mean over the heads of the last layer."""
    weights = torch.rand(2, rows, keys)
    first = SimpleNamespace(kind="cross", size=(1, 1))
    last = SimpleNamespace(kind="cross", size=(rows, keys), weights=lambda: weights)
    seen = SimpleNamespace(
        maps=(first, last, SimpleNamespace(kind="self", size=(1, 1))),
        names=lambda each: (
            [f"r{i}" for i in range(each.size[0])],
            [f"k{i}" for i in range(each.size[1])],
        ),
    )
    monkeypatch.setattr(compare_verb, "look", lambda model, source, **options: seen)
    found = compare_verb._attention(translator(), "the cat")
    assert (found is not None) is shown
    if found is not None:
        assert (len(found.rows), len(found.keys)) == (rows, keys)
        torch.testing.assert_close(torch.tensor(found.weights), weights.mean(0), atol=6e-5, rtol=0)
    assert compare_verb._attention(translator(), "") is None
