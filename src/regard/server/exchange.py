"""One request and its answer: limits, keys, errors, metrics and the access log, alike for all routes."""

import asyncio
import hmac
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from regard.core.errors import EngineFailed, RegardError
from regard.core.sanitize import printable
from regard.server.bridge import unless_disconnected
from regard.server.metrics import Metrics
from regard.server.problems import RequestRefused, problem

log = logging.getLogger(__name__)
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}
REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
OPEN_ROUTES = ("/health/live", "/health/ready")  # need no key


@dataclass(frozen=True)
class HttpLimits:
    """The most that one client may ask for.

    body           bytes of a request
    inputs         of a request
    body_seconds   in which a request's body must arrive
    """

    body: int = 1 << 20
    inputs: int = 256
    body_seconds: float = 20.0


@dataclass(frozen=True)
class Call:
    """A request that was let in: its id, whose it is, and its body."""

    id: str
    client: str
    body: bytes


Handler = Callable[[Call], Awaitable[Response]]


class Application:
    """What an exchange needs of the application that it belongs to."""

    limits: HttpLimits
    keys: tuple[str, ...]
    metrics: Metrics
    open: int  # requests whose answer is being computed
    routes: dict[str, tuple[str, Handler]]  # the method and the handler of each path


class Exchange:
    """One request and its answer: let in or refused, answered or cancelled, counted and logged."""

    def __init__(self, server: Application, scope: Scope, receive: Receive, send: Send) -> None:
        self.server, self.scope, self.receive, self._send = server, scope, receive, send
        self.request = Request(scope, receive)
        given = self.request.headers.get("x-request-id", "")
        self.id = given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        self.path = scope["path"] if scope["path"] in server.routes else "other"
        self.client, self.status = "", 0
        self.began = time.monotonic()

    async def run(self) -> None:
        try:
            response = await self._answer()
        except RegardError as error:
            response = problem(error, self.id)
        except ClientDisconnect:
            response = None
        except Exception as error:  # a fault of the server must not end the connection without an answer
            log.exception("request %s failed", self.id)
            response = problem(EngineFailed(error), self.id)
        if response is not None:
            with suppress(OSError, ClientDisconnect):  # the client has gone
                await response(self.scope, self.receive, self.send)
        seconds = time.monotonic() - self.began
        if self.status:
            self.server.metrics.requests.labels(self.path, str(self.status)).inc()
            self.server.metrics.seconds.labels(self.path).observe(seconds)
        else:
            self.server.metrics.cancelled.inc()
        log.info("%s", msgspec.json.encode(self._record(seconds)).decode())

    def _record(self, seconds: float) -> dict[str, Any]:
        return {
            "id": self.id,
            "method": self.scope["method"],
            "path": printable(self.scope["path"])[:200],
            "status": self.status or "cancelled",
            "seconds": round(seconds, 4),
            "client": self.client,
        }

    async def send(self, message: Any) -> None:
        """Send a part of the answer, with the headers that every answer has."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            extra = {**HEADERS, "x-request-id": self.id}
            message["headers"] = [*message["headers"], *((k.encode(), v.encode()) for k, v in extra.items())]
        await self._send(message)

    async def _answer(self) -> Response | None:
        """The answer; None where the client has disconnected."""
        server, path = self.server, self.scope["path"]
        if path not in OPEN_ROUTES:
            self.client = self._authorized()
        if path not in server.routes:
            known = ", ".join(server.routes)
            raise RequestRefused(HTTPStatus.NOT_FOUND, f"path: wanted one of {known}; got another. Choose one.")
        method, handler = server.routes[path]
        if self.scope["method"] != method:
            message = f"method: wanted {method}; got {self.scope['method']}. Change it."
            raise RequestRefused(HTTPStatus.METHOD_NOT_ALLOWED, message, {"allow": method})
        if method == "GET":
            return await handler(Call(self.id, self.client, b""))
        server.open += 1
        try:
            call = Call(self.id, self.client, await self._body())
            return await unless_disconnected(self.receive, asyncio.ensure_future(handler(call)))
        finally:
            server.open -= 1

    def _authorized(self) -> str:
        """The name of the client: the number of its key, or its address where no keys are needed."""
        if not self.server.keys:
            return str((self.scope.get("client") or ("",))[0])
        scheme, _, key = self.request.headers.get("authorization", "").partition(" ")
        fits = [hmac.compare_digest(key.strip().encode(), known.encode()) for known in self.server.keys]
        if scheme.lower() != "bearer" or not any(fits):
            message = "authorization: wanted 'Bearer' and a key of this server; got another. Send a key."
            raise RequestRefused(HTTPStatus.UNAUTHORIZED, message, {"www-authenticate": "Bearer"})
        return f"key {fits.index(True) + 1}"

    async def _body(self) -> bytes:
        """The body of the request, refused where it is too large, too slow, or not JSON."""
        limits, content = self.server.limits, bytearray()
        kind = self.request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            message = f"content-type: wanted application/json; got {kind or 'none'}. Send JSON."
            raise RequestRefused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, message)
        try:
            async with asyncio.timeout(limits.body_seconds):
                async for part in self.request.stream():
                    content += part
                    if len(content) > limits.body:
                        message = f"body: wanted at most {limits.body:,} bytes; got more. Split the request."
                        raise RequestRefused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message, {"connection": "close"})
        except TimeoutError:
            message = f"body: wanted all of it within {limits.body_seconds:g} s; got a part. Send it faster."
            raise RequestRefused(HTTPStatus.REQUEST_TIMEOUT, message, {"connection": "close"}) from None
        return bytes(content)
