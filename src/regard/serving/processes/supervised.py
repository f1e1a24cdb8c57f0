"""A process that is started again when it ends."""

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress

from regard.core.errors import RegardError
from regard.serving.processes.connection import Connection
from regard.serving.processes.messages import (
    Begin,
    Close,
    Drained,
    Failed,
    Ping,
    Pong,
    Ready,
    ServerEnds,
    Start,
    ToSupervisor,
)

log = logging.getLogger(__name__)


HANG_SECONDS = 120.0  # a long forward pass, or the recording of a GPU's steps, takes less


class Backoff:
    """How long to wait before a process that ended is started again: not at all after the first time, then longer."""

    FIRST, MOST = 1.0, 30.0  # seconds
    STABLE = 60.0  # seconds of life after which earlier crashes are forgotten

    def __init__(self) -> None:
        self.crashes = 0  # in a row

    def after(self, lived: float) -> float:
        self.crashes = 1 if lived >= self.STABLE else self.crashes + 1
        return (
            0.0
            if self.crashes == 1
            else min(self.MOST, self.FIRST * 2.0 ** min(self.crashes - 2, 10))
        )


class Supervised:
    """A process of a server. It is started again when it ends, unless that is asked for, or it never became ready.

    name          for the log
    module        whose main program it is
    environment   variables that it has beside those of this process
    patience      seconds after which one that does not answer, or does nothing with its work, is ended by force
    """

    def __init__(
        self,
        name: str,
        module: str,
        start: Start,
        environment: Mapping[str, str] | None = None,
        patience: float = HANG_SECONDS,
    ) -> None:
        self.patience = patience
        self.name = name
        self.module = module
        self.start = start
        self.environment = environment or {}
        self.ready = asyncio.Event()
        self.drained = asyncio.Event()
        self.drained.set()
        self.process: asyncio.subprocess.Process | None = None
        self._connection: Connection | None = None
        self._heard = 0.0
        self._begun = False
        self._backoff = Backoff()
        self._failed: Failed | None = None
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Until `end` is called; raises where the process ends before it was ready for the first time."""
        was_ready = False
        while not self._stop.is_set():
            began = time.monotonic()
            code = await self._run_once()
            was_ready = was_ready or self.ready.is_set()
            self.ready.clear()
            if self._stop.is_set():
                return
            if not was_ready:
                raise self._start_error(code)
            delay, crashes = self._backoff.after(time.monotonic() - began), self._backoff.crashes
            again = (
                f"{crashes} times in a row, started again in {delay:g} s"
                if delay
                else "started again"
            )
            why = f" ({self._failed.message})" if self._failed is not None else ""
            log.error("%s ended with %s%s: %s", self.name, _ending(code), why, again)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), delay)

    def begin(self) -> None:
        """Let it accept connections, now and whenever it is started again."""
        self._begun = True
        if self._connection is not None:
            self._connection.send(Begin())

    def send(self, number: signal.Signals) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)

    def server_ends(self) -> None:
        """Tell it that it is not the only front end that is about to get a signal."""
        if self._connection is not None:
            self._connection.send(ServerEnds())
            self._connection.flush()  # it must have the message when it has finished its requests

    def close_socket(self) -> None:
        """Let it close the socket on which it accepts connections."""
        if self._connection is not None:
            self._connection.send(Close())

    def end(self, number: signal.Signals) -> None:
        """End the process with a signal; it is not started again."""
        self._stop.set()
        self.send(number)

    async def _run_once(self) -> int:
        """Start the process, and wait for its end; its exit code."""
        self._failed = None
        ours, theirs = socket.socketpair()
        with theirs:
            inherited = [
                theirs.fileno(),
                *([self.start.listening] if self.start.listening >= 0 else []),
            ]
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", self.module, str(theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=inherited,
                start_new_session=True,  # a terminal's signals are for the supervisor, which passes them on
                env={**os.environ, **self.environment, "PYTHONPATH": _module_paths()},
            )  # fmt: skip
        self.drained.clear()
        self._connection = Connection(*await asyncio.open_unix_connection(sock=ours), ToSupervisor)
        self._connection.send(self.start)
        if self._begun:
            self._connection.send(Begin())
        if self._stop.is_set():
            self.send(signal.SIGTERM)
        watching = asyncio.ensure_future(self._watch(self._connection))
        async for message in self._connection.messages():  # ends with the process
            if isinstance(message, Pong):
                self._heard = time.monotonic() - message.stuck
            elif isinstance(message, Ready):
                self._heard = time.monotonic()
                self.ready.set()
                if self._backoff.crashes:
                    log.info("%s is ready again", self.name)
            elif isinstance(message, Drained):
                self.drained.set()
            elif isinstance(message, Failed):
                self._failed = message
        watching.cancel()
        self._connection.close()
        self._connection = None
        code = await self.process.wait()
        self.process = None
        self.drained.set()
        return code

    async def _watch(self, connection: Connection) -> None:
        """End the process when it hangs; until this is cancelled."""
        await self.ready.wait()
        while time.monotonic() - self._heard < self.patience:
            connection.send(Ping())
            await asyncio.sleep(self.patience / 10)
        log.error("%s has not answered for %g s: it is ended", self.name, self.patience)
        self.send(signal.SIGKILL)

    def _start_error(self, code: int) -> RegardError:
        if self._failed is None:
            return RegardError(
                f"{self.name}: wanted a process that starts; got {_ending(code)}. See the log."
            )
        error = RegardError(self._failed.message)
        error.exit_code = self._failed.exit_code
        return error


def _ending(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _module_paths() -> str:
    """Where this process finds modules: a process that it starts must find the same."""
    return os.pathsep.join(each or os.getcwd() for each in sys.path)
