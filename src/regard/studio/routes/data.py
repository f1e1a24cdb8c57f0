"""The studio's view of a data set, and of the heads of a model: measured in the background, example by example."""

import asyncio
import logging
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Annotated, Any

from msgspec import Meta, Struct
from starlette.responses import Response

from regard.core.errors import Overloaded, RegardError
from regard.serving.http.errors import RequestRefused
from regard.serving.http.routing import JSON, Call, Route
from regard.serving.http.service import Service, decoded, json_answer, query_number
from regard.serving.scheduler.async_client import AsyncClient
from regard.serving.scheduler.interfaces import ModelInfo
from regard.serving.scheduler.jobs import Work
from regard.studio.data import (
    SORTS,
    AblationStep,
    AlignmentStep,
    DataSize,
    Example,
    ExampleInputs,
    ExampleMeasurement,
    HeadsAnswer,
    HeadsOfData,
    HeadsOfInput,
    sorted_examples,
)
from regard.studio.sources import DataSet

log = logging.getLogger(__name__)
MOST_MODELS = 4  # whose measurements are kept: those that were asked for last
MOST_ROWS = 200  # of a page
IDLE_SECONDS = 60.0  # without a request, after which measuring pauses


class DataState(Struct):
    """How far a data set is measured. `total` is null until it was read; `more`: it has more than are read."""

    name: str
    total: int | None
    more: bool
    measured: int
    error: str | None


class DataPage(Struct):
    """Some of the examples that were measured, sorted."""

    data: DataState
    sort: str
    descending: bool
    first: int
    examples: list[Example]


class HeadsRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Measure heads over this input; without one, over the data that the server was started with."""

    model: str | None = None
    input: str | list[str] | None = None


class InputsRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """The inputs of these examples of the data that the server was started with."""

    model: str | None = None
    indices: Annotated[list[int], Meta(max_length=MOST_ROWS)] = []


@dataclass
class _Measurements:
    """What is known of a data set with one version of a model."""

    model: ModelInfo
    total: int | None = None
    more: bool = False
    examples: list[Example] = field(default_factory=list)
    error: str | None = None
    complete: bool = False
    asked: float = field(default_factory=time.monotonic)  # when it was asked for last
    task: "asyncio.Task[None] | None" = None


class StudioDataRoutes:
    """The routes of a data set. Its paths come from the command line, never from a request."""

    def __init__(self, service: Service, data: DataSet | None) -> None:
        self.service, self.data = service, data
        self._of_models: OrderedDict[tuple[str, str], _Measurements] = OrderedDict()

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/studio/data", self.page, "A page of the sorted examples of the data", answer=DataPage),
            Route(
                "POST", "/studio/data/inputs", self.inputs, "Inputs of the data, images as data: URLs", InputsRequest,
                example=InputsRequest,
            ),
            Route(
                "POST", "/studio/heads", self.heads, "Measured properties of all heads", HeadsRequest, HeadsAnswer,
                example=HeadsRequest,
            ),
        ]  # fmt: skip

    async def page(self, call: Call) -> Response:
        """Keys of the address: model, sort, order ("ascending" or "descending"), first, count."""
        found = self._measurements(self.service.model(call.query.get("model")))
        sort = call.query.get("sort", SORTS[0])
        descending = call.query.get("order", "ascending") == "descending"
        first, count = (
            query_number(call, "first", 0),
            min(query_number(call, "count", 50), MOST_ROWS),
        )
        examples = sorted_examples(found.examples, sort, descending=descending)
        state = DataState(str(self.data), found.total, found.more, len(found.examples), found.error)
        return json_answer(
            DataPage(state, sort, descending, first, examples[first : first + count])
        )

    async def inputs(self, call: Call) -> Response:
        asked = decoded(call.body, InputsRequest)
        model = self.service.model(asked.model)
        self._measurements(model)
        assert self.data is not None
        work = ExampleInputs("", self.data, tuple(asked.indices))
        (content,) = await self.service.engine_client(call, model).results([work])
        return Response(content, media_type=JSON)

    async def heads(self, call: Call) -> Response:
        asked = decoded(call.body, HeadsRequest)
        model = self.service.model(asked.model)
        if asked.input is not None:
            given = asked.input if isinstance(asked.input, str) else tuple(asked.input)
            work: Work = HeadsOfInput(
                given[0] if isinstance(given, tuple) and len(given) == 1 else given
            )
        else:
            found = self._measurements(model)
            assert self.data is not None
            work = HeadsOfData("", self.data, found.complete or found.error is not None)
        (content,) = await self.service.engine_client(call, model).results([work])
        return Response(content, media_type=JSON)

    def _measurements(self, model: ModelInfo) -> _Measurements:
        """Those of this version of the model, which are begun where there are none."""
        if self.data is None:
            message = "data: wanted a server that was started with data; got one without. Start it with --data."
            raise RequestRefused(HTTPStatus.NOT_FOUND, message)
        key = model.name, model.version
        found = self._of_models.setdefault(key, _Measurements(model))
        self._of_models.move_to_end(key)
        found.asked = time.monotonic()
        if found.task is None:
            found.task = asyncio.ensure_future(self._measure(found, self.data))
        while len(self._of_models) > MOST_MODELS:
            _, old = self._of_models.popitem(last=False)
            if old.task is not None:
                old.task.cancel()
        return found

    async def _measure(self, found: _Measurements, data: DataSet) -> None:
        """One job at a time, so that other requests wait for one example at most."""
        try:
            total, found.more = await self._result(found, DataSize("", data))
            found.total = total
            for index in range(total):
                found.examples.append(
                    await self._result(found, ExampleMeasurement("", data, index))
                )
            while data.alignment and await self._result(found, AlignmentStep("", data)):
                pass
            with suppress(RegardError):  # a model that gives no loss of its data
                while await self._result(found, AblationStep("", data)):
                    pass
            found.complete = True
        except RegardError as error:
            found.error = str(error)
        except Exception:
            log.exception("measuring %s with %s failed", data, found.model.name)
            found.error = "The data could not be measured; the log of the server has the reason."

    async def _result(self, found: _Measurements, work: Work) -> Any:
        while True:
            while time.monotonic() - found.asked > IDLE_SECONDS:
                await asyncio.sleep(0.5)
            try:
                client = AsyncClient(self.service.engine, found.model.name, "studio data", None)
                return (await client.results([work]))[0]
            except Overloaded:
                await asyncio.sleep(0.5)
