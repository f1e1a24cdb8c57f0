"""The studio's view of long inputs: an input is opened once, then tiles and rows of its maps are asked for."""

from msgspec import Struct
from starlette.responses import Response

from regard.serving.http.routing import JSON, Call, Route
from regard.serving.http.service import TEXT, Service, decoded, query_number
from regard.serving.scheduler.jobs import Work
from regard.studio.long_inputs import (
    LongInput,
    LongOverview,
    LongRow,
    OpenLongInput,
    OverviewStep,
    RowOfMap,
    TileOfMap,
)

BYTES = "application/octet-stream"


class OpenRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """A text, or one for each source."""

    input: str | list[str]
    model: str | None = None


class StudioLongRoutes:
    def __init__(self, service: Service) -> None:
        self.service = service

    def routes(self) -> list[Route]:
        at = "/studio/long/{id}"
        return [
            Route(
                "POST", "/studio/long", self.open, "Open a long input: its maps, without weights", OpenRequest,
                LongInput, example=lambda: OpenRequest(input=TEXT),
            ),
            Route("GET", f"{at}/tile", self.tile, "A tile of a map: float32, the largest weight below each point"),
            Route("GET", f"{at}/overview", self.overview, "Compute a strip of a head's overview", answer=LongOverview),
            Route("GET", f"{at}/row", self.row, "The largest weights of a row", answer=LongRow),
        ]  # fmt: skip

    async def open(self, call: Call) -> Response:
        asked = decoded(call.body, OpenRequest)
        given = asked.input if isinstance(asked.input, str) else tuple(asked.input)
        work = OpenLongInput(given[0] if isinstance(given, tuple) and len(given) == 1 else given)
        return await self._answer(call, asked.model, work, JSON)

    async def tile(self, call: Call) -> Response:
        """Keys of the address: model, map, head, level, row, column."""
        numbers = (query_number(call, name) for name in ("head", "level", "row", "column"))
        return await self._answer(
            call, call.query.get("model"), TileOfMap(*_of_map(call), *numbers), BYTES
        )

    async def overview(self, call: Call) -> Response:
        """Keys of the address: model, map, head. To be asked for until it is complete."""
        work = OverviewStep(*_of_map(call), query_number(call, "head"))
        return await self._answer(call, call.query.get("model"), work, JSON)

    async def row(self, call: Call) -> Response:
        """Keys of the address: model, map, head, row."""
        work = RowOfMap(*_of_map(call), query_number(call, "head"), query_number(call, "row"))
        return await self._answer(call, call.query.get("model"), work, JSON)

    async def _answer(self, call: Call, model: str | None, work: Work, media_type: str) -> Response:
        (content,) = await self.service.engine_client(call, self.service.model(model)).results(
            [work]
        )
        return Response(content, media_type=media_type)


def _of_map(call: Call) -> tuple[str, str]:
    return call.parameters["id"], call.query.get("map", "")
