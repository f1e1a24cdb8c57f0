"""From asyncio to the scheduler's thread and back."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar

from regard.core.errors import RegardError
from regard.serving.http.usage import RequestUsage
from regard.serving.scheduler.interfaces import BaseScheduler
from regard.serving.scheduler.jobs import Generation, Job, Work
from regard.tasks.pipeline import Output

Answered = TypeVar("Answered")


class Mailbox:
    """Calls receivers in an event loop, with values that come from other threads: many with one wake-up of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._waiting: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._scheduled = False

    def put(self, receive: Callable[[Any], None], value: object) -> None:
        self._waiting.append((receive, value))
        if not self._scheduled:  # where two threads see this, the second call finds nothing to do
            self._scheduled = True
            with suppress(
                RuntimeError
            ):  # the event loop is closed, and with it whatever awaited the value
                self.loop.call_soon_threadsafe(self._empty)

    def _empty(self) -> None:
        self._scheduled = (
            False  # before values are taken: one that comes now is taken here or by the next call
        )
        try:
            while self._waiting:
                receive, value = self._waiting.popleft()
                receive(value)
        finally:
            if self._waiting:  # a receiver has failed: the others are called all the same
                self.loop.call_soon(self._empty)


class AsyncClient:
    """Submits jobs to a scheduler and awaits their results; what is not awaited any more is cancelled.

    client    whose jobs they are
    timeout   seconds until the deadline; None: no deadline
    record    of the request: the model and the usage of each job are added to it
    mailbox   of the event loop, which requests share; by default one of its own
    """

    def __init__(
        self,
        engine: BaseScheduler,
        model: str,
        client: str,
        timeout: float | None,
        record: RequestUsage | None = None,
        mailbox: Mailbox | None = None,
    ) -> None:
        self.engine, self.model, self.client = engine, model, client
        self.record = RequestUsage() if record is None else record
        self.record.model = model
        self.deadline = None if timeout is None else time.monotonic() + timeout
        self.loop = asyncio.get_running_loop()
        self.mailbox = Mailbox(self.loop) if mailbox is None else mailbox

    @property
    def version(self) -> str:
        """Of the model that answers: known when the jobs are submitted."""
        return self.record.version

    async def results(self, works: Sequence[Work]) -> list[Any]:
        """The results of all works, in order. Where one is refused, the others are cancelled."""
        futures = [self.loop.create_future() for _ in works]
        jobs = [self._job(work, future) for work, future in zip(works, futures, strict=True)]
        try:
            self.engine.submit(*jobs)
            return [await futures[0]] if len(futures) == 1 else list(await asyncio.gather(*futures))
        finally:
            self._cancel(jobs, futures)

    async def streams(
        self, works: Sequence[Generation]
    ) -> AsyncGenerator[tuple[int, str | list[Output]], None]:
        """The pieces of each output's text and then its outputs, with the index of the work."""
        futures: list[asyncio.Future[list[Output]]] = [self.loop.create_future() for _ in works]
        jobs = [self._job(work, future) for work, future in zip(works, futures, strict=True)]
        items: asyncio.Queue[tuple[int, str | None]] = (
            asyncio.Queue()
        )  # no more than the outputs have tokens

        def put(index: int, piece: object) -> None:
            items.put_nowait((index, piece if isinstance(piece, str) else None))

        for index, (job, future) in enumerate(zip(jobs, futures, strict=True)):
            job.on_text = self._in_loop(partial(put, index))
            future.add_done_callback(partial(put, index))
        try:
            self.engine.submit(*jobs)
            left = len(jobs)
            while left:
                index, piece = await items.get()
                left -= piece is None
                yield index, await futures[index] if piece is None else piece
        finally:
            self._cancel(jobs, futures)

    async def tokens(self, work: Generation) -> AsyncGenerator[int | list[Output], None]:
        """The id of each token as it is generated, and then the outputs."""
        future: asyncio.Future[list[Output]] = self.loop.create_future()
        job, items = self._job(work, future), asyncio.Queue[int | None]()
        job.on_text, job.on_token = (lambda text: None), self._in_loop(items.put_nowait)
        future.add_done_callback(lambda ended: items.put_nowait(None))
        try:
            self.engine.submit(job)
            while (token := await items.get()) is not None:
                yield token
            yield await future
        finally:
            self._cancel([job], [future])

    def _cancel(self, jobs: Sequence[Job], futures: Sequence["asyncio.Future[Any]"]) -> None:
        """Cancel the jobs that have no result. An error that is not awaited any more is not logged by asyncio."""
        for job, future in zip(jobs, futures, strict=True):
            if not future.done() or future.cancelled() or future.exception() is not None:
                self.engine.cancel(job)
                future.cancel()

    def _job(self, work: Work, future: "asyncio.Future[Any]") -> Job:
        def end(result: Any) -> None:
            if isinstance(result, RegardError):
                self.record.error = result
            elif not isinstance(result, BaseException):
                self.record.answered += 1
            if future.done():  # cancelled
                return
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)

        job = Job(self.model, work, self._in_loop(end), client=self.client, deadline=self.deadline)
        self.record.usages.append(job.usage)
        self.record.submitted = (
            job.submitted if self.record.submitted is None else self.record.submitted
        )
        return job

    def _in_loop(self, receive: Callable[[Any], None]) -> Callable[[Any], None]:
        return partial(self.mailbox.put, receive)


class ClientConnection(Protocol):
    """The connection of a client, as a protocol of this server keeps it.

    lost       whether it is closed
    watchers   are called when it is
    """

    lost: bool
    watchers: set[Callable[[], None]]

    def read_on(self) -> None:
        """Read what the client sends, also where a large body has paused that: otherwise nobody sees it leave."""

    def join_next_writes(self, scope: Any) -> None:
        """Write the head of the answer to this request together with its body."""


async def unless_disconnected(
    receive: Callable[[], Any],
    work: Awaitable[Answered],
    connection: ClientConnection | None = None,
) -> Answered | None:
    """The result of work that is awaited here; None where the client disconnects first: the work is then cancelled.

    Without the connection, as behind another server, a task waits for the message that says so.
    """
    working, gone = asyncio.current_task(), False
    assert working is not None

    def lost() -> None:
        nonlocal gone
        gone = True
        working.cancel()

    async def disconnected() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        lost()

    watch = None
    if connection is None:
        watch = asyncio.ensure_future(disconnected())
    else:
        connection.watchers.add(lost)
        connection.read_on()
        if connection.lost:
            lost()
    try:
        return await work
    except asyncio.CancelledError:
        if not gone or working.uncancel():  # it was cancelled by another
            raise
        return None
    finally:
        if watch is not None:
            watch.cancel()
        if connection is not None:
            connection.watchers.discard(lost)
