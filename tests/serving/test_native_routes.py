"""Regard's own routes over real sockets: what they answer is what the predictor gives."""

import json
from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("uvicorn", reason="needs the extra `serve`")

from regard.serving.http import schemas
from regard.serving.scheduler import jobs, searches
from regard.tasks import generate
from support.predictors import classifier, language_model, masked_model, translator
from support.servers import Running, served

MODELS = {
    "rnn": translator(decoder="rnn"),
    "transformer": translator(),
    "labels": classifier(),
    "lines": language_model(),
    "masked": masked_model(),
}
TEXTS = ["the cat sat", "a dog", "the red mat and the doghouse"]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with served(MODELS) as running:
        yield running


def test_labels_have_the_probabilities_of_predict(server):
    status, headers, answer = server.ask("/classify", {"model": "labels", "input": TEXTS})
    assert (status, answer["model"], answer["version"], answer["id"]) == (
        200,
        "labels",
        "7",
        headers["x-request-id"],
    )
    for result, (wanted,) in zip(answer["results"], MODELS["labels"].outputs(TEXTS), strict=True):
        assert [each["label"] for each in result["labels"]] == [*wanted.probabilities]
        assert [each["probability"] for each in result["labels"]] == pytest.approx(
            [*wanted.probabilities.values()]
        )
        assert sum(each["probability"] for each in result["labels"]) == pytest.approx(1)
    _, _, best = server.ask("/classify", {"model": "labels", "input": TEXTS[1], "n_best": 2})
    (result,) = best["results"]
    first = answer["results"][1]["labels"][:2]
    assert [each["label"] for each in result["labels"]] == [each["label"] for each in first]
    assert [each["probability"] for each in result["labels"]] == pytest.approx(
        [each["probability"] for each in first]
    )


@pytest.mark.parametrize(
    ("asked", "argument", "detail"),
    [
        (
            {"model": "rnn"},
            "model",
            "wanted a model that gives labels; got one that generates text. Use /predict.",
        ),
        ({"model": "labels", "n_best": 0}, "n_best", "wanted 1 to 3 labels; got 0"),
        ({"model": "labels", "n_best": 4}, "n_best", "wanted 1 to 3 labels; got 4"),
        ({"model": "labels", "input": "x " * 5000}, "text 1", "wanted at most 1000 tokens"),
    ],
)
def test_what_cannot_be_classified_is_refused(server, asked, argument, detail):
    status, _, answer = server.ask("/classify", {"input": "a dog", **asked})
    assert (status, answer["argument"]) == (400, argument)
    assert detail in answer["detail"]


def test_required_words_are_in_the_output(server):
    for words in (["cat"], ["dog", "red"]):
        asked = {"model": "transformer", "input": TEXTS, "required": words, "max_length": 20}
        status, _, answer = server.ask("/predict", asked)
        wanted = MODELS["transformer"].predict(TEXTS, required=[words] * len(TEXTS), max_length=20)
        found = [result["outputs"][0]["text"] for result in answer["results"]]
        assert (status, found) == (200, wanted)
        assert all(word in text for text in found for word in words)
    status, _, answer = server.ask(
        "/predict",
        {"model": "transformer", "input": "a", "required": ["the cat"], "banned": ["cat"]},
    )
    assert (status, answer["argument"]) == (400, "required")


def test_keys_without_a_value_are_left_out(server):
    _, _, answer = server.ask("/classify", {"model": "labels", "input": "a dog"})
    assert [*answer["results"][0]] == ["labels"]
    _, _, answer = server.ask("/predict", {"model": "rnn", "input": "a dog"})
    assert [*answer["results"][0]["outputs"][0]] == ["text", "finish_reason"]
    _, _, problem = server.ask("/predict", {"model": "missing", "input": "a dog"})
    assert "type" not in problem


def test_a_long_input_is_truncated_where_that_is_asked_for(server):
    asked = {"model": "labels", "input": "x " * 5000, "truncate": True}
    (result,) = server.ask("/classify", asked)[2]["results"]
    assert result["truncated"] is True
    (wanted,) = MODELS["labels"].outputs([asked["input"]], truncate=True)[0]
    assert result["labels"][0]["probability"] == pytest.approx(wanted.probabilities[wanted.text])
    (vector,) = server.ask("/embed", asked)[2]["results"]
    assert vector["embedding"] == pytest.approx(
        MODELS["labels"].embed([asked["input"]], truncate=True)[0].tolist()
    )
    assert server.ask("/embed", {**asked, "truncate": False})[0] == 400


@pytest.mark.parametrize("model", MODELS)
def test_vectors_are_those_of_embed(server, model):
    status, headers, answer = server.ask("/embed", {"model": model, "input": TEXTS})
    assert (status, answer["version"], headers["x-model"]) == (200, "7", model)
    for result, wanted in zip(answer["results"], MODELS[model].embed(TEXTS), strict=True):
        assert result["embedding"] == pytest.approx(wanted.tolist(), abs=1e-5)


@pytest.mark.parametrize(
    "part",
    [
        True,
        {},
        {"layers": [2]},
        {"heads": [1, 0]},
        {"rows": [1, 3]},
        {"layers": [2, 1], "heads": [1], "rows": [2, 99]},
    ],
)
def test_some_attention_comes_with_an_answer(server, part):
    asked = {
        "model": "transformer",
        "input": "the cat sat",
        "beam_size": 2,
        "num_hypotheses": 2,
        "max_length": 5,
    }
    _, _, answer = server.ask("/predict", {**asked, "attention": part})
    options = {"beam_size": 2, "num_hypotheses": 2, "max_length": 5}
    chosen = {} if part is True else part
    layers = [layer - 1 for layer in chosen.get("layers", [1, 2])]
    for got, each in zip(
        answer["results"][0]["outputs"],
        MODELS["transformer"].outputs(["the cat sat"], attention=True, **options)[0],
        strict=True,
    ):
        wanted = each.attention[layers][:, chosen.get("heads", [0, 1])][
            :, :, slice(*chosen.get("rows", [None]))
        ]
        assert np.array(got["attention"]).shape == wanted.shape
        assert np.abs(np.array(got["attention"]) - wanted.numpy()).max() < 1e-5


@pytest.mark.parametrize(
    ("part", "detail"),
    [
        ({"layers": [0]}, "attention.layers: wanted some of 1 to 2; got [0]"),
        ({"layers": [3]}, "attention.layers: wanted some of 1 to 2; got [3]"),
        ({"heads": [-1]}, "attention.heads: wanted some of 0 to 1; got [-1]"),
        ({"heads": []}, "attention.heads: wanted some of 0 to 1; got []"),
        ({"rows": [3, 3]}, "attention.rows: wanted the first, and the one after the last"),
        ({"columns": [0, 1]}, "unknown field `columns`"),
        ("all", "Expected `bool | object`"),
    ],
)
def test_wrong_attention_is_refused(server, part, detail):
    status, _, answer = server.ask(
        "/predict", {"model": "transformer", "input": "a dog", "attention": part}
    )
    assert status == 400
    assert detail in answer["detail"]
    assert server.ask("/predict", {"model": "labels", "input": "a dog", "attention": {}})[0] == 400


def test_attention_of_an_answer_is_bounded(server, monkeypatch):
    asked = {"model": "transformer", "input": "the cat sat", "min_length": 4, "max_length": 4}
    weights = server.ask("/predict", {**asked, "attention": True})[2]["results"][0]["outputs"][0][
        "attention"
    ]
    size = np.array(weights).size
    monkeypatch.setattr(jobs, "MAX_ATTENTION", size - 1)
    assert server.ask("/predict", {**asked, "attention": True})[0] == 400
    monkeypatch.setattr(jobs, "MAX_ATTENTION", size // 2)
    with monkeypatch.context() as patched:  # refused before any of it is computed
        patched.delattr(generate, "output_attention")
        status, _, answer = server.ask("/predict", {**asked, "attention": True})
    assert (status, answer["argument"]) == (400, "attention")
    for part in (
        {"heads": [0]},
        {"layers": [2]},
        {"rows": [1, 3]},
        {"rows": [0, 99], "heads": [1]},
    ):
        assert server.ask("/predict", {**asked, "attention": part})[0] == 200
    monkeypatch.setattr(jobs, "MAX_ATTENTION", size)
    assert server.ask("/predict", {**asked, "attention": True})[0] == 200


def test_attention_of_all_inputs_of_a_request_is_bounded(server, monkeypatch):
    asked = {"model": "transformer", "min_length": 4, "max_length": 4, "attention": True}
    text = "the cat sat"
    answer = server.ask("/predict", {**asked, "input": text})[2]
    size = np.array(answer["results"][0]["outputs"][0]["attention"]).size
    monkeypatch.setattr(schemas, "MAX_REQUEST_ATTENTION", 2 * size)
    assert server.ask("/predict", {**asked, "input": [text] * 2})[0] == 200
    status, _, answer = server.ask("/predict", {**asked, "input": [text] * 3})
    assert (status, answer["argument"]) == (400, "attention")
    assert f"at most {2 * size:,} weights for all inputs of a request; got {3 * size:,}" in str(
        answer
    )


def test_attention_that_takes_much_memory_is_refused_before_it_is_computed(server, monkeypatch):
    """Also where only a part of it is asked for: all of it is computed."""
    asked = {"model": "transformer", "input": "the cat sat", "min_length": 4, "max_length": 4}
    monkeypatch.setattr(searches, "MAX_COMPUTED_ATTENTION", 16)
    monkeypatch.delattr(generate, "output_attention")
    status, _, answer = server.ask("/predict", {**asked, "attention": {"rows": [0, 1]}})
    assert (status, answer["argument"]) == (400, "attention")
    assert "Ask for shorter or fewer outputs" in answer["detail"]


@pytest.mark.parametrize("path", ["/predict", "/caption", "/classify", "/embed", "/score", "/look"])
def test_hostile_bodies_are_problems_on_every_route(server, path):
    status, _, answer = server.ask(path, b'{"input": ' + b"[" * 150_000)
    assert (status, "nested at most 32 deep" in answer["detail"]) == (400, True)
    connection = server.connect()
    connection.putrequest("POST", path)
    connection.putheader("content-type", "application/json")
    connection.putheader("content-length", str(100 << 20))  # refused before any of it is sent
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()
    for name in ("../../etc/passwd", "http://127.0.0.1:9/model", "/etc/passwd"):
        status, _, answer = server.ask(
            path, {"model": name, "input": "x"} | ({"image": "AA=="} if "cap" in path else {})
        )
        assert status == 404 if path != "/caption" else status in (400, 404)
        assert server.ask(f"{path}/{name}")[0] == 404


@pytest.mark.parametrize("beams", [1, 3])
def test_alternatives_and_stop_strings_are_those_of_predict(server, beams):
    options = {"beam_size": beams, "num_hypotheses": beams, "max_length": 12, "min_length": 12}
    whole = MODELS["transformer"].outputs(TEXTS, **options)
    options |= {"stop": [whole[0][0].text[4:6]], "top_logprobs": 2}
    body = {"model": "transformer", "input": TEXTS, **options}
    status, _, answer = server.ask("/predict", body)
    assert status == 200, answer
    wanted = MODELS["transformer"].outputs(TEXTS, **options)
    for result, outputs in zip(answer["results"], wanted, strict=True):
        for found, output in zip(result["outputs"], outputs, strict=True):
            given = output.as_json()
            assert (found["text"], found["tokens"]) == (given["text"], given["tokens"])
            assert found["finish_reason"] == given["finish_reason"]
            assert found["log_probabilities"] == pytest.approx(given["log_probabilities"])
            for row, likely in zip(found["top_logprobs"], given["top_logprobs"], strict=True):
                assert [each["token"] for each in row] == [each["token"] for each in likely]
                assert [each["log_probability"] for each in row] == pytest.approx(
                    [each["log_probability"] for each in likely], abs=1e-5
                )
    assert len(wanted[0][0].tokens) < 12
    # Nobody who does not ask for them has them.
    answer = server.ask("/predict", {"model": "transformer", "input": "a dog", "tokens": True})[2]
    assert "top_logprobs" not in answer["results"][0]["outputs"][0]


@pytest.mark.parametrize("path", ["/look", "/v2/models/transformer/infer"])
def test_an_answer_without_a_place_for_alternatives_refuses_them(server, path):
    body = {"model": "transformer", "input": "a dog", "top_logprobs": 2}
    if path != "/look":
        tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a dog"]}
        body = {"inputs": [tensor], "parameters": {"top_logprobs": 2}}
    status, _, problem = server.ask(path, body)
    assert status == 400
    assert "no place for them" in str(problem)


def test_a_stream_ends_before_a_stop_string(server):
    options = {"sample": True, "temperature": 2.0, "max_length": 20, "min_length": 20}
    whole = MODELS["transformer"].predict(["a dog"], **options)[0]
    stop = whole[6:9]
    body = {"model": "transformer", "input": "a dog", "stop": [stop], **options}
    answer = server.ask("/predict", {**body, "stream": True})[2]["text"]
    lines = [line for line in answer.splitlines() if line]
    *pieces, last = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert "".join(each["text"] for each in pieces) == whole[: whole.index(stop)]
    assert last["outputs"][0]["text"] == whole[: whole.index(stop)]
