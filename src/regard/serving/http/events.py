"""Server-sent events: an answer piece by piece."""

from collections.abc import AsyncGenerator

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from regard.core.errors import RegardError
from regard.serving.http.errors import problem_document
from regard.serving.scheduler.async_client import unless_disconnected

Events = AsyncGenerator[bytes, None]


def event(data: object) -> bytes:
    """One event, of JSON."""
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


class EventStream(Response):
    """Server-sent events, each as soon as it is there. When the client disconnects, what makes them is closed.

    An error after the first event is the last one: `{"error": PROBLEM}`.
    """

    media_type = "text/event-stream"

    def __init__(self, events: Events, first: bytes) -> None:
        super().__init__()
        del self.headers["content-length"]
        self.events, self.first = events, first

    @staticmethod
    async def begin(events: Events) -> "EventStream":
        """Waits for the first event: a request that is refused has no stream, but a status."""
        return EventStream(events, await anext(events))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def write() -> None:
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            await send({"type": "http.response.body", "body": self.first, "more_body": True})
            try:
                async for each in self.events:
                    await send({"type": "http.response.body", "body": each, "more_body": True})
            except RegardError as error:
                last = event({"error": problem_document(error, scope["state"]["id"])})
                await send({"type": "http.response.body", "body": last, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

        try:
            await unless_disconnected(receive, write())
        finally:
            await self.events.aclose()
