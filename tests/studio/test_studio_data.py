"""A data set in the studio: every example measured as `regard.look` does, sorted and paged; heads as `regard.heads`."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("uvicorn", reason="needs the extra `serve`")

import regard
from regard.data.synthetic.shapes import shapes
from regard.evaluation.metrics import score
from regard.interpret.editing import editing
from regard.interpret.edits import SwitchHeadOff
from regard.studio import run as studio_run
from regard.studio.data import DataSet
from regard.studio.sources import StudioSources
from support.captioners import captioner
from support.predictors import classifier, language_model, translator
from support.servers import Running, served, until

PAIRS = [
    ("the cat sat", "a cat"),
    ("a dog", "the dog ran"),
    ("the red car and the dog", "words"),
    ("a", "a"),
]
MODELS = {"en-de": translator(), "other": translator(decoder="rnn")}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("data") / "test.tsv"
    path.write_text("".join(f"{a}\t{b}\n" for a, b in [("source", "target"), *PAIRS]))
    return path


@pytest.fixture(scope="module")
def links(tmp_path_factory) -> list[str]:
    """Files of sources, targets and reference links."""
    folder = tmp_path_factory.mktemp("links")
    texts = {
        "sources": "the cat sat\na dog\n",
        "targets": "a cat sat\nthe dog\n",
        "links": "0-0 1-1 2-2\n1-1\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    return [str(folder / name) for name in texts]


@pytest.fixture(scope="module")
def server(data, links) -> Iterator[Running]:
    with served(
        MODELS, studio=StudioSources(DataSet((str(data),), alignment=tuple(links)))
    ) as running:
        yield running


def page(server: Running, query: str = "", model: str = "en-de") -> dict:
    """A page, when all examples are measured."""
    path = f"/studio/data?model={model}&{query}"
    until(lambda: server.ask(path)[2]["data"]["measured"] == len(PAIRS))
    return server.ask(path)[2]


def test_examples_are_those_of_look(server, data):
    answer = page(server)
    assert answer["data"] == {
        "name": data.name,
        "total": 4,
        "more": False,
        "measured": 4,
        "error": None,
    }
    assert [each["index"] for each in answer["examples"]] == [0, 1, 2, 3]
    for each, (text, reference) in zip(answer["examples"], PAIRS, strict=True):
        seen = regard.look(MODELS["en-de"], text)
        heads = [head.entropy for _, head in seen.heads()]
        assert (each["input"], each["reference"], each["output"]) == (
            [text],
            reference,
            seen.output.text,
        )
        assert each["score"] == pytest.approx(sum(seen.output.scores), abs=1e-4)
        assert each["tokens"] == len(seen.output.tokens)
        assert each["length"] == len(seen.sources[0].tokens)
        assert each["entropy"] == pytest.approx(sum(heads) / len(heads), abs=1e-5)
        assert each["error"] == pytest.approx(
            score("character_error_rate", [seen.output.text], [[reference]])
        )


@pytest.mark.parametrize("sort", ["score", "length", "entropy", "error"])
def test_examples_are_sorted_and_paged(server, sort):
    values = [each[sort] for each in page(server)["examples"]]
    for order in ("ascending", "descending"):
        wanted = sorted(values, reverse=order == "descending")
        assert [
            each[sort] for each in page(server, f"sort={sort}&order={order}")["examples"]
        ] == wanted
    second = page(server, f"sort={sort}&first=1&count=2")
    assert [each[sort] for each in second["examples"]] == sorted(values)[1:3]


def test_what_is_wrong_is_refused(server):
    assert (
        server.ask("/studio/data?model=en-de&sort=entrpy")[2]["remedy"] == "Did you mean 'entropy'?"
    )
    assert server.ask("/studio/data?model=en-de&first=-1")[0] == 400
    assert server.ask("/studio/data?model=missing")[0] == 404
    other = server.ask("/studio/data?model=en-de&data=/etc/passwd&names=/etc/passwd")[2]
    assert "passwd" not in json.dumps(other)  # no path is taken from a request


def test_heads_are_those_of_the_data(server, links):
    page(server)
    until(lambda: server.ask("/studio/heads", {"model": "en-de"})[2]["complete"])
    answer = server.ask("/studio/heads", {"model": "en-de"})[2]
    model = MODELS["en-de"]
    wanted = regard.heads(model, inputs=[text for text, _ in PAIRS], alignment=links)
    assert answer["inputs"] == len(PAIRS)
    assert [each["alignment"] for each in answer["heads"]] == [
        each.alignment for each in wanted.heads
    ]
    assert any(each["alignment"] for each in answer["heads"])
    assert [(each["map"], each["head"]) for each in answer["heads"]] == [
        each.name for each in wanted.heads
    ]
    for each, head in zip(answer["heads"], wanted.heads, strict=True):
        for column in ("entropy", "previous", "positional", "induction", "copying"):
            assert each[column] == pytest.approx(head.value(column), abs=1e-5)
    assert answer["distances"][0][1] == pytest.approx(wanted.distances[0][1], abs=1e-4)
    first = answer["heads"][0]

    def loss() -> float:
        scores = model.score([text for text, _ in PAIRS], [target for _, target in PAIRS])
        return -sum(each.log_probability for each in scores) / sum(
            len(each.tokens) for each in scores
        )

    whole = loss()
    with editing(model.model, [SwitchHeadOff(map=first["map"], head=first["head"])]):
        assert first["ablation"] == pytest.approx(loss() - whole, abs=1e-5)
    assert first["ablation"] != pytest.approx(0.0, abs=1e-6)


def test_heads_of_one_input(server):
    answer = server.ask("/studio/heads", {"model": "en-de", "input": "the cat sat"})[2]
    wanted = regard.heads(MODELS["en-de"], inputs=["the cat sat"])
    assert [each["entropy"] for each in answer["heads"]] == pytest.approx(
        [h.means.entropy for h in wanted.heads]
    )
    assert (answer["inputs"], answer["complete"]) == (1, True)


def test_a_new_version_is_measured_anew(server):
    before = page(server, model="other")["examples"]
    server.engine.load("other", "8", translator(decoder="rnn", seed=5))
    try:
        assert [each["score"] for each in page(server, model="other")["examples"]] != [
            e["score"] for e in before
        ]
    finally:
        server.engine.load("other", "7", MODELS["other"])


def test_texts_of_a_language_model(tmp_path):
    (tmp_path / "t.txt").write_text("the cat sat\na dog\n")
    model = language_model()
    with served(
        {"lines": model}, studio=StudioSources(DataSet((str(tmp_path / "t.txt"),)))
    ) as running:
        until(lambda: running.ask("/studio/data")[2]["data"]["measured"] == 2)
        first = running.ask("/studio/data")[2]["examples"][0]
        seen = regard.look(model, "the cat sat", output="")
        assert first["score"] == pytest.approx(sum(seen.output.scores), abs=1e-4)
        assert first["error"] == pytest.approx(-first["score"] / first["tokens"])
        assert (first["reference"], first["output"]) == (None, None)


@pytest.mark.parametrize("crop_from", [None, 80])
def test_an_image_of_the_data_is_looked_at_as_the_example(tmp_path, crop_from):
    """The page gets the picture that the model read: its look is that of the file, whatever its size."""
    image = pytest.importorskip("PIL.Image")
    model = captioner("transformer")
    fields = replace(model.recipe.data.source_fields[0], image_crop_from=crop_from)
    model = replace(
        model, recipe=replace(model.recipe, data=replace(model.recipe.data, source=fields))
    )
    for name, scene in zip(("a.png", "b.png"), shapes("test", 0, 2), strict=True):
        image.fromarray(scene.source.draw()).resize((150, 97)).save(tmp_path / name)
    (tmp_path / "test.tsv").write_text("image\ttext\na.png\tred\nb.png\tblue\n")
    data = DataSet((str(tmp_path / "test.tsv"),), ("image", "text"), trust_data_paths=True)
    with served({"captions": model}, studio=StudioSources(data)) as running:
        until(
            lambda: (
                running.ask("/studio/data")[2]["data"]["measured"] == 2
                or running.ask("/studio/data")[2]["data"]["error"]
            )
        )
        page = running.ask("/studio/data")[2]
        assert page["data"]["error"] is None
        assert [each["input"] for each in page["examples"]] == [["a.png"], ["b.png"]]
        answer = running.ask("/studio/data/inputs", {"indices": [1, 0]})[2]
        for (url,), name in zip(answer, ("b.png", "a.png"), strict=True):
            found = running.ask("/studio/look", {"input": [url]})[2]
            wanted = json.loads(regard.look(model, tmp_path / name).to_json())
            assert found["maps"] == wanted["maps"]
            assert found["output"] == wanted["output"]
        assert running.ask("/studio/data/inputs", {"indices": [7, -1]})[2] == []
        assert running.ask("/studio/data/inputs", {"indices": [0] * 500})[0] == 400


def test_alignment_needs_three_files_and_data():
    for given in ({"alignment": ["a", "b", "c"]}, {"alignment": ["a"], "data": ["test"]}):
        with pytest.raises(
            regard.InvalidArgument,
            match="alignment: wanted files of sources, targets and reference links",
        ):
            regard.studio(**given)


def test_alignment_of_three_files_is_shown_with_the_data(monkeypatch):
    shown = []
    monkeypatch.setattr(
        studio_run, "serve", lambda models, **options: shown.append(options["studio"].data)
    )
    regard.studio(data=["test"], alignment=["a", "b", "c"], open_browser=False)
    regard.studio(data=["test"], open_browser=False)
    regard.studio(open_browser=False)
    assert shown == [DataSet(("test",), alignment=("a", "b", "c")), DataSet(("test",)), None]


def test_labels_of_a_classifier_and_links_that_it_has_not(tmp_path, links):
    """Its examples have the score of their label; it aligns no words, which does not end the measurement."""
    (tmp_path / "t.tsv").write_text("source\ttarget\nthe cat sat\tfine\na dog\tgood\n")
    model = classifier()
    source = DataSet((str(tmp_path / "t.tsv"),), ("source", "target"), alignment=tuple(links))
    with served({"labels": model}, studio=StudioSources(source)) as running:
        until(lambda: running.ask("/studio/data")[2]["data"]["measured"] == 2)
        examples = {each["index"]: each for each in running.ask("/studio/data")[2]["examples"]}
        for index, text in enumerate(("the cat sat", "a dog")):
            output = regard.look(model, text).output
            assert examples[index]["output"] == output.label
            assert examples[index]["score"] == pytest.approx(output.score, abs=1e-5)
        until(lambda: running.ask("/studio/heads", {})[2]["complete"])
        assert running.ask("/studio/data/inputs", {"indices": [1, 0, 2]})[2] == [
            ["a dog"],
            ["the cat sat"],
        ]


def test_a_page_of_the_data_has_a_largest_size(tmp_path):
    """However many rows are asked for: pages of that size together have all examples."""
    total = 230
    lines = [f"the cat sat {number}\tfine\n" for number in range(total)]
    (tmp_path / "t.tsv").write_text("source\ttarget\n" + "".join(lines))
    source = DataSet((str(tmp_path / "t.tsv"),), ("source", "target"))
    with served({"labels": classifier()}, studio=StudioSources(source)) as running:
        until(lambda: running.ask("/studio/data")[2]["data"]["measured"] == total)
        found = []
        while len(found) < total:
            path = f"/studio/data?first={len(found)}&count=100000"
            rows = [each["index"] for each in running.ask(path)[2]["examples"]]
            assert 0 < len(rows) < total
            found += rows
        assert found == [*range(total)]


def test_heads_of_data_that_could_not_be_measured_are_complete(data):
    """What could be measured is shown, and a page that asks until all is there does not ask for ever."""
    missing = ("sources", "targets", "links")
    source = DataSet((str(data),), alignment=tuple(str(data.parent / "no" / n) for n in missing))
    with served({"en-de": MODELS["en-de"]}, studio=StudioSources(source)) as running:
        until(lambda: running.ask("/studio/data")[2]["data"]["error"])
        assert "sources" in running.ask("/studio/data")[2]["data"]["error"]
        status, _, answer = running.ask("/studio/heads", {})
        assert (status, answer["inputs"], answer["complete"]) == (200, len(PAIRS), True)


def test_without_data(tmp_path):
    with served({"m": MODELS["en-de"]}) as running:
        assert running.ask("/studio/given")[2] == {"data": None, "runs": []}
        status, _, answer = running.ask("/studio/data")
        assert (status, "--data" in answer["detail"]) == (404, True)
    missing = StudioSources(DataSet((str(tmp_path / "missing.tsv"),)))
    with served({"m": MODELS["en-de"]}, studio=missing) as running:
        until(lambda: running.ask("/studio/data")[2]["data"]["error"])
        assert "missing.tsv" in running.ask("/studio/data")[2]["data"]["error"]
