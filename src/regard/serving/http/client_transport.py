"""The transport of a client's connection, which neither cuts off an answer nor keeps a client that has gone."""

import asyncio
import socket
from typing import Any

# After an answer, the rest of what a client still sends is read and dropped for so long, and so much of it: a
# connection that is closed with unread data is reset, and the client loses the answer.
DISCARD_SECONDS = 30.0
DISCARD_BYTES = 32 << 20
SILENT_SECONDS = 2.0  # in which nothing arrives, after which the client has sent all

# A client that closes its sending side may have gone or may wait for its answer: only what is sent to it can tell.
FIRST_PROBE_SECONDS = 0.25
MOST_PROBE_SECONDS = 1.0
SILENT_PROBES = 2  # after which a client that cannot be probed counts as gone
CONTINUE = (
    b"HTTP/1.1 100 Continue\r\n\r\n"  # which every client of HTTP/1.1 skips, however often it comes
)


class ClientTransport:
    """A transport whose `close` lets the client read its answer first.

    expects_data   the client still sends something that nobody reads: the rest of a body, or what is no HTTP
    in_answer      a part of an answer has been written, and not yet its end
    half_closed    the client has closed its sending side, and waits for answers
    """

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self.expects_data = False
        self.in_answer = False
        self.half_closed = False
        self._closing = False
        self._discarded = 0
        self._written = False  # since the last probe
        self._timer: asyncio.TimerHandle | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._closing:
            self.in_answer = True
            self._written = True
            self._transport.write(data)

    def is_closing(self) -> bool:
        return self._closing or self._transport.is_closing()

    def close(self) -> None:
        """Close the connection: at once, or when the client has sent what it is sending."""
        if self._closing:
            return
        self._closing = True
        self._stop_timer()
        if not self.expects_data or self.half_closed or self._transport.is_closing():
            self._transport.close()
            return
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._transport.resume_reading()
        self._wait_for_silence(self._loop.time() + DISCARD_SECONDS, -1)

    def discard(self, data: bytes) -> None:
        """Drop what arrived after the last request that could be read."""
        self._discarded += len(data)
        if self._discarded > DISCARD_BYTES:
            self._transport.abort()

    def watch_reader(self, *, can_probe: bool) -> None:
        """The client has closed its sending side: from now on, find out whether it still reads.

        can_probe   whether it understands that the server asks it to go on, before an answer
        """
        if not self.half_closed:
            self.half_closed = True
            self._written = False
            self._timer = self._loop.call_later(
                FIRST_PROBE_SECONDS, self._probe, can_probe, FIRST_PROBE_SECONDS, 0
            )

    def lost(self) -> None:
        """The connection is closed."""
        self._stop_timer()

    def _probe(self, can_probe: bool, seconds: float, silent: int) -> None:
        """Write to a client that may have gone: its system resets the connection if it has."""
        connection: socket.socket = self._transport.get_extra_info("socket")
        is_reset = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0
        written = self._written
        if not written and can_probe and not self.in_answer:
            self._transport.write(CONTINUE)
            written = True
        silent = 0 if written else silent + 1
        if is_reset or silent == SILENT_PROBES:
            self._transport.abort()
            return
        self._written = False
        seconds = min(2 * seconds, MOST_PROBE_SECONDS)
        self._timer = self._loop.call_later(seconds, self._probe, can_probe, seconds, silent)

    def _wait_for_silence(self, end: float, discarded: int) -> None:
        """Close the connection when nothing has arrived since `discarded` bytes had, or at the end of the time."""
        if self._discarded == discarded or self._loop.time() >= end:
            self._transport.close()
            return
        self._timer = self._loop.call_later(
            SILENT_SECONDS, self._wait_for_silence, end, self._discarded
        )

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
