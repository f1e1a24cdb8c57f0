"""Routes: which handler answers a request, and what it takes and gives."""

import difflib
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus

from starlette.responses import Response
from starlette.routing import compile_path

from regard.core.errors import RegardError
from regard.serving.http.errors import RequestRefused, problem
from regard.serving.http.schemas import Problem
from regard.serving.http.usage import RequestUsage

JSON, FORM, NDJSON = "application/json", "multipart/form-data", "application/x-ndjson"


@dataclass(frozen=True)
class Call:
    """A request that was let in.

    id              in the answer and in the log
    client          whose it is
    parameters      of the path: `{name}` in the route's path
    query           of the address
    content_type    of the body, in lower case, without its parameters
    headers         by their names in lower case
    record          filled in while it is answered
    in_bulk         whether it is a line of a request of many, which has one input
    """

    id: str
    client: str
    body: bytes
    parameters: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)
    record: RequestUsage = field(default_factory=RequestUsage)
    in_bulk: bool = False


LONGEST_PATH = 40  # characters of a path that are compared with the known ones
Handler = Callable[[Call], Awaitable[Response]]


@dataclass(frozen=True)
class Route:
    """A method and a path that are answered.

    path       may have parameters: `/v2/models/{name}`
    summary    one line, for the description of the API
    request    the type of the JSON body; None: there is none, or it is not JSON
    answer     the type of the JSON answer; None: it is not JSON
    other_answers  content types in which it answers too, where `Accept` names them
    accepts    content types of the body
    takes_files   whether the body may have files, such as images, and be as large as these
    needs_key  whether a client must name its key, where there are keys
    body_key   finds the key in a body, in an API whose clients send it there; empty: it has none
    admin      whether the key must be one of an administrator; where there are no keys, clients on this machine may
    same_origin    whether pages of other origins need a key, even those that may use the API
    problem    makes the answer to an error, in the format of the API to which the route belongs
    error      the type of its JSON
    example    makes a body that works, for the description of the API; None: one of the required fields is made
    """

    method: str
    path: str
    handler: Handler
    summary: str
    request: object | None = None
    answer: object | None = None
    other_answers: tuple[str, ...] = ()
    accepts: tuple[str, ...] = (JSON,)
    takes_files: bool = False
    needs_key: bool = True
    body_key: Callable[[bytes], str] | None = None
    admin: bool = False
    same_origin: bool = False
    problem: Callable[[RegardError, str], Response] = problem
    error: object = Problem
    example: Callable[[], object] | None = None


class RouteTable:
    """Finds the route of a request. A path without parameters hides those with them.

    A route for GET also answers HEAD; the protocol leaves out the body of the answer. OPTIONS asks
    which methods a path has.
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = sorted(routes, key=lambda route: "{" in route.path)
        self._patterns: dict[str, re.Pattern[str]] = {
            each.path: compile_path(each.path)[0] for each in self.routes
        }
        self._fixed = {
            (each.method, each.path): each for each in self.routes if "{" not in each.path
        }

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        """The route and the parameters of its path; refused where there is none."""
        fixed = self._fixed.get((method, path))
        if fixed is not None:
            return fixed, {}
        fitting = self._at(path)
        if not fitting:
            known = list(dict.fromkeys(each.path for each in self.routes))
            near = difflib.get_close_matches(path[:LONGEST_PATH], known, n=3, cutoff=0.0)
            message = (
                f"path: wanted one of the {len(known)} that /openapi.json describes; got another. "
                f"The nearest are {', '.join(near)}."
            )
            raise RequestRefused(HTTPStatus.NOT_FOUND, message)
        for route, parameters in fitting:
            if method in _methods(route):
                return route, parameters
        routes = [route for route, _ in fitting]
        if method == "OPTIONS":
            return _options(routes), {}
        wanted = " or ".join(dict.fromkeys(route.method for route in routes))
        message = f"method: wanted {wanted}; got {method}. Change it."
        raise RequestRefused(HTTPStatus.METHOD_NOT_ALLOWED, message, {"allow": _allow(routes)})

    def _at(self, path: str) -> list[tuple[Route, dict[str, str]]]:
        """The routes of a path, one for each method, with their parameters."""
        fixed = [each for each in self.routes if each.path == path and "{" not in path]
        if fixed:
            return [(each, {}) for each in fixed]
        fits = [(each, self._patterns[each.path].fullmatch(path)) for each in self.routes]
        return [(each, fit.groupdict()) for each, fit in fits if fit is not None]


def _methods(route: Route) -> tuple[str, ...]:
    return ("GET", "HEAD") if route.method == "GET" else (route.method,)


def _allow(routes: Iterable[Route]) -> str:
    """The methods of a path, as the header Allow lists them."""
    methods = [method for route in routes for method in _methods(route)]
    return ", ".join(dict.fromkeys([*methods, "OPTIONS"]))


def _options(routes: Sequence[Route]) -> Route:
    """A route that answers which methods the path of these routes has."""
    headers = {"allow": _allow(routes)}

    async def answer(call: Call) -> Response:
        return Response(status_code=HTTPStatus.NO_CONTENT, headers=headers)

    return replace(
        routes[0],
        method="OPTIONS",
        handler=answer,
        needs_key=any(route.needs_key for route in routes),
        body_key=None,
        same_origin=False,
    )
