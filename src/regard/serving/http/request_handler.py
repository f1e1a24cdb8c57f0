"""One request and its answer: limits, keys, errors, metrics and the access log, alike for all routes."""

import asyncio
import logging
import os
import random
import re
import time
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from regard.core.errors import EngineFailed, Overloaded, RegardError
from regard.core.sanitize import printable
from regard.serving.http.access_log import AccessLog
from regard.serving.http.bulk import BulkAnswer
from regard.serving.http.cors import CrossOrigin
from regard.serving.http.errors import SECURITY_HEADERS, RequestRefused, problem, rejection
from regard.serving.http.hosts import AllowedHosts, from_another_origin
from regard.serving.http.keys import ApiKey, Client, KeyLimiter, KeyRing
from regard.serving.http.metrics import Metrics
from regard.serving.http.routing import JSON, NDJSON, Call, Route, RouteTable
from regard.serving.http.service import HttpLimits, Service
from regard.serving.http.tracing import Tracing
from regard.serving.http.usage import RequestUsage
from regard.serving.scheduler.async_client import unless_disconnected

log = logging.getLogger(__name__)
HEADER_BYTES = 1 << 15
REQUESTS = 1000  # on one connection, after which it is closed: connections spread over several servers in time
MOST_LARGE_BODIES = 16  # in memory, of more than `limits.body` each
ALWAYS = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]
IDS = random.Random(os.urandom(32))  # of requests: to ask the system for each takes longer
HTTP_VERSIONS = ("1.0", "1.1", "2", "3")  # 2 and 3 where another server runs the application
LENGTH_DIGITS = 20  # more than those of any length in bytes
MALFORMED = "malformed"  # in the state of a request whose chunks are malformed
# What the form of a page can send to another origin without asking (a browser's "simple" types).
FORM_TYPES = ("", "application/x-www-form-urlencoded", "multipart/form-data", "text/plain")
REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


class Application:
    """What an exchange needs of the application that it belongs to."""

    limits: HttpLimits
    keys: KeyRing
    limiter: KeyLimiter
    cors: CrossOrigin
    hosts: AllowedHosts
    metrics: Metrics
    access_log: AccessLog
    tracing: Tracing
    open: int  # requests that are being answered
    table: RouteTable
    service: Service


class RequestHandler:
    """One request and its answer: let in or refused, answered or cancelled, counted and logged."""

    def __init__(self, server: Application, scope: Scope, receive: Receive, send: Send) -> None:
        self.server = server
        self.scope = scope
        self._receive = receive
        self._send = send
        given_headers: list[tuple[bytes, bytes]] = [*scope["headers"]]
        # Of a header that is given twice, the first counts.
        self.headers = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in reversed(given_headers)
        }
        given = self.headers.get("x-request-id", "")
        self.id = given if given and REQUEST_ID.fullmatch(given) else f"{IDS.getrandbits(128):032x}"
        state = scope.setdefault("state", {})
        state["id"] = self.id
        self.connection = state.pop(
            "connection", None
        )  # which has the scope: together they would be garbage
        self.route: Route | None = None
        address = str((scope.get("client") or ("",))[0])
        self.client = Client(address, admin=False)  # until its key is known
        self.entered: ApiKey | None = None  # counted among the requests of its key
        self.record, self.status, self.complete = RequestUsage(), 0, False
        self.content: bytes | None = None  # of the body
        self.large = False  # counted among the large bodies
        self.broken_off = False  # all of the body that arrived before an error was read
        self.began = time.monotonic()
        self.trace = server.tracing.begin(self.headers)

    async def run(self) -> None:
        self.server.open += 1
        try:
            await self._run()
        finally:
            self.server.service.large_bodies -= self.large
            self._leave()
            try:
                self._count(time.monotonic() - self.began)
            finally:
                self.server.open -= 1  # last: a server that drains ends when no request is open, with all lines logged

    def _leave(self) -> None:
        """Count the request no longer among those of its key."""
        if self.entered is not None:
            self.server.limiter.leave(self.entered)
            self.entered = None

    def _count(self, seconds: float) -> None:
        """Add to the metrics, and write a line of the log. A client that got a part of a stream has disconnected."""
        if not self.complete:
            self._add_to_metrics(seconds)
        self.trace.end(
            self.scope["method"],
            self._path,
            self.status if self.complete else 0,
            self.id,
            self.record,
        )
        self.server.access_log.add(msgspec.json.encode(self._log_fields(seconds)).decode())

    @property
    def _path(self) -> str:
        return "other" if self.route is None else self.route.path

    def _add_to_metrics(self, seconds: float) -> None:
        if self.complete:
            self.server.metrics.answered(self._path, self.status, seconds, self.record)
        else:
            self.server.metrics.disconnected(self._path, self.record)

    async def _run(self) -> None:
        try:
            response = await self._answer()
        except RegardError as error:
            response = self._problem(error)
        except ClientDisconnect:
            response = None
        except (
            Exception
        ) as error:  # a fault of the server must not end the connection without an answer
            log.exception("request %s failed", self.id)
            response = self._problem(EngineFailed(error))
        if response is not None:
            with suppress(OSError, ClientDisconnect):  # the client has gone
                await response(self.scope, self.receive, self.send)

    def _problem(self, error: RegardError) -> Response:
        """The answer to an error, in the format of the route."""
        self.record.error = error
        return (problem if self.route is None else self.route.problem)(error, self.id)

    def _log_fields(self, seconds: float) -> dict[str, Any]:
        fields = {
            "time": _now(),
            "id": self.id,
            "method": self.scope["method"],
            "path": printable(self.scope["path"])[:200],
            "status": self.status if self.complete else "cancelled",
            "seconds": round(seconds, 4),
            "client": self.client.name,
            **self.record.log_fields(),
        }
        if self.record.error is not None:
            fields["error"] = rejection(self.record.error) or type(self.record.error).__name__
            if isinstance(self.record.error, RequestRefused) and self.record.error.detail:
                fields["detail"] = self.record.error.detail
        return fields

    async def receive(self) -> Any:
        """The next part of the request; refused where its body breaks off."""
        if self.broken_off:
            self.broken_off = False  # after it, only the end of the connection is awaited
            self._refuse_malformed_body()
        message = await self._receive()
        if message["type"] == "http.request" and self._is_malformed:
            self.broken_off = not message.get("more_body", False)
            message["more_body"] = True  # what arrived before the error is read first
        return message

    @property
    def _is_malformed(self) -> bool:
        return bool(self.scope["state"].get(MALFORMED, False))

    def _refuse_malformed_body(self) -> None:
        message = "The body breaks off: the size of a chunk or its end is malformed."
        close = {"connection": "close"}
        raise RequestRefused(HTTPStatus.BAD_REQUEST, message, close, detail=message)

    async def send(self, message: Any) -> None:
        """Send a part of the answer, with the headers that every answer has."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            own = {name for name, _ in message["headers"]}  # an answer may have its own policy
            headers = [*message["headers"], *(each for each in ALWAYS if each[0] not in own)]
            headers.append((b"x-request-id", self.id.encode()))
            extra = dict(self.trace.headers)
            if self.server.cors.origins:
                extra |= self.server.cors.headers(self.headers.get("origin"))
            if self.scope["state"].get("requests", 0) + 1 >= REQUESTS:
                extra["connection"] = "close"
            headers += [
                (name.encode(), value.encode())
                for name, value in extra.items()
                if name.encode() not in own
            ]
            if self.record.version:
                headers += _model_headers(self.record.model, self.record.version)
            message["headers"] = headers
            whole = b"content-length" in own  # the body follows in one message
            if whole and self.connection is not None and self.scope["method"] != "HEAD":
                self.connection.join_next_writes(self.scope)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self.complete = (
                True  # all is counted before the client has the answer, and may ask again
            )
            self._add_to_metrics(time.monotonic() - self.began)
            self._leave()
        await self._send(message)

    async def _answer(self) -> Response | None:
        """The answer; None where the client has disconnected."""
        keys, headers = self.server.keys, self.headers
        if sum(len(name) + len(value) for name, value in self.scope["headers"]) > HEADER_BYTES:
            message = f"headers: wanted at most {HEADER_BYTES:,} bytes; got more. Send less."
            raise RequestRefused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, message)
        self._check_framing()
        given_hosts = [value for name, value in self.scope["headers"] if name == b"host"]
        needs_host = self.scope.get("http_version") == "1.1"
        self.server.hosts.check(given_hosts, needed=needs_host)
        preflight = self.server.cors.preflight(self.scope["method"], headers)
        if preflight is not None:
            self._check_preflight()
            return preflight
        try:
            self.route, parameters = self.server.table.find(
                self.scope["method"], self.scope["path"]
            )
        finally:
            if (
                self.route is None or self.route.needs_key
            ):  # without a key, existing routes are not revealed
                self.client = keys.client(await self._authorization(), self.client.name)
                if self.client.key is not None and self.client.key.limited:
                    await self.server.limiter.enter(self.client.key)
                    self.entered = self.client.key
        if self.client.key is None:
            self._check_origin(self.route)
        if self.route.admin and not self.client.admin:
            message = "authorization: wanted a key of an administrator; got another client. Use a key marked admin."
            raise RequestRefused(HTTPStatus.FORBIDDEN, message)
        query = dict(QueryParams(self.scope["query_string"])) if self.scope["query_string"] else {}
        if self.route.method in ("GET", "OPTIONS"):
            return await self.route.handler(self._call(parameters, query))
        kind = self._content_type(self.route)
        if kind == NDJSON:
            call, service = self._call(parameters, query), self.server.service
            limits, count = service.bulk_limits(self.route), self.server.metrics.count_inputs
            if limits.line > self.server.limits.body:
                self._count_large_body()
            return BulkAnswer(call, self.route, limits, service.bulk_slots, count)
        call = self._call(parameters, query, await self._body(), kind)
        return await unless_disconnected(self.receive, self.route.handler(call), self.connection)

    def _check_preflight(self) -> None:
        """Refuse what a page of another origin may not send although it may use the API."""
        method = self.headers["access-control-request-method"]
        try:
            route, _ = self.server.table.find(method, self.scope["path"])
        except RequestRefused:  # the page gets this answer when it sends the request
            return
        if route.same_origin and not self.server.keys.keys:
            raise _needs_same_origin(self.headers.get("origin"))

    def _check_origin(self, route: Route) -> None:
        """Refuse a page of another origin which has no key, where it could do harm."""
        if not from_another_origin(self.headers, self.server.hosts):
            return
        origin = self.headers.get("origin")
        if route.same_origin:
            raise _needs_same_origin(origin)
        is_form = route.method == "POST" and self._given_type() in FORM_TYPES
        if is_form and not self.server.cors.allows(origin):
            message = (
                f"Forms of pages of {_shown_origin(origin)} are refused. If this origin may use "
                "the API, start the server with --cors ORIGIN."
            )
            raise RequestRefused(HTTPStatus.FORBIDDEN, message, reason="cors")

    def _given_type(self) -> str:
        """The content type of the body, without its parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    def _call(
        self, parameters: dict[str, str], query: dict[str, str], body: bytes = b"", kind: str = JSON
    ) -> Call:
        return Call(
            self.id, self.client.name, body, parameters, query, kind, self.headers, self.record
        )

    async def _authorization(self) -> str:
        """The key as the headers name it; or as the body does, where the API of the route has it there."""
        given = self.headers.get("authorization", "")
        if given or self.route is None or self.route.body_key is None or not self.server.keys.keys:
            return given
        return f"Bearer {self.route.body_key(await self._body())}"

    def _content_type(self, route: Route) -> str:
        given = self._given_type()
        if given not in route.accepts:
            wanted = " or ".join(route.accepts)
            message = (
                f"content-type: wanted {wanted}; got {printable(given) or 'none'}. Send it so."
            )
            raise RequestRefused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, message)
        return given

    async def _body(self) -> bytes:
        """The body of the request, refused where it is too large or too slow."""
        if self.content is not None:
            return self.content
        assert self.route is not None
        limits, content = self.server.limits, bytearray()
        most = self.server.service.body_limit(self.route)
        length = self._length()
        if length > most:
            raise _too_large(most)
        try:
            async with asyncio.timeout(limits.body_seconds):
                more = True
                while more:
                    part = await self.receive()
                    if part["type"] == "http.disconnect":
                        raise ClientDisconnect
                    content += part.get("body", b"")
                    more = part.get("more_body", False)
                    if len(content) > most:
                        raise _too_large(most)
                    if max(length, len(content)) > limits.body:
                        self._count_large_body()
        except TimeoutError:
            message = f"body: wanted all of it within {limits.body_seconds:g} s; got a part. Send it faster."
            raise RequestRefused(
                HTTPStatus.REQUEST_TIMEOUT, message, {"connection": "close"}
            ) from None
        self.content = bytes(content)
        return self.content

    def _check_framing(self) -> None:
        """Refuse what another server might read as another request."""
        version = self.scope.get("http_version", "1.1")
        if version not in HTTP_VERSIONS:
            message = f"This server speaks HTTP/1.1, not HTTP/{version}."
            raise RequestRefused(HTTPStatus.BAD_REQUEST, message, {"connection": "close"})
        self._length()
        if self._is_malformed:
            self._refuse_malformed_body()

    def _length(self) -> int:
        """The length of the body as the headers name it; 0 where they do not."""
        given = self.headers.get("content-length", "0")
        if len(given) > LENGTH_DIGITS or not given.isascii() or not given.isdigit():
            shown = printable(given[: 2 * LENGTH_DIGITS])
            message = f"Content-Length must be a number of bytes, not {shown!r}. Send the length."
            raise RequestRefused(HTTPStatus.BAD_REQUEST, message, {"connection": "close"})
        return int(given)

    def _count_large_body(self) -> None:
        """Refused where too many others have large bodies, of files: they would not fit into memory."""
        service = self.server.service
        if not self.large:
            if service.large_bodies >= MOST_LARGE_BODIES:
                raise Overloaded(1)
            service.large_bodies += 1
            self.large = True


def refusal_line(request_id: str, client: str, error: RequestRefused) -> str:
    """A line of the access log for what was refused before its method and its path were known."""
    fields = {
        "time": _now(),
        "id": request_id,
        "status": error.status.value,
        "client": client,
        "error": rejection(error),
        "detail": error.detail,
    }
    return msgspec.json.encode(fields).decode()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _shown_origin(origin: str | None) -> str:
    return "another origin" if origin is None else f"the origin {printable(origin)[:100]!r}"


def _needs_same_origin(origin: str | None) -> RequestRefused:
    message = (
        f"This route refuses pages of {_shown_origin(origin)} that send no API key. Behind a "
        "reverse proxy, start the server with --allowed-host and the name that browsers know."
    )
    return RequestRefused(HTTPStatus.FORBIDDEN, message, reason="cors")


@lru_cache(maxsize=64)
def _model_headers(model: str, version: str) -> tuple[tuple[bytes, bytes], ...]:
    return (b"x-model", quote(model).encode()), (b"x-model-version", quote(version).encode())


def _too_large(most: int) -> RequestRefused:
    message = f"body: wanted at most {most:,} bytes; got more. Split the request."
    return RequestRefused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message)
