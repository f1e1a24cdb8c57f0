"""`/look` over real sockets: its weights are those of `regard.look`, as JSON and as a file of safetensors."""

import json
from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("uvicorn", reason="needs the extra `serve`")

from safetensors.numpy import load

import regard
from regard.serving.routes import look as look_route
from regard.serving.routes.look import SAFETENSORS
from support.predictors import classifier, language_model, masked_model, translator
from support.servers import Running, served

MODELS = {
    "rnn": translator(decoder="rnn"),
    "transformer": translator(),
    "labels": classifier(),
    "lines": language_model(),
    "masked": masked_model(),
}
CROSS = "decoder 1 cross"
EDITS = [
    {"edit": "scale_head", "map": "decoder 2 cross", "head": 0, "factor": 0.25},
    {"edit": "mask_source", "token": 1},
]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with served(MODELS) as running:
        yield running


def assert_seen(answer: dict, wanted: regard.Look, **chosen) -> None:
    """The answer is this look, with the weights of some heads, rows and columns."""
    shown = None if wanted.output is None else wanted.output.as_dict()
    if shown is None or answer["output"] is None:
        assert answer["output"] is shown
    else:
        assert {**answer["output"], **{"scores": None}} == {
            **json.loads(json.dumps(shown)),
            **{"scores": None},
        }
        for name in ("scores", "score"):
            if shown.get(name) is not None:
                assert answer["output"][name] == pytest.approx(shown[name], abs=1e-5)
    assert answer["sources"] == [
        json.loads(json.dumps(source.as_dict())) for source in wanted.sources
    ]
    for got in answer["maps"]:
        each = wanted[got["name"]]
        heads = chosen.get("heads", range(each.heads))
        rows, columns = (
            chosen.get("rows", (0, each.size[0])),
            chosen.get("columns", (0, each.size[1])),
        )
        part = each.weights()[list(heads)][:, slice(*rows), slice(*columns)].numpy()
        assert np.abs(np.array(got["weights"]).reshape(part.shape) - part).max(initial=0) < 1e-6
        row_names, column_names = wanted.names(each)
        assert (got["row_names"], got["column_names"]) == (
            [*row_names[slice(*rows)]],
            [*column_names[slice(*columns)]],
        )
        assert (got["size"], got["heads"]) == ([*each.size], [*heads])
        assert (got["kind"], got["part"], got["layer"]) == (each.kind, each.part, each.layer)
        assert (got["query_side"], got["key_side"], got["causal"]) == (
            each.query_side,
            each.key_side,
            each.causal,
        )


@pytest.mark.parametrize("model", MODELS)
def test_a_look_is_that_of_regard_look(server, model):
    """At what the model generates by itself; a classifier at its label."""
    searched = (
        {"max_length": 7, "beam_size": 2} if MODELS[model].model.generator is not None else {}
    )
    status, headers, answer = server.ask(
        "/look", {"model": model, "input": "the cat sat", **searched}
    )
    assert (status, answer["model"], answer["version"], headers["x-model"]) == (
        200,
        model,
        "7",
        model,
    )
    wanted = regard.look(MODELS[model], "the cat sat", **searched)
    assert [each["name"] for each in answer["maps"]] == [each.name for each in wanted.maps]
    assert_seen(answer, wanted)


def test_some_maps_heads_rows_and_columns(server):
    asked = {"model": "transformer", "input": "the cat sat on", "output": "a dog ran"}
    chosen = {"heads": [1], "rows": (1, 3), "columns": (0, 2)}
    _, _, answer = server.ask("/look", {**asked, "maps": [CROSS, "decoder 2 self"], **chosen})
    assert [each["name"] for each in answer["maps"]] == [CROSS, "decoder 2 self"]
    assert_seen(
        answer, regard.look(MODELS["transformer"], asked["input"], output=asked["output"]), **chosen
    )
    _, _, answer = server.ask("/look", {**asked, "layers": [2], "words": True, "summaries": True})
    wanted = regard.look(
        MODELS["transformer"], asked["input"], output=asked["output"], layers=[2], words=True
    )
    assert_seen(answer, wanted)
    for got, each in zip(answer["maps"], wanted.maps, strict=True):
        assert [one["entropy"] for one in got["summaries"]] == pytest.approx(
            [one.entropy for one in each.summary(0).heads()], abs=1e-5
        )


@pytest.mark.parametrize("output", [None, "a dog ran"])
def test_edits_change_output_and_weights(server, output):
    asked = {
        "model": "transformer",
        "input": "the cat sat",
        **({"max_length": 6} if output is None else {}),
    }
    _, _, plain = server.ask("/look", {**asked, "output": output})
    _, _, answer = server.ask(
        "/look", {**asked, "output": output, "edits": EDITS, "maps": [CROSS, "decoder 2 cross"]}
    )
    options = {"max_length": 6} if output is None else {}
    assert_seen(
        answer,
        regard.look(MODELS["transformer"], "the cat sat", output=output, edits=EDITS, **options),
    )
    scores = [each["output"]["scores"] for each in (plain, answer)]
    assert scores[0] != pytest.approx(scores[1], abs=1e-3)
    weights = np.array(next(each["weights"] for each in answer["maps"] if each["name"] == CROSS))
    assert np.abs(weights[:, :, 1]).max() == 0  # the masked token


def test_a_prefix_and_token_ids_are_outputs_too(server):
    asked = {"model": "transformer", "input": "the cat sat"}
    _, _, answer = server.ask("/look", {**asked, "prefix": "a dog", "max_length": 8})
    wanted = regard.look(MODELS["transformer"], "the cat sat", prefixes=["a dog"], max_length=8)
    assert answer["output"]["text"].startswith("a dog")
    assert_seen(answer, wanted)
    ids = list(MODELS["transformer"].outputs(["the cat sat"], max_length=4)[0][0].token_ids)
    _, _, answer = server.ask("/look", {**asked, "output": ids})
    assert_seen(answer, regard.look(MODELS["transformer"], "the cat sat", output=ids))


def test_a_file_of_safetensors_has_the_same_weights(server):
    asked = {
        "model": "transformer",
        "input": "the cat sat",
        "output": "a dog ran",
        "heads": [0],
        "rows": [0, 2],
    }
    _, _, as_json = server.ask("/look", asked)
    connection = server.connect()
    named = {"content-type": "application/json", "accept": SAFETENSORS}
    connection.request("POST", "/look", json.dumps(asked), named)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    assert answer.headers["content-type"] == SAFETENSORS
    size = int.from_bytes(content[:8], "little")  # the format, as the documentation describes it
    header = json.loads(content[8 : 8 + size])
    told = json.loads(header["__metadata__"]["look"])
    for each, same in zip(told["maps"], as_json["maps"], strict=True):
        place = header[each["name"]]
        first, last = place["data_offsets"]
        weights = np.frombuffer(content[8 + size + first : 8 + size + last], "<f4").reshape(
            place["shape"]
        )
        assert weights.tolist() == same["weights"]
        assert (place["dtype"], each["weights"]) == ("F32", None)
        assert {**each, "weights": 0} == {**same, "weights": 0}
        assert (load(content)[each["name"]] == weights).all()
    assert (told["output"], told["sources"]) == (as_json["output"], as_json["sources"])


def test_an_answer_is_bounded(server, monkeypatch):
    asked = {"model": "transformer", "input": "the cat sat", "output": "a dog ran"}
    count = sum(np.array(each["weights"]).size for each in server.ask("/look", asked)[2]["maps"])
    monkeypatch.setattr(look_route, "MAX_JSON_WEIGHTS", count - 1)
    status, _, answer = server.ask("/look", asked)
    assert (status, answer["argument"]) == (400, "maps, heads, rows, columns")
    assert f"wanted 1 to {count - 1:,} weights; got {count:,}" in answer["detail"]
    assert server.ask("/look", {**asked, "rows": [0, 1]})[0] == 200


@pytest.mark.parametrize(
    ("asked", "detail"),
    [
        ({"maps": ["decoder 9"]}, "map: wanted one of"),
        ({"rows": [3, 3]}, "rows: wanted the first, and the one after the last; got [3, 3]"),
        ({"rows": [-1, 2]}, "rows: wanted the first"),
        ({"columns": [2]}, "Expected `array` of length 2"),
        ({"heads": [7]}, "wanted 1 to"),
        ({"layers": [9]}, "layers: wanted"),
        ({"output": [1, 10**6]}, "output: wanted a text or a label, or token ids"),
        ({"beam_size": 3}, "beam_size: wanted nothing where no output is searched"),
        ({"edits": [{"edit": "paint"}]}, "edit 1.edit: wanted one of"),
        (
            {"edits": [{"edit": "switch_head_off", "map": "decoder 7"}]},
            "edit 1.map: wanted the name of an attention",
        ),
        ({"edits": "mask"}, "Expected `array`, got `str`"),
        ({"input": ["a", "b"]}, "input: wanted one text; got 2"),
    ],
)
def test_what_cannot_be_seen_is_refused(server, asked, detail):
    status, _, answer = server.ask(
        "/look", {"model": "transformer", "input": "the cat sat", "output": "a"} | asked
    )
    assert status == 400
    assert detail in answer["detail"]


def test_output_and_attention_are_of_one_version(server):
    """Where the model is replaced between the two, the request is refused: its ids are those of another vocabulary."""
    with served({"only": MODELS["transformer"]}) as running:
        submit, versions = running.engine.submit, iter("89")

        def replaced(*jobs) -> None:
            submit(*jobs)
            running.engine.load("only", next(versions), MODELS["transformer"])

        running.engine.submit = replaced
        status, _, answer = running.ask("/look", {"input": "the cat sat", "max_length": 3})
        assert (status, "Try again" in answer["detail"]) == (503, True)
