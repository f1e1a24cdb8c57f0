"""The HTTP API: its routes."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from regard.core.errors import InvalidArgument
from regard.inference.predictor import UNSTREAMABLE
from regard.server.bridge import EngineClient
from regard.server.engine import Engine, ServedModel, check_servable
from regard.server.events import EventStream
from regard.server.exchange import Application, Call, Exchange, HttpLimits
from regard.server.jobs import Generation, Scoring
from regard.server.metrics import Metrics
from regard.server.problems import RequestRefused
from regard.server.wire import (
    OPTIONS,
    OutputAnswer,
    PredictAnswer,
    PredictRequest,
    Result,
    ScoreAnswer,
    ScoreRequest,
    ScoreResult,
)

Decoded = TypeVar("Decoded")


class Server(Application):
    """The HTTP API of an engine, as an ASGI application.

    keys   API keys, one of which each request must name (`Authorization: Bearer KEY`); none: anyone may ask
    """

    def __init__(
        self,
        engine: Engine,
        *,
        limits: HttpLimits = HttpLimits(),  # noqa: B008  frozen
        keys: Sequence[str] = (),
    ) -> None:
        self.engine, self.limits, self.keys = engine, limits, tuple(keys)
        self.metrics, self.ready = Metrics(engine), True
        self.open = 0
        self.routes = {
            "/predict": ("POST", self.predict),
            "/score": ("POST", self.score),
            "/models": ("GET", self.list_models),
            "/health/live": ("GET", self.live),
            "/health/ready": ("GET", self.is_ready),
            "/metrics": ("GET", self.show_metrics),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await Exchange(self, scope, receive, send).run()
        elif scope["type"] == "lifespan":
            await _lifespan(receive, send)

    # ---- routes ----

    async def predict(self, call: Call) -> Response:
        asked = _decoded(call.body, PredictRequest)
        model, inputs = self._model(asked.model), self._inputs(asked.input)
        options = {name: value for name in OPTIONS if (value := getattr(asked, name)) is not None}
        if asked.stream:
            options = _streamable(asked, len(inputs), options)
        works = [
            Generation(
                text, options, asked.prefix, tuple(asked.banned), tuple(asked.required), asked.scores, asked.attention,
                asked.truncate, number,
            )
            for number, text in enumerate(inputs)
        ]  # fmt: skip
        client = self._engine_client(call, model, asked.timeout_ms)
        if asked.stream:
            return await EventStream.begin(client.stream(works[0]), tokens=asked.tokens)
        outputs = await client.results(works)
        results = [Result([OutputAnswer.of(each, tokens=asked.tokens) for each in one]) for one in outputs]
        return _json(PredictAnswer(call.id, model.name, model.version, results))

    async def score(self, call: Call) -> Response:
        asked = _decoded(call.body, ScoreRequest)
        model, inputs = self._model(asked.model), self._inputs(asked.input)
        targets: Sequence[str | None] = [None] * len(inputs)
        if asked.target is not None:
            targets = [asked.target] if isinstance(asked.target, str) else asked.target
        if len(targets) != len(inputs):
            message = f"target: wanted {len(inputs)}, one for each input; got {len(targets)}. Give each one."
            raise RequestRefused(HTTPStatus.BAD_REQUEST, message)
        client = self._engine_client(call, model, asked.timeout_ms)
        scores = await client.results([Scoring(*pair) for pair in zip(inputs, targets, strict=True)])
        results = [ScoreResult.of(each) for each in scores]
        return _json(ScoreAnswer(call.id, model.name, model.version, results))

    async def list_models(self, call: Call) -> Response:
        models = self.engine.models.values()
        return _json({"models": [{"name": each.name, "version": each.version} for each in models]})

    async def live(self, call: Call) -> Response:
        return _json({"status": "live"})

    async def is_ready(self, call: Call) -> Response:
        if not self.ready:
            raise RequestRefused(
                HTTPStatus.SERVICE_UNAVAILABLE, "wanted a server that takes requests; got one that stops."
            )
        return _json({"status": "ready"})

    async def show_metrics(self, call: Call) -> Response:
        return Response(self.metrics.text(), media_type=self.metrics.media_type)

    # ---- what routes share ----

    def _model(self, name: str | None) -> ServedModel:
        models = self.engine.models
        if name is None and len(models) == 1:
            (name,) = models
        if name not in models:
            got = "none" if name is None else repr(name)
            message = f"model: wanted one of {', '.join(models) or 'none is loaded'}; got {got}. Choose one."
            raise RequestRefused(HTTPStatus.NOT_FOUND, message)
        check_servable(models[name].predictor)  # its input would be the path of a file
        return models[name]

    def _inputs(self, given: str | list[str]) -> list[str]:
        inputs = [given] if isinstance(given, str) else given
        if not 0 < len(inputs) <= self.limits.inputs:
            message = f"input: wanted 1 to {self.limits.inputs}; got {len(inputs)}. Send them in several requests."
            raise RequestRefused(HTTPStatus.BAD_REQUEST, message)
        return inputs

    def _engine_client(self, call: Call, model: ServedModel, timeout_ms: int | None) -> EngineClient:
        if timeout_ms is not None and timeout_ms <= 0:
            message = f"timeout_ms: wanted more than 0; got {timeout_ms}. Leave it out."
            raise RequestRefused(HTTPStatus.BAD_REQUEST, message)
        timeout = None if timeout_ms is None else timeout_ms / 1000
        return EngineClient(self.engine, model.name, call.client, timeout)


def _streamable(asked: PredictRequest, inputs: int, options: dict[str, Any]) -> dict[str, Any]:
    """The options of a stream, by greedy search or sampling; refused where its text would change after it was sent."""
    if inputs != 1:
        raise InvalidArgument("input", wanted="one in a stream", got=str(inputs), remedy="Send a request for each.")
    given = {**options, **({"banned": asked.banned} if asked.banned else {})}
    for name, only in {**UNSTREAMABLE, "banned": []}.items():
        if given.get(name, only) != only:
            remedy = "Leave it out, or do not stream."
            raise InvalidArgument(name, wanted=f"{only} in a stream", got=repr(given[name]), remedy=remedy)
    return {**options, **UNSTREAMABLE}


def _decoded(body: bytes, wanted: type[Decoded]) -> Decoded:
    try:
        return msgspec.json.decode(body, type=wanted)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        message = f"body: wanted a request of this route; got {error}. See the documentation of the API."
        raise RequestRefused(HTTPStatus.BAD_REQUEST, message) from None


def _json(content: object) -> Response:
    return Response(msgspec.json.encode(content), media_type="application/json")


async def _lifespan(receive: Receive, send: Send) -> None:
    while (message := await receive())["type"] == "lifespan.startup":
        await send({"type": "lifespan.startup.complete"})
    await send({"type": f"{message['type']}.complete"})
