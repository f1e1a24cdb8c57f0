"""The API of OpenNMT-py's REST server: `/translator/translate`, `/translator/models`."""

from dataclasses import replace
from http import HTTPStatus
from typing import Any

import msgspec
from msgspec import Struct
from starlette.responses import Response

from regard.core.errors import InvalidArgument, RegardError
from regard.serving.http.errors import RequestRefused, status_of
from regard.serving.http.routing import JSON, Call, Route
from regard.serving.http.schemas import score_of
from regard.serving.http.service import TEXT, Service, decoded_list, json_answer
from regard.serving.scheduler.jobs import Generation


class Source(Struct, forbid_unknown_fields=True):
    """A text and the model that translates it: the only one by default."""

    src: str
    id: str | int | None = None


class Translation(Struct):
    src: str
    tgt: str
    n_best: int
    pred_score: float


class LoadedModel(Struct, kw_only=True):
    model_id: str
    models: list[str]
    opt: dict[str, Any] = {}
    loaded: bool = True
    timeout: int = -1


class Failure(Struct):
    error: str
    status: str = "error"


def failure(error: RegardError, request_id: str) -> Response:
    """An error as OpenNMT's clients read it."""
    status, headers = status_of(error)
    return Response(msgspec.json.encode(Failure(str(error))), status, headers, JSON)


class OpenNMTRoutes:
    def __init__(self, service: Service) -> None:
        self.service = service

    def routes(self) -> list[Route]:
        models, path = list[LoadedModel], "/translator/translate"
        translations = list[list[Translation]]
        routes = [
            Route(
                "GET",
                "/translator/models",
                self.list_models,
                "The models, as OpenNMT lists them",
                answer=models,
            ),
            Route(
                "POST",
                path,
                self.translate,
                "Translations, as OpenNMT gives them",
                list[Source],
                translations,
                example=self.example,
            ),
        ]
        return [replace(route, problem=failure, error=Failure) for route in routes]

    def example(self) -> object:
        models = [
            model.name for model in self.service.engine.model_info.values() if not model.labels
        ]
        return [{"src": TEXT, "id": next(iter(models), "model")}]

    async def list_models(self, call: Call) -> Response:
        models = self.service.engine.model_info.values()
        return json_answer(
            [LoadedModel(model_id=each.name, models=[each.version]) for each in models]
        )

    async def translate(self, call: Call) -> Response:
        """A list for each rank, which holds the output of this rank for each source."""
        asked = decoded_list(call.body, Source)
        inputs = self.service.inputs([each.src for each in asked])
        names = list(dict.fromkeys(each.id for each in asked))
        if len(names) > 1:
            message = f"id: wanted the same for all texts; got {len(names)}. Send a request for each model."
            raise RequestRefused(HTTPStatus.BAD_REQUEST, message)
        model = self.service.text_model(None if names[0] is None else str(names[0]))
        if not model.generates:
            raise InvalidArgument(
                "id",
                wanted="a model that generates text",
                got=f"one that gives {model.gives}",
                remedy="Use /predict.",
            )
        works = [
            Generation(text, scores=True, number=number, tokens=False)
            for number, text in enumerate(inputs)
        ]
        results = await self.service.engine_client(call, model).results(works)
        count = min(map(len, results))
        return json_answer(
            [
                [
                    Translation(text, outputs[rank].text, count, score_of(outputs[rank]))
                    for text, outputs in zip(inputs, results, strict=True)
                ]
                for rank in range(count)
            ]
        )
