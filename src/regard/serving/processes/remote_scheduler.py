"""The scheduler process for a front end: a scheduler, the administration of its models, and the limits of keys."""

import asyncio
import time
from collections.abc import Mapping
from itertools import count
from typing import Any

import msgspec

from regard.core.errors import EngineRestarting, RegardError, ServerStopping
from regard.serving.http.keys import ApiKey, KeyLimiter
from regard.serving.processes.connection import Connection
from regard.serving.processes.message_types import packed
from regard.serving.processes.messages import (
    AskStates,
    Cancel,
    Ended,
    Enter,
    JobMessage,
    Leave,
    Reload,
    Reply,
    SchedulerState,
    Submit,
    Text,
    ToFrontEnd,
)
from regard.serving.scheduler.interfaces import (
    BaseScheduler,
    ModelAdmin,
    ModelInfo,
    ModelState,
    SchedulerStats,
)
from regard.serving.scheduler.jobs import Job, Result

RETRY_SECONDS = (
    5  # after which clients are asked to try again while the scheduler process is started anew
)
SILENT_SECONDS = (
    4.0  # without a sign of the scheduler process, after which other servers should be asked
)
CONNECT_SECONDS = 0.05  # between attempts to connect


class RemoteScheduler(BaseScheduler, ModelAdmin, KeyLimiter):
    """Sends jobs to a scheduler process. If that ends, its jobs end with `EngineRestarting`, and so do new ones until
    it is there again.
    """

    def __init__(self, socket: str) -> None:
        self.socket = socket
        self.began = asyncio.Event()  # the scheduler was ready once
        self._connection: Connection | None = None
        self._state = SchedulerState([], False, SchedulerStats())
        self._heard = 0.0  # when a message came from the scheduler process
        self._models: dict[str, ModelInfo] = {}
        self._numbers = count(1)
        self._jobs: dict[int, Job] = {}
        self._ids: dict[Job, int] = {}
        self._questions: dict[int, asyncio.Future[Any]] = {}
        self._accepting = True

    async def run(self) -> None:
        """Keep connected to the scheduler process, until this is cancelled."""
        while True:
            try:
                reader, writer = await asyncio.open_unix_connection(self.socket)
            except OSError:  # it is not there yet
                await asyncio.sleep(CONNECT_SECONDS)
                continue
            self._connection = Connection(reader, writer, ToFrontEnd)
            try:
                async for message in self._connection.messages():
                    self._receive(message)
            finally:
                self._connection.close()
                self._lost()

    # ---- a scheduler ----

    @property
    def model_info(self) -> Mapping[str, ModelInfo]:
        return self._models

    @property
    def ready(self) -> bool:
        heard = time.monotonic() - self._heard < SILENT_SECONDS
        return self._accepting and self._connection is not None and self._state.ready and heard

    def stats(self) -> SchedulerStats:
        return self._state.stats

    def submit(self, *jobs: Job) -> None:
        if not self._accepting:
            raise ServerStopping
        connection, messages, now = self._connected(), [], time.monotonic()
        for job in jobs:
            number = self._ids[job] = next(self._numbers)
            self._jobs[number] = job
            seconds = None if job.deadline is None else job.deadline - now
            work, streams = packed(job.work), job.on_text is not None
            messages.append(
                JobMessage(
                    number, job.model, work, job.client, seconds, streams, job.on_token is not None
                )
            )
        connection.send(Submit(messages))

    def cancel(self, job: Job) -> None:
        number = self._ids.pop(job, None)
        if (
            number is not None
            and self._jobs.pop(number, None) is not None
            and self._connection is not None
        ):
            self._connection.send(Cancel(number))

    def stop(self, seconds: float = 0.0) -> bool:
        """The scheduler process itself goes on: other front ends may have jobs there."""
        self._accepting = False
        end = time.monotonic() + seconds
        while self._jobs and time.monotonic() < end:
            time.sleep(0.005)
        left = list(self._jobs.values())
        for job in left:
            self.cancel(job)
            job.on_end(ServerStopping())
        return not left

    # ---- administration, and the limits of keys ----

    async def reload(self, name: str) -> ModelState:
        return msgspec.convert(await self._ask(Reload(next(self._numbers), name)), ModelState)

    async def states(self) -> list[ModelState]:
        return msgspec.convert(await self._ask(AskStates(next(self._numbers))), list[ModelState])

    async def enter(self, key: ApiKey) -> None:
        try:
            await self._ask(Enter(next(self._numbers), key.name))
        except asyncio.CancelledError:  # the request has ended meanwhile; messages arrive in order
            self.leave(key)
            raise

    def leave(self, key: ApiKey) -> None:
        if self._connection is not None:
            self._connection.send(Leave(key.name))
            self._connection.flush()  # before the client has the answer, and may ask another front end

    async def _ask(self, question: Enter | Reload | AskStates) -> Any:
        connection = self._connected()
        future = self._questions[question.id] = asyncio.get_running_loop().create_future()
        try:
            connection.send(question)
            return await future
        finally:
            del self._questions[question.id]

    # ---- messages ----

    def _connected(self) -> Connection:
        if self._connection is None:
            raise EngineRestarting(RETRY_SECONDS)
        return self._connection

    def _receive(self, message: Any) -> None:
        self._heard = time.monotonic()
        match message:
            case Text(number, piece, version):
                job = self._jobs.get(number)
                if job is not None and job.on_text is not None:
                    job.usage.version = version
                    if isinstance(piece, str):
                        job.on_text(piece)
                    elif job.on_token is not None:
                        job.on_token(piece)
            case Ended(number, result, usage):
                self._end(number, result, usage)
            case Reply(number, value):
                if number in self._questions:
                    _resolve(self._questions[number], value)
            case SchedulerState():
                self._state = message
                self._models = {each.name: each for each in message.models}
                if message.ready:
                    self.began.set()

    def _end(self, number: int, result: Result, usage: list[Any] | None) -> None:
        job = self._jobs.pop(number, None)
        if job is None:  # cancelled
            return
        del self._ids[job]
        if usage is not None:
            vars(job.usage).update(zip(vars(job.usage), usage, strict=True))
        job.on_end(result)

    def _lost(self) -> None:
        """The scheduler process has ended: so have its jobs."""
        self._connection = None
        for number in list(self._jobs):
            self._end(number, EngineRestarting(RETRY_SECONDS), None)
        for future in self._questions.values():
            _resolve(future, EngineRestarting(RETRY_SECONDS))


def _resolve(future: "asyncio.Future[Any]", value: Any) -> None:
    if future.done():  # cancelled
        return
    if isinstance(value, RegardError):
        future.set_exception(value)
    else:
        future.set_result(value)
