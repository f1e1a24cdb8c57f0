"""Errors as answers: the status, and a problem document with argument, wanted, got and remedy (RFC 9457)."""

from http import HTTPStatus

import msgspec
from starlette.responses import Response

from regard.core.errors import DeadlineExceeded, InvalidArgument, Overloaded, RegardError, ServerStopping
from regard.server.wire import Problem

MEDIA_TYPE = "application/problem+json"


class RequestRefused(RegardError):
    """A request that is refused before it reaches the engine."""

    def __init__(self, status: HTTPStatus, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers or {}


def problem(error: RegardError, request_id: str) -> Response:
    """The answer that says what is wrong."""
    status, headers = HTTPStatus.BAD_REQUEST, {}
    if isinstance(error, RequestRefused):
        status, headers = error.status, error.headers
    elif isinstance(error, Overloaded):
        status, headers = HTTPStatus.TOO_MANY_REQUESTS, {"retry-after": str(error.retry_after)}
    elif isinstance(error, DeadlineExceeded):
        status = HTTPStatus.GATEWAY_TIMEOUT
    elif isinstance(error, ServerStopping):
        status, headers = HTTPStatus.SERVICE_UNAVAILABLE, {"retry-after": "1"}
    elif not isinstance(error, ValueError):
        status = HTTPStatus.INTERNAL_SERVER_ERROR
    parts = {}
    if isinstance(error, InvalidArgument):
        parts = {"argument": error.argument, "wanted": error.wanted, "got": error.got, "remedy": error.remedy}
    document = Problem(status.phrase, status.value, str(error), request_id, **parts)
    return Response(msgspec.json.encode(document), status.value, headers, MEDIA_TYPE)
