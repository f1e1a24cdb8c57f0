"""The description of the API (OpenAPI 3.1), made from its routes and their types, and a page to try it on."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import msgspec
from starlette.responses import Response

from regard.core.version import __version__
from regard.generation.config import DecodeConfig
from regard.serving.http.errors import MEDIA_TYPE
from regard.serving.http.routing import FORM, JSON, NDJSON, Call, Route
from regard.serving.http.schemas import FILE_KEYS, Problem
from regard.serving.http.service import TEXT, TIMEOUT, Service, example_input, json_answer
from regard.serving.http.static_files import page_file
from regard.serving.scheduler.interfaces import ModelInfo

REFERENCE = "#/components/schemas/{name}"
PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
PAGE = ("regard.studio", "app/api_docs")
OPTIONS = {each.name: each.metadata["doc"] for each in fields(DecodeConfig)}
Table = dict[str, Any]


class OpenApiRoutes:
    """others   all other routes
    keys     whether clients must name a key
    """

    def __init__(self, service: Service, others: Sequence[Route], *, keys: bool) -> None:
        self.service, self.keys = service, keys
        self.described = [*others, *self.routes()]

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/openapi.json", self.describe, "This description"),
            Route("GET", "/docs", self.page, "A page to try the API on", needs_key=False),
            Route(
                "GET", "/docs/{file}", self.file, "Scripts and styles of the page", needs_key=False
            ),
        ]

    async def describe(self, call: Call) -> Response:
        return json_answer(
            document(self.described, list(self.service.engine.model_info.values()), keys=self.keys)
        )

    async def page(self, call: Call) -> Response:
        return page_file(*PAGE, "index.html")

    async def file(self, call: Call) -> Response:
        return page_file(*PAGE, call.parameters["file"])


def document(routes: Sequence[Route], models: Sequence[ModelInfo], *, keys: bool) -> Table:
    """The OpenAPI document of these routes; examples name these models."""
    types = [
        each
        for route in routes
        for each in (route.request, route.answer, route.error)
        if each is not None
    ]
    found, components = msgspec.json.schema_components(types, ref_template=REFERENCE)
    schemas = list(zip(types, found, strict=True))

    def schema(wanted: object) -> Table:
        return next(one for each, one in schemas if each == wanted)

    for component in components.values():
        for name, entry in component.get("properties", {}).items():
            if name in OPTIONS:
                entry.setdefault("description", OPTIONS[name])
    paths: dict[str, Table] = {}
    for route in routes:
        operation = _operation(route, models, schema, keys=keys)
        paths.setdefault(PARAMETER.sub(r"{\1}", route.path), {})[route.method.lower()] = operation
    described: Table = {"schemas": components}
    if keys:
        described["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Regard",
            "version": __version__,
            "description": "Trained attention models over HTTP.",
        },
        "tags": [{"name": name} for name in dict.fromkeys(map(_tag, routes))],
        "paths": paths,
        "components": described,
    }


def _tag(route: Route) -> str:
    """The group that a route belongs to, by the name of the class that answers it."""
    return type(getattr(route.handler, "__self__", route)).__name__.removesuffix("Routes")


def _operation(
    route: Route, models: Sequence[ModelInfo], schema: Callable[[object], Table], *, keys: bool
) -> Table:
    error_type = MEDIA_TYPE if route.error is Problem else JSON
    error = {"content": {error_type: {"schema": schema(route.error)}}}
    answer: Table = {} if route.answer is None else {JSON: {"schema": schema(route.answer)}}
    answer |= {
        each: {"schema": {"type": "string", "format": "binary"}} for each in route.other_answers
    }
    if NDJSON in route.accepts:
        answer[NDJSON] = {"schema": {"type": "string"}}
    if "stream" in _properties(route.request):
        answer["text/event-stream"] = {"schema": {"type": "string"}}
    operation: Table = {
        "summary": route.summary,
        "operationId": f"{route.method.lower()}_{re.sub('[^a-z0-9]+', '_', route.path.lower()).strip('_')}",
        "tags": [_tag(route)],
        "responses": {
            "200": {"description": "The answer", **({"content": answer} if answer else {})},
            "4XX": {"description": "A request that is refused", **error},
            "429": {
                "description": "The queue is full, or a key has asked too often",
                "headers": {
                    "retry-after": {"description": "Seconds to wait", "schema": {"type": "integer"}}
                },
                **error,
            },
            "5XX": {"description": "The server failed, stops, or the time is over", **error},
        },
    }
    parameters: list[Table] = []
    if route.method == "POST" and not route.admin:
        of = "milliseconds after which the request ends with status 504; where the body has timeout_ms too, the less"
        parameters.append(
            {"name": TIMEOUT, "in": "header", "description": of, "schema": {"type": "integer"}}
        )
    if names := PARAMETER.findall(route.path):
        first = models[0] if models else ModelInfo("model", "version")
        values = {"name": first.name, "model": first.name, "version": first.version}
        parameters += [
            {
                "name": name,
                "in": "path",
                "required": True,
                "schema": {"type": "string"},
                **_example(values.get(name)),
            }
            for name in names
        ]
    if parameters:
        operation["parameters"] = parameters
    if route.request is not None:
        body = {"schema": schema(route.request), "example": _body(route, models)}
        forms = {FORM: {"schema": _form(route.request)}} if FORM in route.accepts else {}
        operation["requestBody"] = {
            "required": True,
            "content": dict.fromkeys(route.accepts, body) | forms,
        }
    elif route.method == "POST":
        operation["requestBody"] = {
            "required": True,
            "content": {each: {} for each in route.accepts},
        }
    if keys:
        operation["security"] = [{"key": []}] if route.needs_key else []
    return operation


def _form(request: object) -> Table:
    """The keys of a JSON body as fields of a form: texts, or JSON; images and arrays as files."""
    fields: Table = {name: {"type": "string"} for name in _properties(request)}
    files = {
        "type": "array",
        "items": {"type": "string", "contentMediaType": "application/octet-stream"},
    }
    return {"type": "object", "properties": {**fields, **dict.fromkeys(FILE_KEYS, files)}}


def _example(value: str | None) -> Table:
    return {} if value is None else {"example": value}


def _body(route: Route, models: Sequence[ModelInfo]) -> object:
    """A body for a route: its own example, or its required fields; a model is named where there are several."""
    if route.example is not None:
        return route.example()
    required = {name for name, default in _properties(route.request).items() if default is ...}
    if len(models) > 1 and "model" in _properties(route.request):
        required.add("model")
    first = models[0] if models else None
    named = "model" if first is None else first.name
    values: Mapping[str, object] = {"model": named, "name": "model", "input": example_input(first)}
    return {name: values.get(name, TEXT) for name in _properties(route.request) if name in required}


def _properties(wanted: object) -> dict[str, object]:
    """The names of a structure's fields in JSON, with their defaults; `...` for one that is required."""
    if not (isinstance(wanted, type) and issubclass(wanted, msgspec.Struct)):
        return {}
    return {
        each.encode_name: ... if each.required else each.default
        for each in msgspec.structs.fields(wanted)
    }
