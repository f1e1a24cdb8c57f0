"""The HTTP API as an ASGI application."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from starlette.types import Receive, Scope, Send

from regard.serving.http.access_log import AccessLog
from regard.serving.http.cors import CrossOrigin
from regard.serving.http.hosts import AllowedHosts
from regard.serving.http.keys import ApiKey, KeyBudgets, KeyLimiter, KeyRing
from regard.serving.http.metrics import Metrics
from regard.serving.http.openapi import OpenApiRoutes
from regard.serving.http.request_handler import Application, RequestHandler
from regard.serving.http.routing import Route, RouteTable
from regard.serving.http.service import HttpLimits, Service
from regard.serving.http.tracing import NoTracing, Tracing
from regard.serving.routes.libretranslate import LibreTranslateRoutes
from regard.serving.routes.look import LookRoutes
from regard.serving.routes.native import NativeRoutes
from regard.serving.routes.open_inference import OpenInferenceRoutes
from regard.serving.routes.openai import OpenAIRoutes
from regard.serving.routes.opennmt import OpenNMTRoutes
from regard.serving.routes.operations import OperationRoutes
from regard.serving.scheduler.interfaces import BaseScheduler, ModelAdmin
from regard.studio.routes.data import StudioDataRoutes
from regard.studio.routes.long_inputs import StudioLongRoutes
from regard.studio.routes.runs import StudioRunRoutes
from regard.studio.routes.studio import StudioRoutes
from regard.studio.sources import StudioSources


class Server(Application):
    """The HTTP API of a scheduler.

    keys      API keys, one of which each request must name (`Authorization: Bearer KEY`); none: anyone may ask
    admin     loads models anew; by default none can be
    cors      the origins whose pages may ask; by default none
    hosts     the names that requests may address the server by; by default all
    limiter   counts the requests of each key; by default in this process
    studio    the data and the runs that the studio shows; None: no route of the studio is served
    paths     of the models, which the studio shows in commands; by default none
    tracing   of requests; by default none
    """

    def __init__(
        self,
        engine: BaseScheduler,
        *,
        limits: HttpLimits = HttpLimits(),  # noqa: B008  frozen
        keys: Sequence[ApiKey] = (),
        admin: ModelAdmin | None = None,
        cors: CrossOrigin | None = None,
        hosts: AllowedHosts | None = None,
        studio: StudioSources | None = StudioSources(),  # noqa: B008  frozen
        limiter: KeyLimiter | None = None,
        paths: Mapping[str, str] | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self.service, self.limits, self.keys = Service(engine, limits, admin), limits, KeyRing(keys)
        self.limiter = KeyBudgets(keys) if limiter is None else limiter
        self.cors = CrossOrigin() if cors is None else cors
        self.hosts = AllowedHosts() if hosts is None else hosts
        self.metrics = Metrics(engine)
        self.tracing = NoTracing() if tracing is None else tracing
        self.access_log = AccessLog()
        self.open = 0
        groups = (
            NativeRoutes(self.service),
            LookRoutes(self.service),
            OpenAIRoutes(self.service),
            LibreTranslateRoutes(self.service, keys=bool(keys)),
            OpenNMTRoutes(self.service),
            OpenInferenceRoutes(self.service),
            OperationRoutes(self.service, self.metrics),
        )
        routes = [route for group in groups for route in group.routes()]
        if studio is not None:
            routes += _studio_routes(self.service, studio, paths or {})
        self.table = RouteTable(
            [*routes, *OpenApiRoutes(self.service, routes, keys=bool(keys)).routes()]
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await RequestHandler(self, scope, receive, send).run()
        elif scope["type"] == "lifespan":
            await _lifespan(receive, send)


def _studio_routes(
    service: Service, studio: StudioSources, paths: Mapping[str, str]
) -> list[Route]:
    groups = (
        StudioRoutes(service, paths),
        StudioDataRoutes(service, studio.data),
        StudioRunRoutes(studio),
        StudioLongRoutes(service),
    )
    routes = [route for group in groups for route in group.routes()]
    # The page itself and its scripts need no key, and have no data that others may not see.
    return [replace(each, same_origin=each.needs_key) for each in routes]


async def _lifespan(receive: Receive, send: Send) -> None:
    while (message := await receive())["type"] == "lifespan.startup":
        await send({"type": "lifespan.startup.complete"})
    await send({"type": f"{message['type']}.complete"})
