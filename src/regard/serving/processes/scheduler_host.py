"""The scheduler process's side of the connections to front ends: their jobs, and the keys of their requests."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec

from regard.core.errors import EngineFailed, RegardError
from regard.serving.http.keys import KeyBudgets
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
    ToEngine,
)
from regard.serving.scheduler.interfaces import BaseScheduler, ModelAdmin
from regard.serving.scheduler.jobs import Job, Result

STATE_SECONDS = 0.1  # between two looks at whether the state has changed
SIGN_SECONDS = 1.0  # after which it is sent all the same, as a sign of life


class SchedulerHost:
    """Answers front ends, each on a connection of its own. Limits of keys hold for all of them together.

    budgets   of the keys
    """

    def __init__(self, engine: BaseScheduler, admin: ModelAdmin, budgets: KeyBudgets) -> None:
        self.engine, self.admin, self.budgets = engine, admin, budgets
        self.sessions: set[Session] = set()
        self._sent: SchedulerState | None = None
        self._sent_at = 0.0

    async def listen(self, socket: str) -> asyncio.Server:
        """Accept front ends on a socket from now on."""
        return await asyncio.start_unix_server(self._connected, socket)

    async def push_states(self) -> None:
        """Keep the front ends informed, until this is cancelled."""
        while True:
            self.push_state()
            await asyncio.sleep(STATE_SECONDS)

    def state(self) -> SchedulerState:
        return SchedulerState(
            list(self.engine.model_info.values()), self.engine.ready, self.engine.stats()
        )

    def push_state(self) -> None:
        """Send the state to all front ends, where it has changed or was sent a while ago."""
        state = self.state()
        now = time.monotonic()
        if state != self._sent or now - self._sent_at >= SIGN_SECONDS:
            self._sent = state
            self._sent_at = now
            for session in self.sessions:
                session.connection.send(state)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        session = Session(self, Connection(reader, writer, ToEngine))
        self.sessions.add(session)
        try:
            await session.run()
        finally:
            self.sessions.discard(session)
            session.close()


class Session:
    """One front end: its jobs, its requests, and its questions."""

    def __init__(self, host: SchedulerHost, connection: Connection) -> None:
        self.host, self.connection = host, connection
        self.jobs: dict[int, Job] = {}
        self.entered: Counter[str] = Counter()  # requests of each key that have not ended
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        self.connection.send(self.host.state())
        async for message in self.connection.messages():
            self._receive(message)

    def close(self) -> None:
        """The front end has ended: its jobs are cancelled, its requests have left."""
        for job in list(self.jobs.values()):
            self.host.engine.cancel(job)
        for name in self.entered.elements():
            self.host.budgets.leave_name(name)
        self.connection.close()

    def _receive(self, message: Any) -> None:
        match message:
            case Submit(jobs):
                self._submit(jobs)
            case Cancel(number):
                job = self.jobs.pop(number, None)
                if job is not None:
                    self.host.engine.cancel(job)
            case Enter(number, key):
                self._reply(number, partial(self._enter, key))
            case Leave(key):
                if self.entered[
                    key
                ]:  # one that was refused and cancelled meanwhile had not entered
                    self.entered[key] -= 1
                    self.host.budgets.leave_name(key)
            case Reload(number, name):
                self._answer(number, partial(self.host.admin.reload, name))
            case AskStates(number):
                self._answer(number, self.host.admin.states)

    def _enter(self, key: str) -> None:
        self.host.budgets.enter_name(key)
        self.entered[key] += 1

    def _submit(self, messages: list[JobMessage]) -> None:
        jobs = {each.id: self._job(each) for each in messages}
        self.jobs |= jobs
        try:
            self.host.engine.submit(*jobs.values())
        except RegardError as error:
            for number, job in jobs.items():
                self.host.engine.cancel(job)
                self._end(number, error)

    def _job(self, message: JobMessage) -> Job:
        deadline = None if message.seconds is None else time.monotonic() + message.seconds
        job = Job(
            message.model,
            message.work,
            partial(self._end, message.id),
            client=message.client,
            deadline=deadline,
        )
        if message.streams:
            job.on_text = lambda piece: self.connection.send(
                Text(message.id, piece, job.usage.version)
            )
        if message.tokens:
            job.on_token = lambda token: self.connection.send(
                Text(message.id, token, job.usage.version)
            )
        return job

    def _end(self, number: int, result: Result) -> None:
        """Called in the scheduler's thread, or in the event loop where a job is refused."""
        job = self.jobs.pop(number, None)
        if job is not None:
            self.connection.send(Ended(number, packed(result), [*vars(job.usage).values()]))

    # ---- questions ----

    def _reply(self, number: int, answer: Callable[[], object]) -> None:
        try:
            self.connection.send(Reply(number, answer()))
        except RegardError as error:
            self.connection.send(Reply(number, packed(error)))

    def _answer(self, number: int, answer: Callable[[], Awaitable[object]]) -> None:
        """Of something that takes a while: other messages are received meanwhile."""

        async def answered() -> None:
            value: object
            try:
                value = msgspec.to_builtins(await answer())
            except RegardError as error:
                value = packed(error)
            except (
                Exception
            ) as error:  # a fault of ours must not leave a question without an answer
                value = packed(EngineFailed(error))
            self.host.push_state()
            self.connection.send(Reply(number, value))

        task = asyncio.ensure_future(answered())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
