"""From asyncio to the engine's thread and back."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from regard.inference.pipelines import Output
from regard.server.engine import Engine
from regard.server.jobs import Generation, Job, Scoring

Answered = TypeVar("Answered")


class EngineClient:
    """Submits jobs to an engine and awaits their results; what is not awaited any more is cancelled.

    client    whose jobs they are
    timeout   seconds until the deadline; None: no deadline
    """

    def __init__(self, engine: Engine, model: str, client: str, timeout: float | None) -> None:
        self.engine, self.model, self.client = engine, model, client
        self.deadline = None if timeout is None else time.monotonic() + timeout
        self.loop = asyncio.get_running_loop()

    async def results(self, works: Sequence[Generation | Scoring]) -> list[Any]:
        """The results of all works, in order. Where one is refused, the others are cancelled."""
        futures = [self.loop.create_future() for _ in works]
        jobs = [self._job(work, future) for work, future in zip(works, futures, strict=True)]
        try:
            for job in jobs:
                self.engine.submit(job)
            return list(await asyncio.gather(*futures))
        finally:
            for job, future in zip(jobs, futures, strict=True):
                if not future.done() or future.cancelled() or future.exception() is not None:
                    self.engine.cancel(job)

    async def stream(self, work: Generation) -> AsyncGenerator[str | list[Output], None]:
        """The pieces of the output's text, and then its outputs."""
        future: asyncio.Future[list[Output]] = self.loop.create_future()
        pieces: asyncio.Queue[str | None] = asyncio.Queue()  # no longer than the longest output
        job = self._job(work, future)
        job.on_text = self._in_loop(pieces.put_nowait)
        future.add_done_callback(lambda _: pieces.put_nowait(None))
        try:
            self.engine.submit(job)
            while (piece := await pieces.get()) is not None:
                yield piece
            yield await future
        finally:
            self.engine.cancel(job)

    def _job(self, work: Generation | Scoring, future: "asyncio.Future[Any]") -> Job:
        def end(result: Any) -> None:
            if future.done():  # cancelled
                return
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)

        return Job(self.model, work, self._in_loop(end), client=self.client, deadline=self.deadline)

    def _in_loop(self, receive: Callable[[Any], None]) -> Callable[[Any], None]:
        def called(value: Any) -> None:
            with suppress(RuntimeError):  # the event loop is closed, and with it whatever awaited the result
                self.loop.call_soon_threadsafe(receive, value)

        return called


async def unless_disconnected(receive: Callable[[], Any], work: "asyncio.Task[Answered]") -> Answered | None:
    """The result of a task; None where the client disconnects first: the task is then cancelled."""

    async def disconnected() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    watch = asyncio.ensure_future(disconnected())
    try:
        await asyncio.wait({watch, work}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        return None
    finally:
        for task in (watch, work):
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):  # an error of the work was raised above
                await task
