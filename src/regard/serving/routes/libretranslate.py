"""LibreTranslate's API: `/translate`, `/languages`, `/detect`, for clients that speak it.

A model translates from one language to another where its name says so: `en-de`, `zh-Hans-en`.
"""

import re
from dataclasses import replace
from http import HTTPStatus
from typing import TypeVar
from urllib.parse import parse_qs

import msgspec
from msgspec import Struct
from starlette.responses import Response

from regard.core.errors import InvalidArgument
from regard.serving.http.errors import ErrorMessage, RequestRefused, error_message
from regard.serving.http.routing import JSON, Call, Route
from regard.serving.http.service import TEXT, Service, decoded, json_answer
from regard.serving.scheduler.interfaces import ModelInfo
from regard.serving.scheduler.jobs import Generation

Asked = TypeVar("Asked")
FORM = "application/x-www-form-urlencoded"
MOST_FIELDS = 1000  # of a form

LANGUAGE = "[a-z]{2,3}(?:-[A-Z][A-Za-z]+)?"  # as in BCP 47, with a script or a region
PAIR = re.compile(f"({LANGUAGE})-({LANGUAGE})")
MOST_ALTERNATIVES = 31
NAMES = dict(
    each.split(" ", 1)
    for each in """ar Arabic,az Azerbaijani,bg Bulgarian,bn Bengali,ca Catalan,cs Czech,da Danish,de German,el Greek,
en English,eo Esperanto,es Spanish,et Estonian,eu Basque,fa Persian,fi Finnish,fr French,ga Irish,gl Galician,he Hebrew,
hi Hindi,hr Croatian,hu Hungarian,hy Armenian,id Indonesian,is Icelandic,it Italian,ja Japanese,ka Georgian,kk Kazakh,
ko Korean,lt Lithuanian,lv Latvian,mk Macedonian,ms Malay,nb Norwegian Bokmål,nl Dutch,no Norwegian,pl Polish,
pt Portuguese,pt-BR Portuguese (Brazil),ro Romanian,ru Russian,sk Slovak,sl Slovenian,sq Albanian,sr Serbian,sv Swedish,
sw Swahili,ta Tamil,th Thai,tl Tagalog,tr Turkish,uk Ukrainian,ur Urdu,vi Vietnamese,zh Chinese,
zh-Hans Chinese (simplified),zh-Hant Chinese (traditional)""".replace("\n", "").split(",")
)


class TranslateRequest(Struct, kw_only=True):
    """Texts to translate. Keys that are not listed are ignored, as LibreTranslate ignores them."""

    q: str | list[str]
    source: str
    target: str
    format: str = "text"
    alternatives: int = 0
    api_key: str | None = None


class DetectRequest(Struct, kw_only=True):
    q: str | list[str]
    api_key: str | None = None


class DetectedLanguage(Struct):
    language: str
    confidence: float = 0.0


class TranslateAnswer(Struct, omit_defaults=True, rename="camel"):
    """For a list of texts, lists."""

    translated_text: str | list[str]
    alternatives: list[str | list[str]] | None = None
    detected_language: DetectedLanguage | list[DetectedLanguage] | None = None


class Language(Struct):
    code: str
    name: str
    targets: list[str] = []


class Health(Struct):
    status: str


class LanguageChoice(Struct):
    source: Language
    target: Language


class FrontendSettings(Struct, rename="camel"):
    """What LibreTranslate's page needs to know."""

    api_keys: bool
    key_required: bool
    language: LanguageChoice
    char_limit: int = -1
    frontend_timeout: int = 500
    suggestions: bool = False
    supported_files_format: list[str] = []


class LibreTranslateRoutes:
    def __init__(self, service: Service, *, keys: bool) -> None:
        self.service, self.keys = service, keys

    def routes(self) -> list[Route]:
        accepts, form = (JSON, FORM), "as LibreTranslate does"
        routes = [
            Route(
                "POST",
                "/translate",
                self.translate,
                f"Translations, {form}",
                TranslateRequest,
                TranslateAnswer,
                example=self.example,
            ),
            Route(
                "POST",
                "/detect",
                self.detect,
                f"The source language, {form}",
                DetectRequest,
                list[DetectedLanguage],
            ),
            Route(
                "GET", "/languages", self.languages, f"The languages, {form}", answer=list[Language]
            ),
            Route(
                "GET",
                "/frontend/settings",
                self.settings,
                f"Settings, {form}",
                answer=FrontendSettings,
            ),
            Route(
                "GET",
                "/health",
                self.health,
                f"The process runs, {form}",
                answer=Health,
                needs_key=False,
            ),
        ]
        routes = [
            replace(route, problem=error_message, error=ErrorMessage, body_key=_key)
            for route in routes
        ]
        return [
            replace(route, accepts=accepts) if route.method == "POST" else route for route in routes
        ]

    @property
    def pairs(self) -> dict[tuple[str, str], ModelInfo]:
        """The models that translate, by their languages."""
        models = self.service.engine.model_info.values()
        named = [
            (PAIR.fullmatch(model.name), model) for model in models if model.reads == ("text",)
        ]
        return {(fit[1], fit[2]): model for fit, model in named if fit and not model.labels}

    def list_languages(self) -> list[Language]:
        pairs = self.pairs
        codes = dict.fromkeys(code for pair in pairs for code in pair)
        return [_language(code, [to for source, to in pairs if source == code]) for code in codes]

    def example(self) -> object:
        source, target = next(iter(self.pairs), ("en", "de"))
        return {"q": TEXT, "source": source, "target": target}

    async def translate(self, call: Call) -> Response:
        asked = _read(call, TranslateRequest)
        if asked.format != "text":
            remedy = "Send the text without markup."
            raise InvalidArgument("format", wanted="'text'", got=repr(asked.format), remedy=remedy)
        if not 0 <= asked.alternatives <= MOST_ALTERNATIVES:
            wanted, got = f"0 to {MOST_ALTERNATIVES}", str(asked.alternatives)
            raise InvalidArgument("alternatives", wanted=wanted, got=got, remedy="Change it.")
        model, inputs = self._model(asked.source, asked.target), self.service.inputs(asked.q)
        options = {"num_hypotheses": 1 + asked.alternatives}
        works = [
            Generation(text, options, number=n, widen_beam=True, tokens=False)
            for n, text in enumerate(inputs)
        ]
        results = await self.service.engine_client(call, model).results(works)
        texts = [list(dict.fromkeys(output.text for output in outputs)) for outputs in results]
        single = isinstance(asked.q, str)
        answer = TranslateAnswer(texts[0][0] if single else [best for best, *_ in texts])
        if asked.alternatives:
            answer.alternatives = [*texts[0][1:]] if single else [others for _, *others in texts]
        if asked.source == "auto":
            detected = DetectedLanguage(_source(model))
            answer.detected_language = detected if single else [detected] * len(texts)
        return json_answer(answer)

    def _model(self, source: str, target: str) -> ModelInfo:
        """The model of a language pair; with the source "auto", the only one of this target."""
        pairs = self.pairs
        fitting = [
            model for (one, to), model in pairs.items() if to == target and source in (one, "auto")
        ]
        if len(fitting) == 1:
            return fitting[0]
        wanted = (
            " or ".join(f"{one} to {to}" for one, to in pairs)
            or "a model named after its languages, as en-de"
        )
        remedy = "Choose one; languages are not detected." if source == "auto" else "Choose one."
        raise InvalidArgument(
            "source and target", wanted=wanted, got=f"{source} to {target}", remedy=remedy
        )

    async def detect(self, call: Call) -> Response:
        """The only language that is translated from, with confidence 0: no model here detects one."""
        self.service.inputs(_read(call, DetectRequest).q)
        codes = list(dict.fromkeys(source for source, _ in self.pairs))
        if len(codes) != 1:
            wanted, remedy = (
                "a server of one source language, since none is detected",
                "Name the language.",
            )
            raise InvalidArgument("q", wanted=wanted, got=", ".join(codes) or "none", remedy=remedy)
        return json_answer([DetectedLanguage(codes[0])])

    async def languages(self, call: Call) -> Response:
        return json_answer(self.list_languages())

    async def settings(self, call: Call) -> Response:
        source, target = next(iter(self.pairs), ("en", "en"))
        choice = LanguageChoice(_language(source), _language(target))
        return json_answer(FrontendSettings(self.keys, self.keys, choice))

    async def health(self, call: Call) -> Response:
        return json_answer(Health("ok"))


class KeyOnly(Struct):
    api_key: str = ""


def _key(body: bytes) -> str:
    """The key in a body of either kind: the headers are not asked, since a GET request has a body here as well."""
    try:
        return msgspec.json.decode(body, type=KeyOnly).api_key
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        pass
    try:
        return str(_fields(body).get("api_key", ""))
    except ValueError:
        return ""


def _fields(body: bytes) -> dict[str, str | list[str]]:
    """The fields of a form; those that occur several times as lists."""
    fields = parse_qs(
        body.decode(), keep_blank_values=True, errors="strict", max_num_fields=MOST_FIELDS
    )
    return {name: values if len(values) > 1 else values[0] for name, values in fields.items()}


def _read(call: Call, wanted: type[Asked]) -> Asked:
    """The request in a body of JSON, or in the fields of a form."""
    if call.content_type == JSON:
        return decoded(call.body, wanted)
    try:
        return msgspec.convert(_fields(call.body), wanted, strict=False)
    except (msgspec.ValidationError, ValueError) as error:
        message = (
            f"body: wanted the fields of a request; got {error}. See the documentation of the API."
        )
        raise RequestRefused(HTTPStatus.BAD_REQUEST, message) from None


def _source(model: ModelInfo) -> str:
    fit = PAIR.fullmatch(model.name)
    assert fit is not None
    return fit[1]


def _language(code: str, targets: list[str] | None = None) -> Language:
    return Language(code, NAMES.get(code, code), targets or [])
