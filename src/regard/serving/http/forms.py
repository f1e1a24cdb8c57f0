"""Requests as forms (multipart/form-data): files of images and arrays beside the keys of the JSON body."""

import logging
from collections.abc import AsyncGenerator
from http import HTTPStatus
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec
import python_multipart  # noqa: F401  which Starlette's parser imports where it is installed
from msgspec import Struct, structs
from starlette.datastructures import FormData, Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from regard.serving.http.errors import RequestRefused
from regard.serving.http.routing import FORM, Call
from regard.serving.http.schemas import FILE_KEYS
from regard.serving.http.service import Service, decoded

Asked = TypeVar("Asked", bound=Struct)
# Its warnings about forms that cannot be read name no client: the access log has them with the request.
logging.getLogger("python_multipart").setLevel(logging.ERROR)
MOST_FIELDS = 256
CHUNK = 1 << 16
Uploaded = str | dict[str, bytes]  # a text, or the content of a file by the name of its field


async def read_request(
    service: Service, call: Call, wanted: type[Asked], *, one: bool = False
) -> Asked:
    """The body of a request, of JSON or of a form, as a typed structure. `one`: of a route that takes one input."""
    if call.content_type != FORM:
        return decoded(call.body, wanted)
    sources, texts = await _parts(call, service.limits.inputs)
    kinds = {each.encode_name: each.type for each in structs.fields(wanted)}
    values: dict[str, Any] = {}
    for name, text in texts.items():
        if name not in kinds:
            raise _refused(
                f"{name}: wanted one of {', '.join(kinds)}; got another key. Leave it out."
            )
        values[name] = text if _takes_text(kinds[name]) else decoded(text.encode(), Any)
    if sources and "image" in kinds:
        values["image"] = [
            each["image"] if isinstance(each, dict) and "image" in each else each
            for each in sources
        ]
    elif sources:
        inputs: list[Any] = [*sources]
        several = (
            len(service.model(values.get("model")).reads) > 1
        )  # and these are the sources of one input
        values["input"] = inputs
        if one and len(inputs) == 1:
            values["input"] = inputs[0]
        elif several and not one:
            values["input"] = [inputs]
    try:
        return msgspec.convert(values, wanted, builtin_types=(bytes,))
    except msgspec.ValidationError as error:
        raise _refused(f"body: wanted a request of this route; got {error}.") from None


async def _parts(call: Call, most: int) -> tuple[list[Uploaded], dict[str, str]]:
    """The files, each as {its key: content}, and the fields `input`, in their order; and the other fields."""

    async def stream() -> AsyncGenerator[bytes, None]:
        for first in range(0, len(call.body), CHUNK):
            yield call.body[first : first + CHUNK]

    parser = MultiPartParser(
        Headers(dict(call.headers)),
        stream(),
        max_files=most,
        max_fields=MOST_FIELDS,
        max_part_size=len(call.body),
    )
    parser.spool_max_size = len(call.body)  # nothing is written to disk
    try:
        form = await parser.parse()
    except (MultiPartException, UnicodeDecodeError) as error:
        got = str(error.__cause__ or getattr(error, "message", None) or error)
        message = f"body: wanted a form (multipart/form-data); got {got}."
        raise RequestRefused(HTTPStatus.BAD_REQUEST, message, detail=got) from None
    try:
        return await _sorted(form)
    finally:
        await form.close()


async def _sorted(form: FormData) -> tuple[list[Uploaded], dict[str, str]]:
    sources: list[Uploaded] = []
    fields: dict[str, str] = {}
    for name, value in form.multi_items():
        if isinstance(value, UploadFile):
            if name not in FILE_KEYS:
                raise _refused(
                    f"{name}: wanted files as image or file; got a file of another name. Rename it."
                )
            sources.append({name: await value.read()})
        elif name == "input":
            sources.append(value)
        elif name in FILE_KEYS:
            raise _refused(f"{name}: wanted a file; got a text. Change it.")
        elif name in fields:
            raise _refused(f"{name}: wanted one value; got several. Change it.")
        else:
            fields[name] = value
    return sources, fields


def _takes_text(kind: Any) -> bool:
    """Whether a key may have a text for its value; of other keys, the text of a form is JSON."""
    union = get_origin(kind) in (Union, UnionType, Literal)
    return kind is str or isinstance(kind, str) or (union and any(map(_takes_text, get_args(kind))))


def _refused(message: str) -> RequestRefused:
    return RequestRefused(HTTPStatus.BAD_REQUEST, message)
