"""Cross-origin requests (https://fetch.spec.whatwg.org): which pages of other origins may use the API in a browser."""

import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus

from starlette.responses import Response

from regard.core.errors import InvalidArgument
from regard.serving.http.errors import RequestRefused

ORIGIN = re.compile(r"https?://[^\s/?#@,]+", re.IGNORECASE)
EXPOSED = "x-request-id, x-model, x-model-version, retry-after"


class CrossOrigin:
    """The origins whose pages may ask; none by default. "*": all of them.

    A page of another origin gets no header that lets it read an answer, and no answer to a preflight request.
    """

    def __init__(self, origins: Sequence[str] = ()) -> None:
        for each in origins:
            if each != "*" and not ORIGIN.fullmatch(each):
                wanted, remedy = (
                    "an origin as https://example.org, or *",
                    "Leave out the path, and the / at the end.",
                )
                raise InvalidArgument("cors", wanted=wanted, got=repr(each), remedy=remedy)
        self.origins = frozenset(each.lower() for each in origins)

    def allows(self, origin: str | None) -> bool:
        """Whether pages of this origin may ask."""
        return "*" in self.origins or (origin or "").lower() in self.origins

    def headers(self, origin: str | None) -> dict[str, str]:
        """Which an answer to a page of this origin has."""
        if not self.origins or origin is None:
            return {}
        if "*" in self.origins:
            return {"access-control-allow-origin": "*", "access-control-expose-headers": EXPOSED}
        if origin.lower() not in self.origins:
            return {"vary": "origin"}
        allowed = {"access-control-allow-origin": origin, "access-control-expose-headers": EXPOSED}
        return {**allowed, "vary": "origin"}

    def preflight(self, method: str, headers: Mapping[str, str]) -> Response | None:
        """The answer to a browser that asks whether it may send a request; None: it is not such a question."""
        if (
            not self.origins
            or method != "OPTIONS"
            or "access-control-request-method" not in headers
        ):
            return None
        if "access-control-allow-origin" not in self.headers(headers.get("origin")):
            message = (
                "origin: wanted one that this server lets in; got another. Add it: --cors ORIGIN."
            )
            raise RequestRefused(HTTPStatus.FORBIDDEN, message, reason="cors")
        sent = (
            "authorization",
            "content-type",
            "x-request-id",
            "x-timeout-ms",
            "traceparent",
            "tracestate",
        )
        allowed = {
            "access-control-allow-methods": "GET, POST",
            "access-control-allow-headers": ", ".join(sent),
            "access-control-max-age": "600",
        }
        return Response(status_code=HTTPStatus.NO_CONTENT, headers=allowed)
