"""Requests of many lines (NDJSON): each line is a request of the route, and its answer is a line, in the same order.

Lines are answered while others arrive: some at a time, so that memory is bounded and the queue has room for other
requests. A line that does not find room in the queue waits for it; a line that is refused becomes a line with the
problem, and the others go on.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, replace
from http import HTTPStatus

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from regard.core.errors import EngineCrashed, EngineFailed, Overloaded, RegardError, ServerStopping
from regard.serving.http.errors import RequestRefused
from regard.serving.http.routing import JSON, NDJSON, Call, Route
from regard.serving.http.usage import RequestUsage

log = logging.getLogger(__name__)
FIRST_WAIT, LONGEST_WAIT = 0.02, 1.0  # seconds until a line asks again for room in the queue


@dataclass(frozen=True)
class BulkLimits:
    """The most that one request of many lines may have at a time.

    line      bytes of a line
    lines     that are being answered, or are answered and wait for those before them
    bytes     of lines that are being answered
    seconds   in which more of the body must arrive
    """

    line: int
    lines: int
    bytes: int
    seconds: float


@dataclass(frozen=True, eq=False)
class Line:
    """A line that was answered, and whether it is the last one, because the server stops."""

    content: bytes
    last: bool = False


class BulkAnswer(Response):
    """Reads lines, has each answered by the handler of the route, and writes the answers in order.

    slots   of all such requests together: lines that may be queued or computed
    count   is called with the record of each line, for metrics
    """

    media_type = NDJSON

    def __init__(
        self,
        call: Call,
        route: Route,
        limits: BulkLimits,
        slots: asyncio.Semaphore,
        count: Callable[[RequestUsage], None],
    ) -> None:
        super().__init__()
        del self.headers["content-length"]
        self.call, self.route, self.limits, self.slots, self.count = (
            call,
            route,
            limits,
            slots,
            count,
        )
        self.tasks: set[asyncio.Task[Line]] = set()
        self.bytes = 0  # of the lines that are being answered
        self.freed = asyncio.Event()
        self.answers: asyncio.Queue[asyncio.Future[Line] | None] = asyncio.Queue(limits.lines)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        reading, writing = (
            asyncio.ensure_future(self._read(receive)),
            asyncio.ensure_future(self._write(send)),
        )
        try:
            # Reading ends when the client disconnects, writing when all lines are answered.
            await asyncio.wait({reading, writing}, return_when=asyncio.FIRST_COMPLETED)
            for ended in (reading, writing):
                if ended.done():
                    ended.result()
        finally:
            for task in (reading, writing, *self.tasks):
                task.cancel()
            await asyncio.gather(reading, writing, *self.tasks, return_exceptions=True)

    async def _write(self, send: Send) -> None:
        while (answer := await self.answers.get()) is not None:
            line = await answer
            await send(
                {"type": "http.response.body", "body": line.content + b"\n", "more_body": True}
            )
            if line.last:
                break
        await send({"type": "http.response.body", "body": b""})

    async def _read(self, receive: Receive) -> None:
        number = 0
        try:
            async for line in split_lines(self._chunks(receive), self.limits.line):
                number += 1
                await self._begin(number, line)
        except ClientDisconnect:
            return
        except RequestRefused as error:  # the body did not arrive in time
            await self.answers.put(_ready(self._problem(error, number + 1)))
        await self.answers.put(None)
        while (await receive())["type"] != "http.disconnect":
            pass

    async def _chunks(self, receive: Receive) -> AsyncGenerator[bytes, None]:
        while True:
            try:
                async with asyncio.timeout(self.limits.seconds):
                    message = await receive()
            except TimeoutError:
                told = (
                    f"body: wanted more of it within {self.limits.seconds:g} s; got nothing. "
                    "Send it faster, or end it."
                )
                raise RequestRefused(HTTPStatus.REQUEST_TIMEOUT, told) from None
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            yield message.get("body", b"")
            if not message.get("more_body", False):
                return

    async def _begin(self, number: int, line: bytes | None) -> None:
        """Answer a line as soon as there is room for it; None is one that is too long."""
        if line is None:
            message = f"line: wanted at most {self.limits.line:,} bytes; got more. Split it."
            error = RequestRefused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message)
            await self.answers.put(_ready(self._problem(error, number)))
            return
        while self.bytes and self.bytes + len(line) > self.limits.bytes:
            self.freed.clear()
            await self.freed.wait()
        await self.slots.acquire()
        self.bytes += len(line)
        task = asyncio.ensure_future(self._answer(number, line))
        self.tasks.add(task)

        def ended(task: asyncio.Task[Line]) -> None:
            self.tasks.discard(task)
            self.bytes -= len(line)
            self.freed.set()
            self.slots.release()

        task.add_done_callback(ended)
        await self.answers.put(task)

    async def _answer(self, number: int, line: bytes) -> Line:
        """The answer to a line: that of the route, or a problem."""
        wait = FIRST_WAIT
        while True:
            call = replace(
                self.call,
                id=self._id(number),
                body=line,
                content_type=JSON,
                record=RequestUsage(),
                in_bulk=True,
            )
            try:
                return Line(bytes((await self.route.handler(call)).body))
            except Overloaded:
                await asyncio.sleep(wait)
                wait = min(2 * wait, LONGEST_WAIT)
            except RegardError as error:
                return self._problem(error, number)
            except Exception as error:  # a fault of the server must not end the other lines
                log.exception("line %s failed", call.id)
                return self._problem(EngineFailed(error), number)
            finally:
                self.count(call.record)

    def _problem(self, error: RegardError, number: int) -> Line:
        body = bytes(self.route.problem(error, self._id(number)).body)
        return Line(body, last=isinstance(error, ServerStopping | EngineCrashed))

    def _id(self, number: int) -> str:
        return f"{self.call.id}-{number}"


async def split_lines(
    chunks: AsyncGenerator[bytes, None], most: int
) -> AsyncGenerator[bytes | None, None]:
    """The lines of a body, without their ends; None for one of more than `most` bytes, which is not kept."""
    kept, long = bytearray(), False
    async for chunk in chunks:
        *ended, rest = chunk.split(b"\n")
        for part in ended:
            whole = None if long or len(kept) + len(part) > most else bytes(kept + part)
            kept.clear()
            long = False
            yield whole
        long = long or len(kept) + len(rest) > most
        kept = bytearray() if long else kept + rest
    if kept or long:
        yield None if long else bytes(kept)


def _ready(line: Line) -> "asyncio.Future[Line]":
    future: asyncio.Future[Line] = asyncio.get_running_loop().create_future()
    future.set_result(line)
    return future
