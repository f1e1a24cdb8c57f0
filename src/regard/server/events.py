"""Server-sent events: an output piece by piece."""

import asyncio
from collections.abc import AsyncGenerator

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from regard.inference.pipelines import Output
from regard.server.bridge import unless_disconnected
from regard.server.wire import OutputAnswer

Items = AsyncGenerator[str | list[Output], None]  # pieces of a text, and then its outputs


class EventStream(Response):
    """An output as server-sent events: an event for each piece of its text, and one with the whole at the end."""

    media_type = "text/event-stream"

    def __init__(self, items: Items, first: str | list[Output], tokens: bool) -> None:
        super().__init__()
        del self.headers["content-length"]
        self.items, self.first, self.tokens = items, first, tokens

    @staticmethod
    async def begin(items: Items, *, tokens: bool) -> "EventStream":
        """Waits for the first piece: a request that is refused has no stream, but a status."""
        return EventStream(items, await anext(items), tokens)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def write() -> None:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await self._event(send, self.first)
            async for item in self.items:
                await self._event(send, item)
            await send({"type": "http.response.body", "body": b""})

        try:
            await unless_disconnected(receive, asyncio.ensure_future(write()))
        finally:
            await self.items.aclose()

    async def _event(self, send: Send, item: str | list[Output]) -> None:
        if isinstance(item, str):
            data = msgspec.json.encode({"text": item})
        else:
            data = msgspec.json.encode({"outputs": [OutputAnswer.of(each, tokens=self.tokens) for each in item]})
        await send({"type": "http.response.body", "body": b"data: " + data + b"\n\n", "more_body": True})
