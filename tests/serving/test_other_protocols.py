"""The APIs of OpenNMT-py's server and of the Open Inference Protocol, over real sockets."""

from collections.abc import Iterator

import pytest

pytest.importorskip("uvicorn", reason="needs the extra `serve`")

from support.predictors import classifier, language_model, translator
from support.servers import Running, served

RNN = translator(decoder="rnn")
MODELS = {
    "rnn": RNN,
    "100": RNN.with_decode(beam_size=3, num_hypotheses=2),
    "labels": classifier(),
    "lines": language_model(),
}
TEXTS = ["the cat sat", "a dog"]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with served(MODELS) as running:
        yield running


def test_opennmt_lists_models_and_translates(server):
    assert server.ask("/translator/models")[2][1] == {
        "model_id": "100", "models": ["7"], "opt": {}, "loaded": True, "timeout": -1
    }  # fmt: skip
    for name, given in (("rnn", "rnn"), ("100", 100), ("100", "100")):
        wanted = MODELS[name].outputs(TEXTS, scores=True)
        count = len(wanted[0])
        status, _, answer = server.ask(
            "/translator/translate", [{"src": text, "id": given} for text in TEXTS]
        )
        assert (status, len(answer)) == (200, count)
        for rank, row in enumerate(answer):
            for text, outputs, each in zip(TEXTS, wanted, row, strict=True):
                score = each.pop("pred_score")
                assert each == {"src": text, "tgt": outputs[rank].text, "n_best": count}
                assert score == pytest.approx(outputs[rank].score, abs=1e-5)


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ([], 400, "input: wanted 1 to 256"),
        (
            [{"src": "a", "id": "rnn"}, {"src": "b", "id": 100}],
            400,
            "id: wanted the same for all texts; got 2",
        ),
        ([{"src": "a", "id": "labels"}], 400, "id: wanted a model that generates text"),
        ([{"src": "a"}], 404, "model: wanted one of"),
        ([{"src": "a", "id": 7}], 404, "got '7'"),
        ([{"src": "a", "ref": "b"}], 400, "unknown field `ref`"),
        ({"src": "a"}, 400, "Expected `array`"),
    ],
    ids=["none", "two-models", "labels", "unnamed", "unknown", "field", "object"],
)
def test_opennmt_errors(server, body, status, message):
    found, _, answer = server.ask("/translator/translate", body)
    assert (found, answer["status"]) == (status, "error")
    assert message in answer["error"]


def tensor(data: list = TEXTS, **other: object) -> dict:
    return {"name": "text", "shape": [len(data)], "datatype": "BYTES", "data": data, **other}


def test_open_inference_describes_server_and_models(server):
    assert server.ask("/v2")[2]["name"] == "regard"
    assert (server.ask("/v2/health/live")[2], server.ask("/v2/health/ready")[2]) == (
        {"live": True},
        {"ready": True},
    )
    for path in ("/v2/models/rnn", "/v2/models/rnn/versions/7"):
        assert server.ask(path)[2] == {
            "name": "rnn",
            "versions": ["7"],
            "platform": "regard_pytorch",
            "inputs": [{"name": "text", "datatype": "BYTES", "shape": [-1]}],
            "outputs": [
                {"name": "text", "datatype": "BYTES", "shape": [-1, -1]},
                {"name": "score", "datatype": "FP32", "shape": [-1, -1]},
            ],
        }
        assert server.ask(f"{path}/ready")[2] == {"name": "rnn", "ready": True}
    for path in ("/v2/models/none", "/v2/models/rnn/versions/8", "/v2/models/none/ready"):
        status, _, answer = server.ask(path)
        assert (status, list(answer)) == (404, ["error"])


@pytest.mark.parametrize("model", ["rnn", "labels", "lines"])
@pytest.mark.parametrize("given", [tensor(), tensor(shape=[2, 1]), tensor([["the cat sat"], ["a dog"]], shape=[2, 1])],
                         ids=["flat", "column", "nested"])  # fmt: skip
def test_open_inference_gives_tensors(server, given, model):
    parameters = {
        "num_hypotheses": 2,
        **({} if model == "labels" else {"beam_size": 3, "max_length": 6}),
    }
    asked = {"id": "mine", "inputs": [given], "parameters": parameters}
    status, _, answer = server.ask(f"/v2/models/{model}/versions/7/infer", asked)
    wanted = [
        output
        for outputs in MODELS[model].outputs(TEXTS, scores=True, **parameters)
        for output in outputs
    ]
    text, score = answer.pop("outputs")
    assert (status, answer) == (200, {"model_name": model, "model_version": "7", "id": "mine"})
    assert text == {
        "name": "text",
        "shape": [2, 2],
        "datatype": "BYTES",
        "data": [each.text for each in wanted],
    }
    assert score.pop("data") == pytest.approx([each.score for each in wanted], abs=1e-5)
    assert score == {"name": "score", "shape": [2, 2], "datatype": "FP32"}


def test_open_inference_gives_the_outputs_asked_for(server):
    asked = {
        "inputs": [tensor(["a dog"])],
        "outputs": [{"name": "text", "parameters": {"binary_data": False}}],
    }
    _, headers, answer = server.ask("/v2/models/rnn/infer", asked)
    assert answer["outputs"] == [
        {"name": "text", "shape": [1, 1], "datatype": "BYTES", "data": RNN.predict(["a dog"])}
    ]
    assert answer["id"] == headers["x-request-id"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"inputs": []}, "inputs: wanted one tensor, named text; got 0"),
        ({"inputs": [tensor(name="input")]}, "inputs[0].name: wanted text; got 'input'"),
        ({"inputs": [tensor(datatype="FP32")]}, "inputs[0].datatype: wanted BYTES; got 'FP32'"),
        ({"inputs": [tensor(shape=[3])]}, "inputs[0].shape: wanted [2] or [2, 1]; got [3]"),
        ({"inputs": [tensor(shape=[])]}, "inputs[0].shape: wanted [2] or [2, 1]; got []"),
        ({"inputs": [tensor([["a"], ["b"]])]}, "inputs[0].shape: wanted [2, 1]; got [2]"),
        ({"inputs": [tensor([["a", "b"], "c"], shape=[2, 1])]}, "inputs[0].shape: wanted [2, 1]; got [2, 1]"),
        ({"inputs": [tensor([1.5])]}, "Expected `str | array`, got `float`"),
        ({"outputs": [{"name": "logits"}]}, "outputs: wanted text or score; got 'logits'"),
        ({"outputs": [{"name": "text", "parameters": {"binary_data": True}}]}, "binary_data: wanted false"),
        ({"parameters": {"beam": 3}}, "unknown field `beam`"),
        ({"parameters": {"beam_size": 0}}, "decode.beam_size: wanted"),
    ],
    ids=["no-tensor", "name", "datatype", "shape", "scalar", "flat-shape", "ragged", "numbers", "output", "binary",
         "parameter", "option"],
)  # fmt: skip
def test_open_inference_errors(server, given, message):
    status, _, answer = server.ask("/v2/models/rnn/infer", {"inputs": [tensor()], **given})
    assert (status, list(answer)) == (400, ["error"])
    assert message in answer["error"]


def test_a_server_that_stops_is_not_ready():
    with served({"rnn": RNN}) as running:
        running.engine.stop(1.0)
        assert (running.ask("/v2/health/live")[0], running.ask("/v2/health/ready")[0]) == (200, 503)
        assert running.ask("/v2/models/rnn/ready")[2] == {"name": "rnn", "ready": False}
        assert running.ask("/v2/models/rnn/infer", {"inputs": [tensor()]})[0] == 503
