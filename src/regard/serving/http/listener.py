"""Accepts connections on a socket that several processes may share, and leaves none of them without an answer."""

import asyncio
import ctypes
import errno
import logging
import socket
import ssl
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import cast

import uvicorn

from regard.serving.http import http1_protocol
from regard.serving.http.request_handler import Application

log = logging.getLogger(__name__)

EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
RETRY_SECONDS = 0.2  # until a connection is accepted again, where the system had no room for it
REPORT_SECONDS = 10.0  # between two lines of the log about that
MOST_WAITING = 4096  # connections that are accepted at the end; systems queue fewer
# In which a client that has just connected sends its request, when the server ends.
NEW_SECONDS = 1.0
HANDSHAKE_SECONDS = 0.1  # in which a TCP handshake that has begun completes, when the server ends

SO_ATTACH_FILTER = 26  # of Linux; Python's socket module does not name it
# A classic BPF program over the TCP header: drop a packet whose flags have SYN without ACK, and keep all others.
# Instructions are (code, jump if true, jump if false, operand): see linux/filter.h.
DROP_NEW_CONNECTIONS = (
    (0x30, 0, 0, 13),  # load the byte of the flags
    (0x54, 0, 0, 0x12),  # keep SYN and ACK of them
    (0x15, 0, 1, 0x02),  # SYN alone?
    (0x06, 0, 0, 0),  # drop the packet
    (0x06, 0, 0, 0xFFFFFFFF),  # keep all of it
)


async def drop_new_connections(listening: socket.socket) -> None:
    """Let the system make no new connection on this socket, in any process that has it, from the return on.

    A connection that the system makes after the last `accept` and before the socket is closed would be reset.
    A client whose first packet is dropped sends it again after a second, and is refused by then. Only Linux
    has such filters; elsewhere that moment remains, which is short.
    """
    if sys.platform != "linux":
        return
    program = b"".join(struct.pack("HBBI", *each) for each in DROP_NEW_CONNECTIONS)
    instructions = ctypes.create_string_buffer(program)
    count = len(DROP_NEW_CONNECTIONS)
    pointer = struct.pack("HP", count, ctypes.addressof(instructions))
    # Some sandboxes that look like Linux have no filters.
    with suppress(OSError):
        listening.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, pointer)
    await asyncio.sleep(HANDSHAKE_SECONDS)


class Acceptor:
    """Accepts connections, one at a time: of several processes that wait for them, each that is idle gets some.

    listening       a socket that listens; it is closed with this
    make_protocol   makes the protocol of a connection
    tls             of the server; None: connections are not encrypted
    refused         is called where the TLS handshake of a connection fails, or takes too long
    """

    def __init__(
        self,
        listening: socket.socket,
        make_protocol: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext | None,
        refused: Callable[[], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.listening = listening
        self._make_protocol = make_protocol
        self._tls = tls
        self._refused = refused
        self._beginning: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._reported = -REPORT_SECONDS
        listening.setblocking(False)
        self._loop.add_reader(listening, self._accept)

    def close(self) -> None:
        """Accept the connections that the system has made already, and no more."""
        self._loop.remove_reader(self.listening)
        left = MOST_WAITING
        while left and self._accept():
            left -= 1
        # At once after the last `accept`: a connection that is made between the two is reset.
        self.listening.close()
        if self._retry is not None:
            self._retry.cancel()

    async def wait_for_handshakes(self) -> None:
        """Wait until every connection that was accepted has its protocol, or has failed."""
        while self._beginning:
            await asyncio.wait(self._beginning)

    def _accept(self) -> bool:
        """Accept a connection. Whether there was one."""
        try:
            connection, _ = self.listening.accept()
        except (BlockingIOError, InterruptedError):  # another process was faster
            return False
        except ConnectionAbortedError:  # by its client
            return True
        except OSError as error:
            if error.errno not in EXHAUSTED:
                raise
            self._pause(error)
            return False
        connection.setblocking(False)
        task = self._loop.create_task(self._begin(connection))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)
        return True

    async def _begin(self, connection: socket.socket) -> None:
        # A client that stalls in its handshake has as much time as one that stalls in its headers.
        seconds = None if self._tls is None else http1_protocol.HEADER_SECONDS
        try:
            await self._loop.connect_accepted_socket(
                self._make_protocol,
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=seconds,
                ssl_shutdown_timeout=seconds,
            )
        except (
            OSError
        ):  # ssl.SSLError is one, and so is the error of a handshake that takes too long
            self._refused()
            connection.close()

    def _pause(self, error: OSError) -> None:
        """Connections wait until others are closed; the system keeps them."""
        self._loop.remove_reader(self.listening)
        self._retry = self._loop.call_later(
            RETRY_SECONDS, self._loop.add_reader, self.listening, self._accept
        )
        now = self._loop.time()
        if now - self._reported >= REPORT_SECONDS:
            self._reported = now
            log.error("connections wait, because the system has no room: %s. %s", error, _remedy())


class HttpServer(uvicorn.Server):
    """A server of uvicorn with another way to accept connections.

    shares_socket   whether other processes accept connections on its socket, and may go on when this one ends
    """

    _acceptors: list[Acceptor]

    def __init__(self, config: uvicorn.Config, *, shares_socket: bool = False) -> None:
        super().__init__(config)
        self.shares_socket = shares_socket

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._acceptors = []
        if sys.platform == "win32":  # its event loop knows no readers
            await super().startup(sockets)
            return
        await super().startup([])
        loop = asyncio.get_running_loop()

        def make_protocol() -> asyncio.Protocol:
            """As `uvicorn.Server` makes it."""
            return self.config.http_protocol_class(
                config=self.config,  # type: ignore[call-arg]
                server_state=self.server_state,
                app_state=self.lifespan.state,
                _loop=loop,
            )

        application = cast("Application", self.config.loaded_app)
        refused = application.metrics.rejected.labels("tls_handshake").inc
        for listening in sockets or []:
            acceptor = Acceptor(listening, make_protocol, self.config.ssl, refused)
            self._acceptors.append(acceptor)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the sockets, and then the connections: those that are new once they have sent a request."""
        if not self.shares_socket:
            for acceptor in self._acceptors:
                await drop_new_connections(acceptor.listening)
        for acceptor in self._acceptors:
            acceptor.close()
        try:
            async with asyncio.timeout(NEW_SECONDS):
                for acceptor in self._acceptors:
                    await acceptor.wait_for_handshakes()
                while not self.force_exit and any(map(_is_new, self.server_state.connections)):
                    await asyncio.sleep(0.01)
        except TimeoutError:  # they have sent nothing
            pass
        await super().shutdown(sockets if sys.platform == "win32" else [])


def _is_new(connection: object) -> bool:
    return isinstance(connection, http1_protocol.ConnectionLimits) and connection.is_new


def _remedy() -> str:
    import resource

    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f"This process may have {most} open files: raise that (ulimit -n, LimitNOFILE)."
