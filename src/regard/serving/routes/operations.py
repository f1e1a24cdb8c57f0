"""What operators ask a server: its models, its health, its metrics."""

from contextlib import suppress
from http import HTTPStatus

from msgspec import Struct
from starlette.responses import Response

from regard.core.errors import EngineRestarting
from regard.serving.http.errors import RequestRefused
from regard.serving.http.metrics import Metrics
from regard.serving.http.routing import Call, Route
from regard.serving.http.service import Service, decoded, json_answer
from regard.serving.scheduler.interfaces import ModelAdmin, ModelState


class Status(Struct):
    status: str


class ModelEntry(Struct):
    name: str
    version: str


class ModelList(Struct):
    models: list[ModelEntry]


class ReloadRequest(Struct, forbid_unknown_fields=True):
    """The name of a model, which is loaded anew from the path that the server was started with."""

    name: str


class ModelStates(Struct):
    models: list[ModelState]


class AdminRoutes:
    def __init__(self, admin: ModelAdmin) -> None:
        self.admin = admin

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                "/admin/models",
                self.states,
                "States of the models",
                answer=ModelStates,
                admin=True,
                same_origin=True,
            ),
            Route(
                "POST",
                "/admin/models",
                self.reload,
                "Load a model anew",
                ReloadRequest,
                ModelState,
                admin=True,
                same_origin=True,
            ),
        ]

    async def states(self, call: Call) -> Response:
        return json_answer(ModelStates(await self.admin.states()))

    async def reload(self, call: Call) -> Response:
        return json_answer(await self.admin.reload(decoded(call.body, ReloadRequest).name))


class OperationRoutes:
    def __init__(self, service: Service, metrics: Metrics) -> None:
        self.service, self.metrics = service, metrics

    def routes(self) -> list[Route]:
        listed = [
            Route(
                "GET",
                "/models",
                self.list_models,
                "Names and versions of the models",
                answer=ModelList,
            ),
            Route(
                "GET", "/health/live", self.live, "The process runs", answer=Status, needs_key=False
            ),
            Route(
                "GET",
                "/health/ready",
                self.ready,
                "It takes requests",
                answer=Status,
                needs_key=False,
            ),
            Route("GET", "/metrics", self.show_metrics, "Counters and gauges for Prometheus"),
        ]
        return (
            listed
            if self.service.admin is None
            else [*listed, *AdminRoutes(self.service.admin).routes()]
        )

    async def list_models(self, call: Call) -> Response:
        models = self.service.engine.model_info.values()
        return json_answer(ModelList([ModelEntry(each.name, each.version) for each in models]))

    async def live(self, call: Call) -> Response:
        return json_answer(Status("live"))

    async def ready(self, call: Call) -> Response:
        if not self.service.ready:
            message = (
                "This server is stopping, loading its models, or busy with a step that takes long."
            )
            raise RequestRefused(HTTPStatus.SERVICE_UNAVAILABLE, message)
        return json_answer(Status("ready"))

    async def show_metrics(self, call: Call) -> Response:
        states: list[ModelState] = []
        if self.service.admin is not None:
            with suppress(EngineRestarting):  # counts are there nevertheless
                states = await self.service.admin.states()
        return Response(self.metrics.text(states), media_type=self.metrics.media_type)
