"""A process that the supervisor starts: how it gets its settings, and how it notices that the supervisor has ended."""

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable

from regard.core.errors import RegardError
from regard.core.log_output import logging_in_background, logging_to_stderr
from regard.serving.http.server import fastest_loop
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
    ToChild,
)

Work = Callable[["Child", Start], Awaitable[None]]


class Child:
    """The connection to the supervisor, in the process that it started.

    begin      set when connections may be accepted
    close      set when the socket may be closed
    orphaned   set when the supervisor has ended
    stuck      tells for how many seconds the process has done nothing although it has work
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.start: asyncio.Future[Start] = asyncio.get_running_loop().create_future()
        self.stuck: Callable[[], float] = float  # 0: a process that answers is well
        self.begin = asyncio.Event()
        self.close = asyncio.Event()
        self.orphaned = asyncio.Event()
        self._server_ends = False

    async def run(self) -> None:
        async for message in self.connection.messages():
            if isinstance(message, Start):
                self.start.set_result(message)
            elif isinstance(message, Begin):
                self.begin.set()
            elif isinstance(message, Ping):
                self.connection.send(Pong(self.stuck()))
            elif isinstance(message, ServerEnds):
                self._server_ends = True
            elif isinstance(message, Close):
                self.close.set()
        self.orphaned.set()
        self.close.set()

    def ready(self) -> None:
        self.connection.send(Ready())

    async def wait_for_close(self) -> None:
        """Return when the socket that this process shares with others may be closed.

        Where this process ends alone, the others go on accepting connections: it closes the socket at once.
        """
        if self._server_ends:
            self.connection.send(Drained())
            await self.close.wait()


async def _run(work: Work, descriptor: int) -> int:
    reader, writer = await asyncio.open_unix_connection(sock=socket.socket(fileno=descriptor))
    child = Child(Connection(reader, writer, ToChild))
    receiving = asyncio.ensure_future(child.run())
    try:
        await work(child, await child.start)
    except RegardError as error:
        child.connection.send(Failed(str(error), error.exit_code))
        await child.connection.flushed()
        return error.exit_code
    finally:
        receiving.cancel()
    return 0


def run_child(work: Work) -> None:
    """Run the work of a process, which was started with the descriptor of its connection as argument."""
    with (
        logging_to_stderr("regard: "),
        logging_in_background(),
        asyncio.Runner(loop_factory=fastest_loop()) as runner,
    ):
        code = runner.run(_run(work, int(sys.argv[1])))
    sys.exit(code)
