"""Images over real sockets: uploads and base64, decoded as files are; no path and no URL."""

import base64
import io
import json
import struct
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import pytest

pytest.importorskip("uvicorn", reason="needs the extra `serve`")
pytest.importorskip("python_multipart", reason="needs the extra `serve`")

import regard
from regard.data.images import MAX_PIXELS
from regard.serving.http import forms
from regard.serving.http.service import HttpLimits
from regard.serving.processes.message_types import packed, unpacked
from regard.serving.scheduler.jobs import AttentionPart, Generation, Inspection, Scoring
from regard.serving.scheduler.model_loader import _warm_up
from support.captioners import captioner, image_classifier, question_answerer
from support.onnx_members import two_sources
from support.predictors import translator
from support.servers import PATIENCE, Running, served, until

Image = pytest.importorskip("PIL.Image", reason="needs the extra `images`")

MODELS = {
    "captions": captioner("transformer"),
    "rnn": captioner("rnn"),
    "kinds": image_classifier(),
    "answers": question_answerer(),
    "labels": two_sources(),
    "text": translator(decoder="rnn"),
}
LONG = {"min_length": 4, "max_length": 6}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with served(MODELS) as running:
        yield running


def picture(seed: int = 0, side: tuple[int, int] = (40, 48)) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*side, 3), dtype=np.uint8))


def content(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def in_json(data: bytes) -> dict:
    return {"image": base64.b64encode(data).decode()}


def form(parts: list[tuple[str, object]], boundary: str = "frontier") -> tuple[bytes, str]:
    """A form: each part a text, or a file's name and content."""
    lines = []
    for name, value in parts:
        file = f'; filename="{value[0]}"' if isinstance(value, tuple) else ""
        body = value[1] if isinstance(value, tuple) else str(value).encode()
        lines.append(
            f'--{boundary}\r\ncontent-disposition: form-data; name="{name}"{file}\r\n\r\n'.encode()
            + body
        )
    return b"\r\n".join(
        [*lines, f"--{boundary}--\r\n".encode()]
    ), f"multipart/form-data; boundary={boundary}"


def send(server: Running, path: str, *parts: tuple[str, object]) -> tuple[int, dict]:
    body, kind = form(list(parts))
    status, _, answer = server.ask(path, body, content_type=kind)
    return status, answer


def texts(answer: dict) -> list[str]:
    return [result["outputs"][0]["text"] for result in answer["results"]]


@pytest.fixture
def files(tmp_path) -> list[Path]:
    paths = [tmp_path / f"{number}.png" for number in range(3)]
    for number, path in enumerate(paths):
        path.write_bytes(content(picture(number)))
    return paths


def test_captions_are_those_of_the_files(server, files):
    wanted = MODELS["captions"].outputs(files, beam_size=2, scores=True, **LONG)
    images = [base64.b64encode(each.read_bytes()).decode() for each in files]
    options = {"model": "captions", "beam_size": 2, "scores": True, **LONG}
    _, headers, answer = server.ask("/caption", {"image": images, **options})
    fields = [
        (name, json.dumps(value) if name == "scores" else value) for name, value in options.items()
    ]
    status, uploaded = send(
        server, "/caption", *(("image", (each.name, each.read_bytes())) for each in files), *fields
    )
    assert (status, headers["x-model"], answer["version"]) == (200, "captions", "7")
    for one in (answer, uploaded):
        assert texts(one) == [outputs[0].text for outputs in wanted]
        scores = [result["outputs"][0]["score"] for result in one["results"]]
        assert scores == pytest.approx([outputs[0].score for outputs in wanted], abs=1e-5)
    assert len({round(score, 5) for score in scores}) == 3  # the images make a difference
    _, _, answer = server.ask("/caption", {"image": images[0], "model": "captions", **LONG})
    assert texts(answer) == MODELS["captions"].predict(files[:1], **LONG)


def test_a_caption_is_streamed(server, files):
    body, kind = form(
        [("image", ("x.png", files[0].read_bytes())), ("model", "rnn"), ("stream", "true")]
    )
    _, headers, answer = server.ask("/caption", body, content_type=kind)
    assert headers["content-type"].startswith("text/event-stream")
    events = [
        json.loads(line.removeprefix("data: ")) for line in answer["text"].split("\n\n") if line
    ]
    wanted = MODELS["rnn"].predict(files[:1])[0]
    assert (
        "".join(each["text"] for each in events[:-1]) == wanted == events[-1]["outputs"][0]["text"]
    )


def test_every_route_takes_files(server, files):
    inputs = [in_json(each.read_bytes()) for each in files]
    _, _, answer = server.ask("/predict", {"model": "captions", "input": inputs, **LONG})
    assert texts(answer) == MODELS["captions"].predict(files, **LONG)
    _, _, answer = server.ask("/classify", {"model": "kinds", "input": inputs})
    for result, (wanted,) in zip(answer["results"], MODELS["kinds"].outputs(files), strict=True):
        found = {each["label"]: each["probability"] for each in result["labels"]}
        assert found == pytest.approx(wanted.probabilities, abs=1e-5)
    for model in ("captions", "kinds"):
        _, _, answer = server.ask("/embed", {"model": model, "input": inputs})
        for result, wanted in zip(answer["results"], MODELS[model].embed(files), strict=True):
            assert result["embedding"] == pytest.approx(wanted.tolist(), abs=1e-5)
    _, _, answer = server.ask(
        "/score", {"model": "rnn", "input": inputs[0], "target": "a red circle"}
    )
    (wanted,) = MODELS["rnn"].score(files[:1], ["a red circle"])
    assert answer["results"][0]["log_probabilities"] == pytest.approx(
        wanted.log_probabilities, abs=1e-5
    )
    _, answer = send(
        server,
        "/classify",
        ("image", ("x", files[1].read_bytes())),
        ("model", "kinds"),
        ("n_best", "1"),
    )
    (wanted,) = MODELS["kinds"].outputs(files[1:2])[0]
    assert [each["label"] for each in answer["results"][0]["labels"]] == [wanted.text]


@pytest.mark.parametrize("model", ["captions", "rnn"])
def test_a_look_at_an_image(server, files, model):
    asked = {"model": model, "input": in_json(files[0].read_bytes()), "output": "a red circle"}
    _, _, answer = server.ask("/look", asked)
    status, uploaded = send(
        server,
        "/look",
        ("image", ("x", files[0].read_bytes())),
        ("model", model),
        ("output", "a red circle"),
    )
    wanted = regard.look(MODELS[model], files[0], output="a red circle")
    assert status == 200
    for one in (answer, uploaded):
        assert one["sources"] == [json.loads(json.dumps(wanted.source.as_dict()))]
        for got in one["maps"]:
            assert (
                np.abs(np.array(got["weights"]) - wanted[got["name"]].weights().numpy()).max()
                < 1e-6
            )
    _, _, answer = server.ask("/look", {**asked, "output": None, "max_length": 5})
    assert (
        answer["output"]["text"] == regard.look(MODELS[model], files[0], max_length=5).output.text
    )


def test_models_of_several_sources(server, files):
    question, data = "what is red ?", files[0].read_bytes()
    (wanted,) = MODELS["answers"].outputs([(files[0], question)], scores=True, **LONG)[0]
    options = {"model": "answers", "scores": True, **LONG}
    _, _, answer = server.ask("/predict", {"input": [[in_json(data), question]] * 2, **options})
    _, uploaded = send(
        server, "/predict", ("image", ("x.png", data)), ("input", question), ("model", "answers"), ("scores", "true"),
        ("min_length", "4"), ("max_length", "6"),
    )  # fmt: skip
    assert (len(answer["results"]), len(uploaded["results"])) == (2, 1)
    for result in (*answer["results"], *uploaded["results"]):
        assert result["outputs"][0]["text"] == wanted.text
        assert result["outputs"][0]["score"] == pytest.approx(wanted.score, abs=1e-5)
    _, _, answer = server.ask(
        "/look", {"model": "answers", "input": [in_json(data), question], "output": "a circle"}
    )
    seen = regard.look(MODELS["answers"], (files[0], question), output="a circle")
    assert [each["kind"] for each in answer["sources"]] == ["image", "text"]
    for got in answer["maps"]:
        assert np.abs(np.array(got["weights"]) - seen[got["name"]].weights().numpy()).max() < 1e-6
    sources = ("good", "the cat", "a dog")
    wanted = MODELS["labels"].predict([sources])
    for given in ([[*sources]], "\t".join(sources), ["\t".join(sources)]):
        assert texts(server.ask("/predict", {"model": "labels", "input": given})[2]) == wanted
    _, answer = send(
        server, "/predict", *(("input", each) for each in sources), ("model", "labels")
    )
    assert texts(answer) == wanted


def test_no_path_and_no_url_is_taken(server, tmp_path):
    secret = tmp_path / "secret.png"
    secret.write_bytes(content(picture()))
    for given in (
        str(secret),
        f"file://{secret}",
        "http://127.0.0.1:9/secret.png",
        "data:image/png;base64,AAAA",
    ):
        routes = {
            "/predict": {},
            "/classify": {"model": "kinds"},
            "/embed": {},
            "/look": {},
            "/score": {"target": "a"},
        }
        for path, more in routes.items():
            status, _, answer = server.ask(path, {"model": "captions", "input": given, **more})
            assert (status, answer["argument"]) == (400, "input")
            assert "No path and no URL is taken" in answer["detail"]
            assert "secret" not in answer["detail"]
        status, _, answer = server.ask(
            "/predict", {"model": "answers", "input": [[given, "what is red ?"]]}
        )
        assert (status, answer["argument"]) == (400, "input")
        assert (
            server.ask("/predict", {"model": "answers", "input": f"{given}\twhat is red ?"})[0]
            == 400
        )
        assert server.ask("/caption", {"model": "captions", "image": given})[0] == 400  # no base64
        assert send(server, "/caption", ("model", "captions"), ("image", given))[0] == 400
        assert server.ask("/v1/completions", {"model": "captions", "prompt": given})[0] == 400
        asked = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": [given]}]}
        assert server.ask("/v2/models/captions/infer", asked)[0] == 400
    for name in ("../../etc/passwd", str(secret)):  # of an upload: it says nothing
        status, answer = send(server, "/caption", ("model", "captions"), ("image", (name, b"")))
        assert (status, "got an empty file" in answer["detail"]) == (400, True)


@pytest.mark.parametrize("work", [Generation, Scoring, Inspection])
def test_the_engine_takes_no_path_either(server, tmp_path, work):
    """Whatever a route may forget."""
    (tmp_path / "x.png").write_bytes(content(picture()))
    for model, given in (
        ("captions", str(tmp_path / "x.png")),
        ("answers", f"{tmp_path / 'x.png'}\twhat"),
        ("answers", (str(tmp_path / "x.png"), "what")),
    ):
        served_model = server.engine.models[model]
        with pytest.raises(regard.InvalidArgument, match="No path and no URL is taken"):
            work(given).check(served_model.info.reads)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def claimed(width: int, height: int) -> bytes:
    """A PNG file of a few bytes that claims to have so many pixels."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


BAD = {
    "zero bytes": (b"", "got an empty file"),
    "a text": (b"no picture at all", "got a file that begins with"),
    "eps": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "got a file that begins with"),
    "half a jpeg": (content(picture(), "JPEG")[:900], "truncated"),
    "half a png": (content(picture())[:3000], "a whole image"),
    "a bomb": (claimed(100_000, 100_000), f"at most {MAX_PIXELS:,} pixels"),
    "a bomb that Pillow only warns of": (claimed(10_000, 10_000), f"at most {MAX_PIXELS:,} pixels"),
}


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("name", BAD)
def test_bad_images_are_refused(server, name):
    data, detail = BAD[name]
    for status, answer in (
        server.ask("/caption", {"model": "captions", "image": base64.b64encode(data).decode()})[
            ::2
        ],
        send(server, "/caption", ("model", "captions"), ("image", ("photo.jpg", data))),
    ):
        assert (status, answer["argument"]) == (400, "image of input 1")
        assert detail in answer["detail"]
    good, bad = in_json(content(picture())), in_json(data)
    assert (
        server.ask("/embed", {"model": "captions", "input": [good, bad]})[2]["argument"]
        == "image of input 2"
    )


def rotated(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return content(picture(), "JPEG", exif=exif)


ODD = {
    "cmyk": content(picture().convert("CMYK"), "JPEG"),
    "16 bits": content(Image.fromarray(np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000)),
    "alpha": content(picture().convert("RGBA")),
    "palette": content(picture().convert("P")),
    "animated": content(picture(), "GIF", save_all=True, append_images=[picture(7)]),
    **{f"orientation {number}": rotated(number) for number in range(1, 9)},
}


@pytest.mark.parametrize("name", ODD)
def test_odd_images_are_read_as_files_are(server, tmp_path, name):
    path = tmp_path / "wrong.extension"
    path.write_bytes(ODD[name])
    _, _, answer = server.ask("/embed", {"model": "captions", "input": in_json(ODD[name])})
    wanted = MODELS["captions"].embed([path])[0].tolist()
    assert answer["results"][0]["embedding"] == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize(
    ("path", "asked", "detail"),
    [
        (
            "/caption",
            {"model": "text", "image": "AAAA"},
            "model: wanted a model from images to texts",
        ),
        (
            "/caption",
            {"model": "kinds", "image": "AAAA"},
            "model: wanted a model from images to texts",
        ),
        ("/caption", {"model": "captions", "image": "?"}, "Invalid base64 encoded string"),
        ("/caption", {"model": "captions", "image": []}, "input: wanted 1 to 256; got 0"),
        (
            "/predict",
            {"model": "text", "input": {"image": "AAAA"}},
            "input: wanted a text; got an image",
        ),
        ("/predict", {"model": "captions", "input": {"path": "x.png"}}, "unknown field `path`"),
        (
            "/predict",
            {"model": "captions", "input": {"image": "AAAA", "url": "x"}},
            "unknown field `url`",
        ),
        (
            "/predict",
            {"model": "answers", "input": [["a"]]},
            "input: wanted 2 sources (image, text); got 1",
        ),
        (
            "/predict",
            {"model": "labels", "input": "a"},
            "input: wanted 3 sources (label, text, text); got 1",
        ),
        ("/look", {"model": "text", "input": ["a", "b"]}, "input: wanted one text; got 2"),
    ],
)
def test_what_a_model_does_not_read_is_refused(server, path, asked, detail):
    status, _, answer = server.ask(path, asked)
    assert status == 400
    assert detail in answer["detail"]


@pytest.mark.parametrize(
    ("parts", "detail"),
    [
        ([("model", "captions")], "missing required field `image`"),
        ([("model", "captions"), ("image", ("x", b"")), ("beam", "3")], "beam: wanted one of"),
        ([("model", "captions"), ("photo", ("x", b""))], "photo: wanted files as image or file"),
        ([("model", "captions"), ("model", "rnn")], "model: wanted one value; got several"),
        (
            [("model", "captions"), ("image", ("x", b"")), ("beam_size", "three")],
            "got JSON is malformed",
        ),
        (
            [("model", "captions"), ("image", ("x", b"")), ("banned", "[" * 100)],
            "nested at most 32 deep",
        ),
        (
            [("model", "captions"), ("image", ("x", b"")), ("beam_size", '"3"')],
            "Expected `int | null`, got `str`",
        ),
        ([("image", ("x", b"1"))] * 300, "Too many files"),
    ],
)
def test_wrong_forms_are_problems(server, parts, detail):
    status, answer = send(server, "/caption", *parts)
    assert status == 400
    assert detail in answer["detail"]


@pytest.mark.parametrize("kind", ["multipart/form-data", "multipart/form-data; boundary=other"])
def test_what_is_no_form_is_a_problem(server, kind):
    body, _ = form([("model", "captions")])
    status, _, answer = server.ask("/caption", body, content_type=kind)
    assert (status, answer["detail"].startswith("body: wanted a form")) == (400, True)


def test_bodies_with_images_have_a_limit_of_their_own():
    limits = HttpLimits(body=2000, image_body=50_000)
    small, large = content(picture(side=(8, 8))), content(picture(side=(64, 64)))
    assert 2000 < len(large) < 20_000
    with served({"captions": MODELS["captions"], "text": MODELS["text"]}, limits=limits) as running:
        named = {"model": "captions", "max_length": 3}
        assert running.ask("/predict", {"input": in_json(large), **named})[0] == 200
        assert running.ask("/predict", {"input": [in_json(large)] * 4, **named})[0] == 413
        assert (
            running.ask("/predict", {"model": "text", "input": "x" * 2500})[0] == 413
        )  # texts have the other limit
        assert running.ask("/v1/completions", {"model": "text", "prompt": "x" * 2500})[0] == 413
        until(lambda: running.app.service.large_bodies == 0)
        running.app.service.large_bodies = 16
        status, headers, _ = running.ask("/predict", {"input": in_json(large), **named})
        assert (status, headers["retry-after"]) == (429, "1")
        assert running.ask("/predict", {"input": in_json(small), **named})[0] == 200
        running.app.service.large_bodies = 0
        assert running.ask("/predict", {"input": in_json(large), **named})[0] == 200
        until(lambda: running.app.service.large_bodies == 0)
    with served({"text": MODELS["text"]}, limits=limits) as running:  # where no model reads images
        assert running.ask("/predict", {"input": in_json(large)})[0] == 413


def test_decoding_holds_up_nobody(server, monkeypatch):
    """Neither the event loop nor the engine: a text is answered while all decoders are busy."""
    from regard.data.fields import image

    begun, end, decode = threading.Event(), threading.Event(), image.decode_image

    def slow(*given):
        begun.set()
        assert end.wait(PATIENCE)
        return decode(*given)

    monkeypatch.setattr(image, "decode_image", slow)
    asked = {"model": "captions", "image": [base64.b64encode(content(picture())).decode()] * 2}
    answers = []
    threads = [
        threading.Thread(target=lambda: answers.append(server.ask("/caption", asked)[0]))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    assert begun.wait(PATIENCE)
    assert server.ask("/predict", {"model": "text", "input": "a dog", "max_length": 3})[0] == 200
    end.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert answers == [200] * 6


@pytest.mark.parametrize("model", MODELS)
def test_a_model_answers_one_request_before_it_serves(model):
    _warm_up(MODELS[model])


def test_images_cross_processes_as_they_are():
    image = np.random.default_rng(0).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    for given in (image, (image, "what is red ?")):
        work = Generation(given, attention=AttentionPart(heads=(1,)))
        content = msgspec.msgpack.encode(packed(work))
        found = msgspec.msgpack.decode(content, ext_hook=unpacked)
        arrived = found.input if isinstance(given, np.ndarray) else found.input[0]
        assert (arrived == image).all()
        assert (found.size, found.attention) == (work.size, work.attention)
        found.check(("image",) if isinstance(given, np.ndarray) else ("image", "text"))


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        (str, True),
        (str | None, True),
        (list[str] | str, True),
        (Literal["a", "b"], True),
        (Literal["never", True], True),
        (int | None, False),
        (float, False),
        (bool, False),
        (list[str], False),
    ],
)
def test_fields_of_a_form_are_texts_or_json(kind, wanted):
    """A text is taken as it is where a key may have one: "12" is no number there."""
    assert forms._takes_text(kind) is wanted
