"""The studio's view of training runs: what their logs tell since a client read them last."""

from http import HTTPStatus
from pathlib import Path
from typing import Any

from msgspec import Struct
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from regard.serving.http.errors import RequestRefused
from regard.serving.http.routing import Call, Route
from regard.serving.http.service import json_answer
from regard.studio.sources import StudioSources
from regard.training.telemetry.log_file import LOG_FILE
from regard.training.telemetry.log_reader import LogPosition, event_of, new_lines
from regard.views.training_curves import CurvePoint, curve_points


class GivenSources(Struct):
    """What the server was started with: the names of the data, if any, and of the runs."""

    data: str | None
    runs: list[str]


class RunSamples(Struct):
    """Outputs of a validation, and the means of each head over their inputs (`regard.look`'s measures)."""

    step: int
    samples: list[dict[str, str]]
    heads: list[dict[str, Any]]


class RunNews(Struct):
    """What a log has after a position.

    points      of curves, as (panel, curve, step, value)
    after       the position after them, with which to ask next
    restarted   the log was cut back or replaced: what was read before is void
    complete    there is no more at the moment
    """

    points: list[CurvePoint]
    validations: list[RunSamples]
    after: str
    restarted: bool
    complete: bool


class StudioRunRoutes:
    """The routes of runs, whose folders come from the command line. Nothing in them is changed."""

    def __init__(self, studio: StudioSources) -> None:
        self.studio, self.runs = studio, studio.runs

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                "/studio/given",
                self.given,
                "The names of data and training runs",
                answer=GivenSources,
            ),
            Route(
                "GET",
                "/studio/run",
                self.news,
                "What the log of a run has after a position",
                answer=RunNews,
            ),
        ]

    async def given(self, call: Call) -> Response:
        data = self.studio.data
        return json_answer(GivenSources(None if data is None else str(data), list(self.runs)))

    async def news(self, call: Call) -> Response:
        """Keys of the address: name, and after, as the last answer gave it."""
        name = call.query.get("name", "")
        if name not in self.runs:
            message = (
                f"run: wanted one of {', '.join(self.runs) or 'none'}; got another. Choose one."
            )
            raise RequestRefused(HTTPStatus.NOT_FOUND, message)
        after = LogPosition.parse(call.query.get("after", ""))
        return json_answer(await run_in_threadpool(run_news, self.runs[name], after))


def run_news(run: Path, after: LogPosition) -> RunNews:
    """What the log of a run has after a position. A run that has logged nothing yet has no news."""
    try:
        part = new_lines(run / LOG_FILE, after)
    except FileNotFoundError:
        return RunNews([], [], str(LogPosition()), after != LogPosition(), complete=True)
    events = [event for event in map(event_of, part.lines) if event is not None]
    points = [point for event in events for point in curve_points(event)]
    validations = [
        RunSamples(event["step"], event.get("samples", []), event.get("heads", []))
        for event in events
        if event.get("event") == "validation" and isinstance(event.get("step"), int)
    ]
    return RunNews(points, validations, str(part.position), part.restarted, part.complete)
