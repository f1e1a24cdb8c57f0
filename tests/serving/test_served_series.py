"""Sequences of vectors over real sockets: lists of JSON and .npy files, whose headers may say anything."""

import base64
import io
import json
import math
import struct
from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("uvicorn", reason="needs the extra `serve`")
pytest.importorskip("python_multipart", reason="needs the extra `serve`")

import msgspec

import regard
from regard.core.errors import InvalidArgument, RegardError
from regard.data.fields.base import make_field
from regard.data.wav import write_wav
from regard.serving.http.service import MOST_VALUES, HttpLimits
from regard.serving.processes.message_types import packed, unpacked
from regard.serving.scheduler.jobs import Embedding, Generation, Scoring
from regard.serving.scheduler.model_loader import _warm_up
from regard.studio.model_inputs import sources_of
from support.predictors import translator
from support.series import (
    DIM,
    LABELS,
    channels_apart,
    forecaster,
    recipe,
    series,
    trained,
    transcriber,
)
from support.servers import Running, served

MAGIC = b"\x93NUMPY"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {
        "labels": trained(folder / "labels"),
        "numbers": trained(folder / "numbers", "number"),
        "text": translator(decoder="rnn"),
    }


@pytest.fixture(scope="module")
def server(models) -> Iterator[Running]:
    with served(models) as running:
        yield running


def saved(array, **options) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asarray(array), **options)
    return buffer.getvalue()


def in_json(content: bytes) -> dict:
    return {"file": base64.b64encode(content).decode()}


def form(*parts: tuple[str, object]) -> tuple[bytes, str]:
    lines = []
    for name, value in parts:
        file = '; filename="x.npy"' if isinstance(value, bytes) else ""
        content = value if isinstance(value, bytes) else str(value).encode()
        head = f'--edge\r\ncontent-disposition: form-data; name="{name}"{file}\r\n\r\n'
        lines.append(head.encode() + content)
    return b"\r\n".join([*lines, b"--edge--\r\n"]), "multipart/form-data; boundary=edge"


def texts(answer: dict) -> list[str]:
    return [result["outputs"][0]["text"] for result in answer["results"]]


def read(outputs: list[str]) -> list:
    """Labels; or numbers, whose last digit depends on the batch."""
    return [each if each in LABELS else pytest.approx(float(each), rel=1e-4) for each in outputs]


@pytest.mark.parametrize("model", ["labels", "numbers"])
def test_served_is_predicted_however_it_is_sent(server, models, model):
    given = series(5, seed=3)
    wanted = read(models[model].predict(given))
    lists = [each.tolist() for each in given]
    files = [in_json(saved(each)) for each in given]
    for inputs in (lists, files, [*lists[:2], *files[2:]]):
        status, _, answer = server.ask("/predict", {"model": model, "input": inputs})
        assert (status, read(texts(answer))) == (200, wanted)
    body, kind = form(*(("file", saved(each)) for each in given), ("model", model))
    assert read(texts(server.ask("/predict", body, content_type=kind)[2])) == wanted
    # Alone as together.
    for one, file, text in zip(lists, files, wanted, strict=True):
        for alone in (one, file):
            answer = server.ask("/predict", {"model": model, "input": alone})[2]
            assert read(texts(answer)) == [text]


def test_every_route_takes_series(server, models):
    given = series(3, seed=4)
    lists = [each.tolist() for each in given]
    _, _, answer = server.ask("/embed", {"model": "labels", "input": lists})
    found = [result["embedding"] for result in answer["results"]]
    np.testing.assert_allclose(found, models["labels"].embed(given), atol=1e-5)
    _, _, answer = server.ask("/classify", {"model": "labels", "input": lists})
    for result, (output,) in zip(answer["results"], models["labels"].outputs(given), strict=True):
        probabilities = {each["label"]: each["probability"] for each in result["labels"]}
        assert probabilities == pytest.approx(output.probabilities, abs=1e-5)
    targets = [LABELS[0]] * 3
    asked = {"model": "labels", "input": lists, "target": targets}
    _, _, answer = server.ask("/score", asked)
    wanted = [each.log_probability for each in models["labels"].score(given, targets)]
    found = [each["log_probability"] for each in answer["results"]]
    assert found == pytest.approx(wanted, abs=1e-5)
    for one in (lists[0], in_json(saved(given[0]))):
        status, _, answer = server.ask("/look", {"model": "labels", "input": one})
        assert status == 200
        assert answer["output"]["label"] == models["labels"].predict(given[:1])[0]
        assert answer["maps"][-1]["size"] == [1, len(given[0])]
    lines = b"\n".join(json.dumps({"model": "labels", "input": one}).encode() for one in lists)
    connection = server.connect()
    connection.request("POST", "/predict", lines, {"content-type": "application/x-ndjson"})
    found = [json.loads(line) for line in connection.getresponse().read().splitlines()]
    connection.close()
    assert [texts(each)[0] for each in found] == models["labels"].predict(given)


def test_numbers_of_other_types_are_read_as_they_are(server, models):
    whole = np.arange(12).reshape(4, DIM)
    wanted = models["numbers"].predict([whole])
    for kind in ("<f2", "<f8", ">f4", "<i2", ">i8", "u1"):
        asked = {"model": "numbers", "input": in_json(saved(whole.astype(kind)))}
        assert texts(server.ask("/predict", asked)[2]) == wanted
    transposed = in_json(saved(np.asfortranarray(whole.astype("f4"))))
    assert texts(server.ask("/predict", {"model": "numbers", "input": transposed})[2]) == wanted
    version_2 = saved(whole.astype("<f4"), version=(2, 0))
    asked = {"model": "numbers", "input": in_json(version_2)}
    assert texts(server.ask("/predict", asked)[2]) == wanted


def forged(header: str, data: bytes = b"", version: int = 1) -> bytes:
    """A .npy file whose header is this text."""
    length = struct.pack("<H" if version == 1 else "<I", len(header))
    return MAGIC + bytes([version, 0]) + length + header.encode() + data


def claims(shape: object, descr: str = "'<f4'", order: object = False) -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}}}\n"


GOOD = saved(np.zeros((2, DIM), "f4"))
BAD = {
    "nothing": (b"", "a .npy file"),
    "a text": (b"/etc/passwd", "a .npy file"),
    "terabytes": (forged(claims((10**12, DIM))), "the header claims"),
    "more than a number can count": (forged(claims((10**30, DIM))), "the header claims"),
    "more than there is": (forged(claims((100, DIM)), b"\0" * 40), "the header claims 1,200"),
    "less than there is": (GOOD + b"\0", "the header claims 24"),
    "truncated": (GOOD[:-4], "the header claims 24"),
    "half a header": (GOOD[:40], "a .npy file"),
    "objects": (saved(np.array([[None] * DIM], object)), "integers or floating-point"),
    "objects without a pickle": (forged(claims((1, DIM), "'|O'")), "integers or floating-point"),
    "records": (
        forged(claims((1, DIM), "[('a', '<f4')]"), b"\0" * 12),
        "integers or floating-point",
    ),
    "texts": (saved(np.array([["a"] * DIM])), "integers or floating-point"),
    "complex numbers": (saved(np.zeros((1, DIM), complex)), "integers or floating-point"),
    "dates": (saved(np.zeros((1, DIM), "M8[s]")), "integers or floating-point"),
    "negative": (forged(claims((-2, -DIM)), b"\0" * 24), "a .npy file"),
    "one negative": (forged(claims((-1, DIM)), b"\0" * 24), "a .npy file"),
    "truth as a length": (forged(claims((True, DIM)), b"\0" * 12), "a .npy file"),
    "a length in letters": (forged(claims("('a', 3)"), b"\0" * 12), "a .npy file"),
    "no length": (forged(claims((0, DIM))), "(length, dimension)"),
    "one axis": (saved(np.zeros(DIM, "f4")), f"vectors of {DIM} numbers"),
    "three axes": (saved(np.zeros((1, 1, DIM), "f4")), "(length, dimension)"),
    "another dimension": (saved(np.zeros((2, DIM + 1), "f4")), f"vectors of {DIM} numbers"),
    "nan": (saved(np.full((2, DIM), np.nan, "f4")), "finite numbers"),
    "infinity in 32 bits": (saved(np.full((2, DIM), 1e300)), "finite numbers"),
    "code": (forged("__import__('os').system('true')\n"), "a .npy file"),
    "a deep header": (forged("(" * 3000 + ")" * 3000 + "\n"), "a .npy file"),
    "a long header": (forged(claims((1, DIM)) + " " * 60_000), "a .npy file"),
    "a header of 4 GB": (
        MAGIC + b"\2\0" + b"\xff" * 4 + b" " * 99,
        "a .npy file",
    ),
    "version 9": (MAGIC + b"\x09\0" + GOOD[8:], "a .npy file"),
    "an archive": (b"PK\3\4" + b"\0" * 40, "a .npy file"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused(server, name):
    content, wanted = BAD[name]
    body, kind = form(("file", content), ("model", "labels"))
    for status, _, answer in (
        server.ask("/predict", {"model": "labels", "input": in_json(content)}),
        server.ask("/predict", {"model": "labels", "input": [in_json(GOOD), in_json(content)]}),
        server.ask("/look", {"model": "labels", "input": in_json(content)}),
        server.ask("/predict", body, content_type=kind),
    ):
        assert (status, "wanted " in answer["detail"]) == (400, True)
        assert wanted in answer["detail"]


def test_a_forged_file_allocates_nothing():
    """What a header claims is refused before any array is made."""
    import tracemalloc

    field = make_field("vectors")
    tracemalloc.start()
    for name in ("terabytes", "more than a number can count", "a header of 4 GB"):
        with pytest.raises(RegardError):
            field.from_request("x", BAD[name][0], DIM)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1 << 20


REFUSED = {
    "a path": "/etc/passwd",
    "a path of a file that is there": "one.npy",
    "lists as a text": "[[1, 2, 3]]",
    "vectors of another dimension": [[1.0, 2.0]],
    "vectors of two dimensions": [[1.0, 2.0, 3.0], [1.0]],
    "no vector": [[]],
    "a vector": [1.0, 2.0, 3.0],
    "texts in a vector": [[1.0, "2", 3.0]],
    "a list too deep": [[[[[1.0, 2.0, 3.0]]]]],
    "an image": {"image": "AAAA"},
    "nothing": {},
    "both": {"image": "AAAA", "file": "AAAA"},
    "a URL": {"file": "http://example.org/x.npy"},
    "null": [[1.0, None, 3.0]],
    "a truth value": [[1.0, True, 3.0]],
    "larger than 32 bits": [[1.0, 1e300, 3.0]],
    "a path within": [["/etc/passwd"]],
    "a file within": [[{"file": "AAAA"}, 1.0, 2.0]],
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_values_are_refused(server, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("one.npy", np.zeros((2, DIM), "f4"))
    for path in ("/predict", "/embed", "/classify", "/look"):
        status, _, answer = server.ask(path, {"model": "labels", "input": REFUSED[name]})
        assert (status, "detail" in answer) == (400, True)
    if name != "a vector":  # a list of it is a sequence
        asked = {"model": "labels", "input": [REFUSED[name]]}
        assert server.ask("/predict", asked)[0] == 400


@pytest.mark.parametrize("work", [Generation, Scoring, Embedding])
def test_the_engine_takes_no_path_either(server, tmp_path, work):
    """Whatever a route may forget: a field of vectors reads the files that cells name."""
    np.save(tmp_path / "x.npy", np.zeros((2, DIM), "f4"))
    for given in (str(tmp_path / "x.npy"), "[[1, 2, 3]]", tmp_path / "x.npy"):
        with pytest.raises(InvalidArgument, match="No path and no URL is taken"):
            work(given).check(server.engine.models["labels"].info.reads)


def test_a_model_of_texts_takes_no_numbers(server):
    for given in ([[1.0]], [1.0], in_json(GOOD), [[["a"]]]):
        status, _, answer = server.ask("/predict", {"model": "text", "input": given})
        assert (status, answer["argument"]) == (400, "input")


def test_a_series_that_is_too_long_is_refused_or_cut(server, models):
    most = models["labels"].recipe.decode.max_source_length
    content = in_json(saved(np.zeros((most + 1, DIM), "f4")))
    status, _, answer = server.ask("/predict", {"model": "labels", "input": content})
    assert (status, f"{most}" in answer["detail"]) == (400, True)
    asked = {"model": "labels", "input": content, "truncate": True}
    status, _, answer = server.ask("/predict", asked)
    assert (status, answer["results"][0]["outputs"][0]["truncated"]) == (200, True)


def test_bodies_of_series_are_limited(models):
    """In bytes; and in values of JSON, each of which takes more memory than its text."""
    limits = HttpLimits(body=2000, image_body=30_000)
    with served({"labels": models["labels"]}, limits=limits) as running:
        large = in_json(saved(np.zeros((400, DIM), "f4")))
        assert running.ask("/predict", {"input": large})[0] == 200
        assert running.ask("/predict", {"input": [large] * 5})[0] == 413
        assert running.ask("/v1/embeddings", {"model": "labels", "input": "x" * 2500})[0] == 413
    with served({"labels": models["labels"]}) as running:
        body = b'{"input": [[1' + b",1" * (MOST_VALUES + 1) + b"]]}"
        status, _, answer = running.ask("/predict", body)
        assert (status, "1,048,576 values" in answer["detail"]) == (413, True)


def test_apis_of_texts_refuse_models_of_series(server):
    asked = {"model": "labels", "input": "[[1, 2, 3]]"}
    status, _, answer = server.ask("/v1/embeddings", asked)
    assert status == 400
    assert "a sequence of vectors" in json.dumps(answer)


def test_the_studio_sends_series_as_texts(server, models):
    (given,) = series(1, seed=6)
    url = f"data:application/octet-stream;base64,{in_json(saved(given))['file']}"
    for text in (json.dumps(given.tolist()), url):
        asked = {"model": "labels", "input": [text]}
        status, _, answer = server.ask("/studio/look", asked)
        assert (status, answer["output"]["label"]) == (200, models["labels"].predict([given])[0])
    for text in ("/etc/passwd", "[[1, 2", "data:,x", "x.npy", "[[1, 2]]"):
        asked = {"model": "labels", "input": [text]}
        assert server.ask("/studio/look", asked)[0] == 400
    assert sources_of(["[[1]]"], ["text"]) == ["[[1]]"]


def test_a_request_of_the_description_works(server):
    """The example of each route, as its page shows it."""
    _, _, described = server.ask("/openapi.json")
    for path in ("/predict", "/embed"):
        content = described["paths"][path]["post"]["requestBody"]["content"]
        assert server.ask(path, content["application/json"]["example"])[0] == 200
        assert "file" in content["multipart/form-data"]["schema"]["properties"]


@pytest.mark.parametrize("model", ["labels", "numbers"])
def test_a_model_answers_one_request_before_it_serves(models, model):
    _warm_up(models[model])


def test_series_cross_processes_as_they_are():
    (given,) = series(1)
    content = msgspec.msgpack.encode(packed(Generation(given)))
    found = msgspec.msgpack.decode(content, ext_hook=unpacked)
    assert (found.input == given).all()
    assert found.size == 1 + len(given)


# Recordings.

SOUND = {"kind": "log-mel", "sample_rate": 8000, "mels": 8}


@pytest.fixture(scope="module")
def listener(tmp_path_factory):
    """A model that reads recordings, and the folder of some of them."""
    folder = tmp_path_factory.mktemp("listener")
    drawn = np.random.default_rng(0)
    rows = ["x,y"]
    for number in range(6):
        samples = drawn.normal(size=1200 + 100 * number) * 0.1
        (folder / f"{number}.wav").write_bytes(write_wav(samples.astype(np.float32), 8000))
        rows.append(f"{number}.wav,{LABELS[number % 2]}")
    (folder / "t.csv").write_text("\n".join(rows) + "\n")
    keys = recipe("label")
    splits = dict.fromkeys(("train", "valid"), str(folder / "t.csv"))
    source = {"kind": "vectors", "column": "x", "features": SOUND}
    keys["data"] = {**splits, "source": source, "target": {"kind": "label", "column": "y"}}
    return regard.train(keys, folder / "run", cache=folder / "cache"), folder


def test_a_recording_is_served_as_its_file_is_predicted(listener):
    model, folder = listener
    files = [folder / f"{number}.wav" for number in range(3)]
    wanted = [output.probabilities for (output,) in model.outputs(files)]
    with served({"sounds": model}) as running:
        inputs = [in_json(file.read_bytes()) for file in files]
        _, _, answer = running.ask("/predict", {"input": inputs})
        for result, probabilities in zip(answer["results"], wanted, strict=True):
            found = result["outputs"][0]["probabilities"]
            assert found == pytest.approx(probabilities, abs=1e-5)
        body, kind = form(("file", files[1].read_bytes()))
        uploaded = running.ask("/predict", body, content_type=kind)[2]
        assert texts(uploaded) == [max(wanted[1], key=wanted[1].get)]
        # Its vectors, given as such, are the same input.
        vectors = model.recipe.data.source.parse(files[0])
        _, _, answer = running.ask("/predict", {"input": in_json(saved(vectors))})
        found = answer["results"][0]["outputs"][0]["probabilities"]
        assert found == pytest.approx(wanted[0], abs=1e-4)
        _, _, seen = running.ask("/look", {"input": inputs[0]})
        assert seen["maps"][-1]["column_names"][:3] == ["0 s", "0.01 s", "0.02 s"]
        assert seen["sources"][0]["kind"] == "series"


def wav_header(rate: int = 8000, channels: int = 1, bits: int = 16, data: int = 4, code: int = 1):
    width = channels * bits // 8
    chunk = struct.pack("<HHIIHH", code, channels, rate, rate * width % 2**32, width % 2**16, bits)
    head = b"WAVEfmt " + struct.pack("<I", 16) + chunk + b"data" + struct.pack("<I", data)
    return b"RIFF" + struct.pack("<I", 36 + data) + head


BAD_WAV = {
    "no samples": wav_header(data=0),
    "less than it claims": wav_header(data=4_000_000_000) + b"\0" * 100,
    "a rate of 1 Hz": wav_header(rate=1) + b"\0" * 4,
    "a rate of 4 GHz": wav_header(rate=2**32 - 1) + b"\0" * 4,
    "no channels": wav_header(channels=0) + b"\0" * 4,
    "many channels": wav_header(channels=65535) + b"\0" * 4,
    "three bits": wav_header(bits=3) + b"\0" * 4,
    "compressed": wav_header(code=85) + b"\0" * 4,
    "half a header": wav_header()[:20],
    "RIFF alone": b"RIFF",
    "an image": b"RIFF\0\0\0\0WEBPVP8 ",
    "infinite samples": wav_header(bits=32, code=3) + struct.pack("<f", math.inf),
}


@pytest.mark.parametrize("name", BAD_WAV)
def test_bad_recordings_are_refused(listener, name):
    field = listener[0].recipe.data.source
    with pytest.raises(RegardError) as caught:
        field.from_request("input 1", BAD_WAV[name], 8)
    assert "input 1" in str(caught.value)


def test_bad_recordings_are_answered(listener):
    with served({"sounds": listener[0]}) as running:
        for content in BAD_WAV.values():
            status, _, answer = running.ask("/predict", {"input": in_json(content)})
            assert (status, "wanted" in answer["detail"]) == (400, True)
        assert running.ask("/predict", {"input": "/etc/passwd.wav"})[0] == 400


def test_a_recording_that_would_become_too_many_vectors_is_refused(listener):
    """A rate of 1,000 Hz makes hours of a few megabytes."""
    field = listener[0].recipe.data.source
    frames = 4_194_304 // 8
    content = wav_header(rate=1000, bits=8, data=12_000_000) + b"\0" * 12_000_000
    most = frames * 80 / 8000
    assert most < 12_000
    with pytest.raises(RegardError, match="seconds"):
        field.from_request("input 1", content, 8)


def test_a_model_of_vectors_takes_no_recording(server):
    content = in_json(wav_header() + b"\0" * 4)
    status, _, answer = server.ask("/predict", {"model": "labels", "input": content})
    assert (status, "got a recording" in answer["detail"]) == (400, True)


@pytest.mark.parametrize("path", ["/predict", "/look", "/studio/look"])
def test_a_language_model_is_no_path_of_a_request(server, path):
    """It is loaded from the folder that the recipe names, and a request names none."""
    given = [[[0.0] * DIM]] if path == "/predict" else ["[[0, 0, 0]]"]
    asked = {"model": "labels", "input": given, "language_model": "/tmp"}
    status, _, answer = server.ask(path, asked)
    assert (status, "unknown field `language_model`" in answer["detail"]) == (400, True)


# Other tasks.


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    folder = tmp_path_factory.mktemp("others")
    return {
        "vectors": trained(folder / "vectors", "vectors"),
        "forecasts": forecaster(folder / "forecasts"),
        "transcripts": transcriber(folder / "transcripts"),
    }


@pytest.mark.parametrize("name", ["vectors", "forecasts", "transcripts"])
def test_every_task_is_served_as_it_predicts(others, name):
    model = others[name]
    given = [each for each in series(30, seed=7) if len(each) >= 6][:4]
    wanted = [output for (output,) in model.outputs(given)]
    with served({"model": model}) as running:
        lists = [each.tolist() for each in given]
        _, _, together = running.ask("/predict", {"input": lists})
        alone = [running.ask("/predict", {"input": each})[2]["results"][0] for each in lists]
        for found in (together["results"], alone):
            for result, output in zip(found, wanted, strict=True):
                (answer,) = result["outputs"]
                if output.vectors is None:
                    assert answer["text"] == output.text
                else:
                    np.testing.assert_allclose(answer["vectors"], output.vectors, atol=1e-4)
        status, _, seen = running.ask("/look", {"input": lists[0][:4]})
        assert (status, seen["sources"][0]["length"]) == (200, 4)
        # Of a longer one, a forecast reads the end, and says so.
        status, _, seen = running.ask("/look", {"input": lists[0]})
        (source,) = seen["sources"]
        skipped = len(lists[0]) - 4 if name == "forecasts" else 0
        assert (status, source["skipped"]) == (200, skipped)
        assert source["length"] == len(lists[0]) - skipped
        status, _, refused = running.ask("/look", {"input": lists[0], "channel": 1})
        assert (status, refused["argument"]) == (400, "channel")
        _, _, embedded = running.ask("/embed", {"input": lists})
        found = [result["embedding"] for result in embedded["results"]]
        np.testing.assert_allclose(found, model.embed(given), atol=1e-5)
        status, _, shown = running.ask("/studio/look", {"input": [json.dumps(lists[0])]})
        assert (status, shown["sources"][0]["skipped"]) == (200, skipped)


def test_the_channel_of_a_look_is_chosen(tmp_path):
    model = channels_apart(tmp_path)
    given = series(30, seed=7)
    (values,) = [each[:4] for each in given if len(each) >= 6][:1]
    looks = [regard.look(model, values, channel=number) for number in (1, 2, 3)]
    weights = [look.maps[0].weights().numpy() for look in looks]
    assert np.abs(weights[0] - weights[1]).max() > 1e-4
    with served({"model": model}) as running:
        for number in (1, 2, 3):
            asked = {"input": values.tolist(), "channel": number}
            _, _, seen = running.ask("/look", asked)
            (source,) = seen["sources"]
            assert (source["channel"], source["separate"]) == (number, 3)
            np.testing.assert_allclose(seen["maps"][0]["weights"], weights[number - 1], atol=1e-6)
            studio = asked | {"input": [json.dumps(values.tolist())]}
            _, _, shown = running.ask("/studio/look", studio)
            assert shown["sources"][0]["channel"] == number
            assert shown["maps"][0]["weights"] == looks[number - 1].as_dict()["maps"][0]["weights"]
        status, _, refused = running.ask("/look", {"input": values.tolist(), "channel": 4})
        assert (status, refused["argument"]) == (400, "channel")
