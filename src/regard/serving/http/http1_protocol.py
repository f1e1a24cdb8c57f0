"""The HTTP/1.1 protocols of uvicorn, with limits for clients that never finish the headers of a request.

They add to classes of uvicorn and use attributes of these, which other versions of uvicorn may name otherwise: the
extra `serve` bounds its version above, and the tests of connections run with both parsers.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

from uvicorn.protocols.http.h11_impl import H11Protocol

from regard.serving.http.client_transport import ClientTransport
from regard.serving.http.errors import SECURITY_HEADERS, RequestRefused, problem
from regard.serving.http.request_handler import MALFORMED, Application, refusal_line
from regard.serving.http.usage import RequestUsage

HEADER_SECONDS = 10.0
HEADER_BYTES = 1 << 16  # that wait to be parsed; an exchange refuses less, with the request's id

# Warnings of uvicorn about malformed requests name no client: the access log has a line for each of them instead.
uvicorn_log = logging.getLogger("regard.serving.uvicorn")
uvicorn_log.setLevel(logging.ERROR)

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
    Requests that arrived before are answered first. A client that has closed its sending side gets its answers, and
    one that still sends a body that was refused can read why.
    `state["requests"]` of a request's scope is the number of requests before it on the same connection, and
    `state["connection"]` the connection.
    """

    timer: asyncio.TimerHandle | None = None
    waiting: int = 0  # bytes of a request whose headers are not complete
    lost: bool = False
    malformed: bool = False  # nothing that arrives from now on can be understood
    watchers: set[Callable[[], None]]  # are called when the connection is lost

    def connection_made(self, transport: Any) -> None:
        self.logger = uvicorn_log
        super().connection_made(ClientTransport(transport, self.loop))  # type: ignore[arg-type]
        self.watchers = set()
        self.app_state: dict[str, Any] = {**self.app_state, "requests": 0, "connection": self}
        self._watch()

    @property
    def client_transport(self) -> ClientTransport:
        return cast("ClientTransport", self.transport)

    def data_received(self, data: bytes) -> None:
        if self.malformed or self.transport.is_closing():
            self.client_transport.discard(data)
            return
        discarded = self._discarding
        super().data_received(data)
        self.waiting = (
            0 if self._answering or discarded or self._discarding else self.waiting + len(data)
        )
        if self.waiting > HEADER_BYTES:
            message = f"headers: wanted at most {HEADER_BYTES:,} bytes; got more. Send less."
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, message)
        self._expect_rest_of_body()
        self._watch()

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends nothing more. Whether the connection stays open, because answers are due."""
        encrypted = self.transport.get_extra_info("ssl_object") is not None
        if encrypted or self.transport.is_closing() or not self._owes_answer:
            return False
        self.client_transport.watch_reader(can_probe=self.scope["http_version"] == "1.1")
        return True

    def on_response_complete(self) -> None:
        self.app_state["requests"] += 1
        self.client_transport.in_answer = False
        super().on_response_complete()
        self._expect_rest_of_body()
        if self.malformed and not self._answering:
            self._refuse_malformed()
        if self.client_transport.half_closed and not self._owes_answer:
            self.transport.close()
        self._watch()

    def shutdown(self) -> None:
        """Close the connection as soon as its requests are answered; uvicorn calls this when the server ends."""
        if not self.transport.is_closing():
            super().shutdown()

    def read_on(self) -> None:
        """Read what the client sends: uvicorn pauses at a large part of a body until more of the body is wanted."""
        if not self.transport.is_closing():
            self.flow.resume_reading()

    def join_next_writes(self, scope: Any) -> None:
        """Write the head of the answer to this request and its body at once: two writes are two system calls."""
        if self.cycle.scope is scope:  # and not that of a request behind it
            self.cycle.transport = JoinedWrites(self.transport)  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self.client_transport.lost()
        super().connection_lost(exc)
        self.lost = True
        del self.app_state["connection"]
        for call in list(self.watchers):
            call()

    def send_400_response(self, msg: str) -> None:
        """Refuse what arrived, which is no HTTP/1.1, once the requests before it are answered."""
        self.malformed = True
        if self._answering and self.cycle.more_body:
            # The error is in the body of this request: its body ends here, and the application refuses it.
            self.cycle.scope["state"][MALFORMED] = True
            self.cycle.more_body = False
            self.cycle.keep_alive = False
            self.cycle.message_event.set()
        elif not self._answering:
            self._refuse_malformed()

    def _refuse_malformed(self) -> None:
        if self._discarding:  # the request was answered before its end
            self.transport.close()
        else:
            self._refuse(HTTPStatus.BAD_REQUEST, "Malformed HTTP/1.1 request.")

    @property
    def is_new(self) -> bool:
        """Whether no request has arrived yet."""
        return self.cycle is None and not self.transport.is_closing()

    @property
    def _application(self) -> Application:
        return cast("Application", self.app)

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _owes_answer(self) -> bool:
        """Whether a request that has arrived whole is not yet answered."""
        return self._answering and not self.cycle.more_body

    @property
    def _discarding(self) -> bool:
        """Whether the rest of a body arrives whose request was answered before its end."""
        return self.cycle is not None and self.cycle.response_complete and self.cycle.more_body

    def _expect_rest_of_body(self) -> None:
        self.client_transport.expects_data = self.cycle is not None and self.cycle.more_body

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        """Answer without the application, unless an answer is being sent, and close the connection."""
        if not self._answering and not self.transport.is_closing():
            refused = RequestRefused(status, message, detail=message)
            request_id = uuid.uuid4().hex
            self._application.metrics.answered(
                "other", status.value, 0.0, RequestUsage(error=refused)
            )
            client = str(self.client[0]) if self.client else ""
            self._application.access_log.add(refusal_line(request_id, client, refused))
            answer = problem(refused, request_id)
            answer.headers.update({**SECURITY_HEADERS, "connection": "close"})
            lines = [b"HTTP/1.1 %d %s" % (status.value, status.phrase.encode())]
            lines += [name + b": " + value for name, value in answer.raw_headers]
            self.transport.write(b"\r\n".join([*lines, b"", bytes(answer.body)]))
            self.client_transport.expects_data = True
        self.transport.close()

    def _watch(self) -> None:
        """Wait for the headers of the next request, unless one is being answered."""
        if self._answering or self.transport.is_closing():
            self._stop_timer()
        elif self.timer is None:
            self.timer = self.loop.call_later(HEADER_SECONDS, self._time_out)

    def _time_out(self) -> None:
        if self.waiting:  # a part of the headers
            self._application.metrics.rejected.labels("header_timeout").inc()
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
        from regard.serving.http.httptools_protocol import HttpToolsWithoutUpgrades
    except ImportError:
        return H11
    return type("HttpTools", (ConnectionLimits, HttpToolsWithoutUpgrades), {})
