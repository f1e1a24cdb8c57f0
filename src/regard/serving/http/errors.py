"""Errors as answers: the status, and a problem document with argument, wanted, got and remedy (RFC 9457)."""

from http import HTTPStatus

import msgspec
from msgspec import Struct
from starlette.responses import Response

from regard.core.errors import (
    DeadlineExceeded,
    EngineCrashed,
    EngineRestarting,
    InvalidArgument,
    InvalidRecipe,
    Overloaded,
    RegardError,
    ServerStopping,
)
from regard.serving.http.schemas import Problem

MEDIA_TYPE = "application/problem+json"
SECURITY_HEADERS = {  # of every answer
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}


class RequestRefused(RegardError):
    """A request that is refused before it reaches the scheduler.

    reason   is counted in metrics; by default the status
    detail   is written to the access log: it must hold nothing of what the request says
    """

    def __init__(
        self,
        status: HTTPStatus,
        message: str,
        headers: dict[str, str] | None = None,
        *,
        reason: str = "",
        detail: str = "",
    ) -> None:
        super().__init__(message)
        self.detail = detail
        self.status, self.headers, self.reason = (
            status,
            headers or {},
            reason or status.name.lower(),
        )


def status_of(error: RegardError) -> tuple[HTTPStatus, dict[str, str]]:
    """The status of an error, and the headers of its answer."""
    if isinstance(error, RequestRefused):
        return error.status, error.headers
    if isinstance(error, Overloaded):
        return HTTPStatus.TOO_MANY_REQUESTS, {"retry-after": str(error.retry_after)}
    if isinstance(error, DeadlineExceeded):
        return HTTPStatus.GATEWAY_TIMEOUT, {}
    if isinstance(error, EngineRestarting):
        return HTTPStatus.SERVICE_UNAVAILABLE, {"retry-after": str(error.retry_after)}
    if isinstance(error, EngineCrashed):
        return HTTPStatus.SERVICE_UNAVAILABLE, {"retry-after": "5"}
    if isinstance(error, ServerStopping):
        return HTTPStatus.SERVICE_UNAVAILABLE, {"retry-after": "1"}
    return HTTPStatus.BAD_REQUEST if isinstance(
        error, ValueError
    ) else HTTPStatus.INTERNAL_SERVER_ERROR, {}


def rejection(error: RegardError) -> str:
    """For which reason a request was refused, as metrics and the log name it; empty where it failed."""
    if isinstance(error, RequestRefused):
        return error.reason
    if isinstance(error, Overloaded):
        return "queue_full"
    if isinstance(error, EngineRestarting):
        return "engine_restarting"
    if isinstance(error, EngineCrashed):
        return "engine_crashed"
    status, _ = status_of(error)
    return {HTTPStatus.SERVICE_UNAVAILABLE: "stopping", HTTPStatus.BAD_REQUEST: "bad_request"}.get(
        status, ""
    )


def problem_document(error: RegardError, request_id: str) -> Problem:
    status, _ = status_of(error)
    parts = {}
    if isinstance(error, InvalidArgument):
        parts = {
            "argument": error.argument,
            "wanted": error.wanted,
            "got": error.got,
            "remedy": error.remedy,
        }
    elif isinstance(error, InvalidRecipe):  # options of [decode], which a request has at its top
        first = error.problems[0]
        key = first.key.removeprefix("decode.")
        parts = {"argument": key, "wanted": first.wanted, "got": first.got, "remedy": first.remedy}
    return Problem(status.phrase, status.value, str(error), request_id, **parts)


def problem(error: RegardError, request_id: str) -> Response:
    """The answer that says what is wrong."""
    status, headers = status_of(error)
    return Response(
        msgspec.json.encode(problem_document(error, request_id)), status.value, headers, MEDIA_TYPE
    )


class ErrorMessage(Struct):
    error: str


def error_message(error: RegardError, request_id: str) -> Response:
    """The answer of an API that gives nothing but a message."""
    status, headers = status_of(error)
    return Response(
        msgspec.json.encode(ErrorMessage(str(error))), status, headers, "application/json"
    )
