"""The HTTP/1.1 protocols of uvicorn, with limits for clients that never finish the headers of a request."""

import asyncio
import uuid
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

from uvicorn.protocols.http.h11_impl import H11Protocol

from regard.server.exchange import Application
from regard.server.metrics import Metrics
from regard.server.problems import SECURITY_HEADERS, RequestRefused, problem
from regard.server.records import Record

HEADER_SECONDS = 10.0
HEADER_BYTES = 1 << 16  # that wait to be parsed; an exchange refuses less, with the request's id

if TYPE_CHECKING:
    _Protocol = H11Protocol
else:
    _Protocol = object


class JoinedWrites:
    """A transport that keeps its first write until the second."""

    def __init__(self, transport: Any) -> None:
        self._transport, self._first = transport, b""

    def write(self, data: bytes) -> None:
        if self._first:
            self._transport.write(self._first + data)
            self.write = self._transport.write  # type: ignore[method-assign]
        else:
            self._first = data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class ConnectionLimits(_Protocol):
    """Closes a connection on which a request's headers take too long to arrive (slow loris), or too many bytes.

    The answers of uvicorn itself, to what is not HTTP, are made here: problems with the headers of all other answers.
    `state["requests"]` of a request's scope is the number of requests before it on the same connection, and
    `state["connection"]` the connection.
    """

    timer: asyncio.TimerHandle | None = None
    waiting: int = 0  # bytes of a request whose headers are not complete
    lost: bool = False
    watchers: set[Callable[[], None]]  # are called when the connection is lost

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.watchers = set()
        self.app_state: dict[str, Any] = {**self.app_state, "requests": 0, "connection": self}
        self._watch()

    def data_received(self, data: bytes) -> None:
        discarded = self._discarding
        super().data_received(data)
        self.waiting = (
            0 if self._answering or discarded or self._discarding else self.waiting + len(data)
        )
        if self.waiting > HEADER_BYTES:
            message = f"headers: wanted at most {HEADER_BYTES:,} bytes; got more. Send less."
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, message)
        self._watch()

    def on_message_complete(self) -> None:
        """Of httptools, which does not tell the end of a body that nobody reads any more."""
        super().on_message_complete()  # type: ignore[misc]
        self.cycle.more_body = False

    def on_response_complete(self) -> None:
        self.app_state["requests"] += 1
        super().on_response_complete()
        self._watch()

    def join_next_writes(self, scope: Any) -> None:
        """Write the head of the answer to this request and its body at once: two writes are two system calls."""
        if self.cycle.scope is scope:  # and not that of a request behind it
            self.cycle.transport = JoinedWrites(self.transport)  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)
        self.lost = True
        del self.app_state["connection"]
        for call in list(self.watchers):
            call()

    def send_400_response(self, msg: str) -> None:
        self._refuse(
            HTTPStatus.BAD_REQUEST,
            "request: wanted one of HTTP/1.1; got other bytes. Change the client.",
        )

    @property
    def _metrics(self) -> Metrics:
        return cast("Application", self.app).metrics

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _discarding(self) -> bool:
        """Whether the rest of a body arrives whose request was answered before its end."""
        return self.cycle is not None and self.cycle.response_complete and self.cycle.more_body

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        """Answer without the application, unless an answer is being sent, and close the connection."""
        if not self._answering and not self.transport.is_closing():
            refused = RequestRefused(status, message)
            self._metrics.answered("other", status.value, 0.0, Record(error=refused))
            answer = problem(refused, uuid.uuid4().hex)
            answer.headers.update({**SECURITY_HEADERS, "connection": "close"})
            lines = [b"HTTP/1.1 %d %s" % (status.value, status.phrase.encode())]
            lines += [name + b": " + value for name, value in answer.raw_headers]
            self.transport.write(b"\r\n".join([*lines, b"", bytes(answer.body)]))
        self.transport.close()

    def _watch(self) -> None:
        """Wait for the headers of the next request, unless one is being answered."""
        if self._answering or self.transport.is_closing():
            self._stop_timer()
        elif self.timer is None:
            self.timer = self.loop.call_later(HEADER_SECONDS, self._time_out)

    def _time_out(self) -> None:
        if self.waiting:  # a part of the headers
            self._metrics.rejected.labels("header_timeout").inc()
        self.transport.close()

    def _stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class H11(ConnectionLimits, H11Protocol):
    """The protocol in Python."""


def fastest() -> type[asyncio.Protocol]:
    """The protocol of httptools, which is in C, where it is installed (extra `http`)."""
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:
        return H11
    return type("HttpTools", (ConnectionLimits, HttpToolsProtocol), {})
