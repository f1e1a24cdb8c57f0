"""LibreTranslate's API, asked by libretranslatepy over real sockets."""

import json
import urllib.error
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest

pytest.importorskip("uvicorn", reason="needs the extra `serve`")
libretranslatepy = pytest.importorskip(
    "libretranslatepy", reason="needs the package libretranslatepy"
)

from support.predictors import classifier, language_model, translator  # noqa: E402
from support.servers import PATIENCE, Running, served  # noqa: E402

MODELS = {
    "en-de": translator(decoder="rnn"),
    "zh-Hans-en": translator(decoder="rnn", seed=2),
    "en-fr": translator(decoder="rnn", seed=3),
    "de-en": classifier(),  # which does not translate, in spite of its name
    "xx-yy": language_model(),
    "other": translator(decoder="rnn"),
}
FORM = "application/x-www-form-urlencoded"


def client(running: Running, key: str | None = None) -> libretranslatepy.LibreTranslateAPI:
    return libretranslatepy.LibreTranslateAPI(f"http://127.0.0.1:{running.port}", key)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with served(MODELS) as running:
        yield running


def test_a_translation_is_what_predict_gives(server):
    for text in ("the cat sat", "a & b = ü; 100%"):
        assert (
            client(server).translate(text, "en", "de", PATIENCE)
            == MODELS["en-de"].predict([text])[0]
        )
    assert (
        client(server).translate("a dog", "zh-Hans", "en", PATIENCE)
        == MODELS["zh-Hans-en"].predict(["a dog"])[0]
    )


def test_several_texts_and_alternatives(server):
    texts = ["the cat sat", "a dog"]
    asked = {
        "q": texts,
        "source": "en",
        "target": "de",
        "format": "text",
        "api_key": "",
        "anything": 1,
    }
    status, _, answer = server.ask("/translate", asked)
    assert (status, answer) == (200, {"translatedText": MODELS["en-de"].predict(texts)})
    wanted = MODELS["en-de"].outputs(texts, beam_size=3, num_hypotheses=3)
    found = [list(dict.fromkeys(output.text for output in outputs)) for outputs in wanted]
    _, _, answer = server.ask("/translate", {**asked, "alternatives": 2})
    assert answer == {
        "translatedText": [best for best, *_ in found], "alternatives": [others for _, *others in found]
    }  # fmt: skip
    _, _, answer = server.ask("/translate", {**asked, "q": "a dog", "alternatives": 2})
    assert answer == {"translatedText": found[1][0], "alternatives": found[1][1:]}
    form = urlencode({"q": "a dog", "source": "en", "target": "de", "alternatives": 2}).encode()
    assert server.ask("/translate", form, content_type=FORM)[2] == answer
    form = urlencode(
        [("q", "the cat sat"), ("q", "a dog"), ("source", "en"), ("target", "de")]
    ).encode()
    assert server.ask("/translate", form, content_type=FORM)[2] == {
        "translatedText": MODELS["en-de"].predict(texts)
    }


def test_languages_are_those_of_the_models(server):
    assert client(server).languages(PATIENCE) == [
        {"code": "en", "name": "English", "targets": ["de", "fr"]},
        {"code": "de", "name": "German", "targets": []},
        {"code": "zh-Hans", "name": "Chinese (simplified)", "targets": ["en"]},
        {"code": "fr", "name": "French", "targets": []},
    ]
    settings = server.ask("/frontend/settings")[2]
    assert (settings["keyRequired"], settings["language"]["target"]["code"]) == (False, "de")
    assert server.ask("/health")[2] == {"status": "ok"}


def test_no_language_is_detected(server):
    """The only one is named with confidence 0; among several, none is."""
    asked = {"q": "the cat", "source": "auto", "target": "de"}
    _, _, answer = server.ask("/translate", asked)
    assert answer["detectedLanguage"] == {"language": "en", "confidence": 0}
    assert answer["translatedText"] == MODELS["en-de"].predict(["the cat"])[0]
    with pytest.raises(urllib.error.HTTPError) as caught:
        client(server).detect("the cat", PATIENCE)
    assert caught.value.code == 400
    assert "none is detected" in json.load(caught.value)["error"]
    with served({"en-de": MODELS["en-de"], "en-fr": MODELS["en-fr"]}) as running:
        assert client(running).detect("the cat", PATIENCE) == [{"language": "en", "confidence": 0}]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"target": "es"},
            "source and target: wanted en to de or zh-Hans to en or en to fr; got en to es",
        ),
        ({"source": "de", "target": "en"}, "got de to en"),
        ({"format": "html"}, "format: wanted 'text'"),
        ({"alternatives": 99}, "alternatives: wanted 0 to 31"),
        ({"q": []}, "input: wanted 1 to 256"),
        ({"q": 3}, "got Expected `str | array`"),
        ({"target": None}, "body: wanted"),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else None,
)
def test_bad_requests_are_errors_of_libretranslate(server, given, message):
    status, headers, answer = server.ask(
        "/translate", {"q": "a", "source": "en", "target": "de", **given}
    )
    assert (status, headers["content-type"], list(answer)) == (400, "application/json", ["error"])
    assert message in answer["error"]


@pytest.mark.parametrize(
    "form", [b"q=%ff&source=en&target=de", b"\xff", b"q=a", b"q=a&" * 2000, b"alternatives=x"]
)
def test_bad_forms_are_refused(server, form):
    status, _, answer = server.ask("/translate", form, content_type=FORM)
    assert (status, answer["error"][:33]) == (400, "body: wanted the fields of a requ")


def test_the_key_may_be_in_the_body():
    with served({"en-de": MODELS["en-de"]}, keys=["secret"]) as running:
        mine, body = client(running, "secret"), {"q": "a dog", "source": "en", "target": "de"}
        assert (
            mine.translate("a dog", "en", "de", PATIENCE) == MODELS["en-de"].predict(["a dog"])[0]
        )
        assert [each["code"] for each in mine.languages(PATIENCE)] == ["en", "de"]
        assert mine.detect("a dog", PATIENCE) == [{"language": "en", "confidence": 0}]
        assert running.ask("/translate", {**body, "api_key": "secret"})[0] == 200
        assert running.ask("/translate", body, authorization="Bearer secret")[0] == 200
        for wrong in (
            body,
            {**body, "api_key": "other"},
            {**body, "api_key": 7},
            b"[",
            b"\xff",
            b"api_key=secret2",
        ):
            status, _, answer = running.ask("/translate", wrong)
            assert (status, list(answer)) == (401, ["error"])
        # A key in the header is not corrected by one in the body, and other routes read none there.
        assert (
            running.ask("/translate", {**body, "api_key": "secret"}, authorization="Bearer other")[
                0
            ]
            == 401
        )
        assert running.ask("/predict", {"input": "a", "api_key": "secret"})[0] == 401
        assert running.ask("/health")[0] == 200
        settings = running.ask("/frontend/settings", authorization="Bearer secret")[2]
        assert settings["keyRequired"] is True
