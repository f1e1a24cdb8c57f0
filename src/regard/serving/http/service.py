"""What the routes share: the scheduler with its models, and how a request reaches it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response

from regard.core.errors import InvalidArgument
from regard.core.sanitize import printable
from regard.data.fields.base import FIELDS
from regard.serving.http.bulk import BulkLimits
from regard.serving.http.errors import RequestRefused
from regard.serving.http.request_inputs import InputReader
from regard.serving.http.routing import JSON, Call, Route
from regard.serving.http.schemas import Inputs
from regard.serving.scheduler.async_client import AsyncClient, Mailbox
from regard.serving.scheduler.interfaces import BaseScheduler, ModelAdmin, ModelInfo
from regard.tasks.inputs import InputValue

Decoded = TypeVar("Decoded")
TEXT = "A dog runs."  # of examples, and the file of a small image
IMAGE = "R0lGODdhCAAIAIEAAMg8KAAAAAAAAAAAACwAAAAACAAIAAAIDwABCBxIsKDBgwgTKkwYEAA7"
# An input by the key under which a request gives the content of a file; None: it is a text.
EXAMPLES: dict[str | None, Callable[[ModelInfo], object]] = {
    "image": lambda model: {"image": IMAGE},
    "file": lambda model: [[0.0] * (model.sizes[0] or 1)],
}
DEPTH = 32
MOST_VALUES = 1 << 20  # of a JSON body: each takes far more memory than its text
TIMEOUT = "x-timeout-ms"  # the header of a request's deadline, in every API
BULK_BYTES = (
    1 << 22
)  # of the lines of one request that are being answered, where one line may not have more
BRACKETS = bytes.maketrans(b"{}", b"[]")
OTHER_BYTES = bytes(set(range(256)) - set(b"[]{}"))


@dataclass(frozen=True)
class HttpLimits:
    """The most that one client may ask for.

    body           bytes of a request, and of all texts of one that may have files; also numbers of a larger one
    image_body     bytes of a request that may have images or vectors, where a model reads them
    inputs         of a request
    bulk_lines     of requests of many lines, of all of them together, that are queued or computed at a time
    body_seconds   in which a request's body must arrive
    """

    body: int = 1 << 20
    inputs: int = 256
    body_seconds: float = 20.0
    image_body: int = 16 << 20
    bulk_lines: int = 128


class Service:
    """Models behind an API: every group of routes has one, and the same."""

    def __init__(self, engine: BaseScheduler, limits: HttpLimits, admin: ModelAdmin | None) -> None:
        self.engine, self.limits, self.admin = engine, limits, admin
        self.reader = InputReader(limits.body)
        self.bulk_slots = asyncio.Semaphore(limits.bulk_lines)
        self._mailbox: Mailbox | None = None
        self.stopping = False
        self.large_bodies = 0  # of images and vectors, in memory

    @property
    def ready(self) -> bool:
        """Whether requests are taken."""
        return self.engine.ready and not self.stopping

    def model(self, name: str | None) -> ModelInfo:
        """The model of this name; the only one where none is named."""
        models = self.engine.model_info
        if name is None and len(models) == 1:
            (name,) = models
        if name is None or name not in models:
            got = "none" if name is None else repr(name)
            message = f"model: wanted one of {', '.join(models) or 'none is loaded'}; got {got}. Choose one."
            raise RequestRefused(HTTPStatus.NOT_FOUND, message)
        return models[name]

    def text_model(self, name: str | None) -> ModelInfo:
        """The same, for an API whose inputs are texts."""
        model = self.model(name)
        if model.takes_files:
            wanted, remedy = (
                "a model that reads texts",
                "Use /predict, /caption, /classify or /embed.",
            )
            # The nouns of kinds: "an image", "a sequence of vectors".
            got = " and ".join(FIELDS[kind].noun for kind in model.reads)
            raise InvalidArgument(
                "model", wanted=wanted, got=f"one that reads {got}", remedy=remedy
            )
        return model

    def body_limit(self, route: Route) -> int:
        """Bytes of a request's body."""
        files = route.takes_files and any(
            model.takes_files for model in self.engine.model_info.values()
        )
        return max(self.limits.image_body, self.limits.body) if files else self.limits.body

    def inputs(self, given: str | list[str]) -> list[str]:
        """A list of texts, of a number that is allowed."""
        inputs = [given] if isinstance(given, str) else given
        if not 0 < len(inputs) <= self.limits.inputs:
            message = f"input: wanted 1 to {self.limits.inputs}; got {len(inputs)}. Send them in several requests."
            raise RequestRefused(HTTPStatus.BAD_REQUEST, message)
        return inputs

    async def read_inputs(self, call: Call, model: ModelInfo, given: Inputs) -> list[InputValue]:
        """The inputs of a request, one or several, as the model reads them."""
        return await self.reader.read(model, given, 1 if call.in_bulk else self.limits.inputs)

    def bulk_limits(self, route: Route) -> BulkLimits:
        line = self.body_limit(route)
        return BulkLimits(
            line, self.limits.bulk_lines, max(line, BULK_BYTES), self.limits.body_seconds
        )

    def engine_client(
        self, call: Call, model: ModelInfo, timeout_ms: int | None = None
    ) -> AsyncClient:
        """Through which a request asks the scheduler, until its time is over: that of its body or of its header."""
        header = call.headers.get(TIMEOUT)
        if header is not None:
            if not (header.isascii() and header.isdecimal() and len(header) <= 9):
                message = f"{TIMEOUT}: wanted milliseconds, a whole number; got {printable(header)[:20]!r}. Change it."
                raise RequestRefused(HTTPStatus.BAD_REQUEST, message)
            timeout_ms = int(header) if timeout_ms is None else min(timeout_ms, int(header))
        if timeout_ms is not None and timeout_ms <= 0:
            message = f"timeout_ms: wanted more than 0; got {timeout_ms}. Leave it out."
            raise RequestRefused(HTTPStatus.BAD_REQUEST, message)
        timeout = None if timeout_ms is None else timeout_ms / 1000
        loop = asyncio.get_running_loop()
        if self._mailbox is None or self._mailbox.loop is not loop:
            self._mailbox = Mailbox(loop)
        return AsyncClient(
            self.engine, model.name, call.client, timeout, call.record, self._mailbox
        )


def decoded(body: bytes, wanted: type[Decoded]) -> Decoded:
    """The JSON of a body as a typed structure; refused where it is not one."""
    found: Decoded = decoded_value(body, wanted)
    return found


def decoded_list(body: bytes, wanted: type[Decoded]) -> list[Decoded]:
    """The JSON of a body as a list of typed structures; refused where it is not one."""
    found: list[Decoded] = decoded_value(body, list[wanted])  # type: ignore[valid-type]
    return found


def decoded_value(body: bytes, wanted: Any) -> Any:
    """The JSON of a body as a value of any type; refused where it is not one."""
    if nested_deeper(body, DEPTH):
        message = f"body: wanted JSON nested at most {DEPTH} deep; got deeper. Flatten it."
        raise RequestRefused(HTTPStatus.BAD_REQUEST, message, reason="depth")
    values = body.count(b",")
    if values > MOST_VALUES:
        message = (
            f"body: wanted JSON of at most {MOST_VALUES:,} values; got {values:,} commas. "
            "Send arrays as the content of a .npy file."
        )
        raise RequestRefused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message)
    try:
        return msgspec.json.decode(body, type=wanted)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        message = f"body: wanted a request of this route; got {error}. {_remedy(wanted)}"
        raise RequestRefused(HTTPStatus.BAD_REQUEST, message) from None


def _remedy(wanted: Any) -> str:
    """Where the fields of a request are described, and those that it must have."""
    is_struct = isinstance(wanted, type) and issubclass(wanted, msgspec.Struct)
    needed = (
        [field.encode_name for field in msgspec.structs.fields(wanted) if field.required]
        if is_struct
        else []
    )
    return (f"It needs {' and '.join(needed)}; see" if needed else "See") + " /openapi.json."


def nested_deeper(body: bytes, depth: int) -> bool:
    """Whether JSON has more levels of lists and objects, without parsing it: innermost brackets are removed in turn."""
    if body.count(b"[") + body.count(b"{") <= depth:
        return False
    outside = b"".join(
        body.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')[::2]
    )  # of strings
    brackets = outside.translate(BRACKETS, OTHER_BYTES)
    for _ in range(depth):
        inner, brackets = brackets, brackets.replace(b"[]", b"")
        if (
            brackets == inner
        ):  # none, or some without partners: not JSON, and deep only if they are many
            return brackets.count(b"[") > depth
    return bool(brackets)


def example_input(model: ModelInfo | None) -> object:
    """An input that a model reads, for the description of the API."""
    if model is None or not model.reads:
        return TEXT
    if len(model.reads) > 1:
        # An input of several sources is a list in the list of inputs.
        return TEXT if model.takes_files else [[TEXT] * len(model.reads)]
    make = EXAMPLES.get(FIELDS[model.reads[0]].content_key)
    return TEXT if make is None else make(model)


def json_answer(content: object) -> Response:
    return Response(msgspec.json.encode(content), media_type=JSON)


def query_number(call: Call, name: str, default: int = 0) -> int:
    """A number of the address, from 0; refused where it is none."""
    text = call.query.get(name, str(default))
    if not (text.isascii() and text.isdecimal()) or len(text) > 9:
        message = f"{name}: wanted a number from 0; got {text[:20]!r}. Change it."
        raise RequestRefused(HTTPStatus.BAD_REQUEST, message)
    return int(text)
