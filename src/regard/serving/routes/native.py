"""Regard's own API: `/predict`, `/caption`, `/classify`, `/score`, `/embed`."""

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from http import HTTPStatus

from starlette.responses import Response

from regard.core.errors import InvalidArgument
from regard.serving.http.errors import RequestRefused
from regard.serving.http.events import Events, EventStream, event
from regard.serving.http.forms import read_request
from regard.serving.http.routing import FORM, JSON, NDJSON, Call, Route
from regard.serving.http.schemas import (
    CaptionRequest,
    ClassifyAnswer,
    ClassifyRequest,
    ClassifyResult,
    EmbedAnswer,
    EmbedRequest,
    EmbedResult,
    OutputAnswer,
    PredictAnswer,
    PredictRequest,
    Result,
    ScoreAnswer,
    ScoreRequest,
    ScoreResult,
    options_of,
    streamable,
)
from regard.serving.http.service import IMAGE, TEXT, Service, example_input, json_answer
from regard.serving.scheduler.async_client import AsyncClient
from regard.serving.scheduler.interfaces import ModelInfo
from regard.serving.scheduler.jobs import Embedding, Generation, Scoring


class NativeRoutes:
    def __init__(self, service: Service) -> None:
        self.service = service

    def routes(self) -> list[Route]:
        routes = [
            Route(
                "POST",
                "/predict",
                self.predict,
                "Texts or labels for inputs",
                PredictRequest,
                PredictAnswer,
                example=self.predict_example,
            ),
            Route(
                "POST",
                "/caption",
                self.caption,
                "Texts for images",
                CaptionRequest,
                PredictAnswer,
                example=self.caption_example,
            ),
            Route(
                "POST",
                "/classify",
                self.classify,
                "Labels of inputs, with their probabilities",
                ClassifyRequest,
                ClassifyAnswer,
                example=self.classify_example,
            ),
            Route(
                "POST", "/embed", self.embed, "A vector for each input", EmbedRequest, EmbedAnswer
            ),
            Route(
                "POST",
                "/score",
                self.score,
                "Log-probabilities of targets or texts",
                ScoreRequest,
                ScoreAnswer,
                example=self.score_example,
            ),
        ]
        return [replace(route, accepts=(JSON, FORM, NDJSON), takes_files=True) for route in routes]

    async def predict(self, call: Call) -> Response:
        asked = await read_request(self.service, call, PredictRequest)
        return await self._predict(call, asked, self.service.model(asked.model))

    def predict_example(self) -> object:
        models = self.service.engine.model_info
        first = next(iter(models.values()), None)
        asked = {"input": example_input(first)}
        return asked if first is None or len(models) == 1 else {"model": first.name, **asked}

    def caption_example(self) -> object:
        models = [
            model.name for model in self.service.engine.model_info.values() if _captions(model)
        ]
        return {"model": next(iter(models), "model"), "image": IMAGE}

    async def caption(self, call: Call) -> Response:
        asked = await read_request(self.service, call, CaptionRequest)
        model = self.service.model(asked.model)
        if not _captions(model):
            wanted, remedy = "a model from images to texts", "Use /predict, or choose another."
            raise InvalidArgument("model", wanted=wanted, got="another", remedy=remedy)
        return await self._predict(call, asked.as_predict(), model)

    async def _predict(self, call: Call, asked: PredictRequest, model: ModelInfo) -> Response:
        client = self.service.engine_client(call, model, asked.timeout_ms)
        inputs = await self.service.read_inputs(call, model, asked.input)
        options = options_of(asked)
        if asked.stream:
            _check_stream(asked, len(inputs), in_bulk=call.in_bulk)
            options = streamable(options)
        # The alternatives of tokens are given beside these.
        tokens = asked.tokens or bool(options.get("top_logprobs"))
        attention = asked.attention if isinstance(asked.attention, bool) else asked.attention.part()
        works = [
            Generation(
                text, options, asked.prefix, tuple(asked.banned), tuple(asked.required), asked.scores, attention,
                asked.truncate, number, tokens=tokens,
            )
            for number, text in enumerate(inputs)
        ]  # fmt: skip
        if asked.stream:
            return await EventStream.begin(_events(client, works[0], tokens=tokens))
        outputs = await client.results(works)
        results = Result.all(outputs, tokens=tokens)
        return json_answer(PredictAnswer(call.id, model.name, client.version, results))

    def classify_example(self) -> object:
        model = next(
            (each for each in self.service.engine.model_info.values() if each.labels), None
        )
        return {"model": "model" if model is None else model.name, "input": example_input(model)}

    async def classify(self, call: Call) -> Response:
        asked = await read_request(self.service, call, ClassifyRequest)
        model = self.service.model(asked.model)
        if not model.labels:
            wanted = "a model that gives labels"
            got = "one that generates text" if model.generates else f"one that gives {model.gives}"
            raise InvalidArgument("model", wanted=wanted, got=got, remedy="Use /predict.")
        if asked.n_best is not None and not 1 <= asked.n_best <= len(model.labels):
            wanted, remedy = f"1 to {len(model.labels)} labels", "Leave it out for all."
            raise InvalidArgument("n_best", wanted=wanted, got=str(asked.n_best), remedy=remedy)
        client = self.service.engine_client(call, model, asked.timeout_ms)
        inputs = await self.service.read_inputs(call, model, asked.input)
        outputs = await client.results(
            [Generation(text, truncate=asked.truncate) for text in inputs]
        )
        results = [ClassifyResult.of(each[0], asked.n_best) for each in outputs]
        return json_answer(ClassifyAnswer(call.id, model.name, client.version, results))

    async def embed(self, call: Call) -> Response:
        asked = await read_request(self.service, call, EmbedRequest)
        model = self.service.model(asked.model)
        client = self.service.engine_client(call, model, asked.timeout_ms)
        inputs = await self.service.read_inputs(call, model, asked.input)
        vectors = await client.results([Embedding(text, asked.truncate) for text in inputs])
        results = [EmbedResult(each) for each in vectors]
        return json_answer(EmbedAnswer(call.id, model.name, client.version, results))

    def score_example(self) -> object:
        model = next(iter(self.service.engine.model_info.values()), None)
        if model is None or not model.reads:
            return {"input": TEXT}
        return {
            "model": model.name,
            "input": example_input(model),
            "target": model.labels[0] if model.labels else TEXT,
        }

    async def score(self, call: Call) -> Response:
        asked = await read_request(self.service, call, ScoreRequest)
        model = self.service.model(asked.model)
        client = self.service.engine_client(call, model, asked.timeout_ms)
        inputs = await self.service.read_inputs(call, model, asked.input)
        targets: Sequence[str | None] = [None] * len(inputs)
        if asked.target is not None:
            targets = [asked.target] if isinstance(asked.target, str) else asked.target
        if len(targets) != len(inputs):
            message = f"target: wanted {len(inputs)}, one for each input; got {len(targets)}. Give each one."
            raise RequestRefused(HTTPStatus.BAD_REQUEST, message)
        scores = await client.results(
            [Scoring(*pair) for pair in zip(inputs, targets, strict=True)]
        )
        results = [ScoreResult.of(each) for each in scores]
        return json_answer(ScoreAnswer(call.id, model.name, client.version, results))


def _captions(model: ModelInfo) -> bool:
    """Whether it generates text from one image."""
    return model.generates and model.reads == ("image",)


async def _events(client: AsyncClient, work: Generation, *, tokens: bool) -> Events:
    async with aclosing(client.streams([work])) as items:
        async for _, item in items:
            if isinstance(item, str):
                yield event({"text": item})
            else:
                yield event({"outputs": OutputAnswer.all(item, tokens=tokens)})


def _check_stream(asked: PredictRequest, inputs: int, *, in_bulk: bool) -> None:
    if in_bulk:
        remedy = "Send it as a request of its own."
        raise InvalidArgument("stream", wanted="false in a line of many", got="true", remedy=remedy)
    if inputs != 1:
        raise InvalidArgument(
            "input", wanted="one in a stream", got=str(inputs), remedy="Send a request for each."
        )
    if asked.banned:
        remedy = "Leave it out, or do not stream."
        raise InvalidArgument(
            "banned", wanted="none in a stream", got=repr(asked.banned), remedy=remedy
        )
