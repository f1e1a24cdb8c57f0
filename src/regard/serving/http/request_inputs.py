"""The inputs of a request: texts, labels, images and vectors, as many as a model reads, and files as arrays.

Files arrive as their contents, never as a path or a URL. They are decoded in threads of their own, to the size that the
model reads: neither the event loop nor the scheduler waits for them, and what is queued is small.
"""

import asyncio
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from http import HTTPStatus
from typing import Any

from regard.core.errors import InvalidArgument
from regard.data.fields.base import FIELDS
from regard.data.token_lists import cell_of
from regard.serving.http.errors import RequestRefused
from regard.serving.http.schemas import Inputs, SourceFile, SourceValue
from regard.serving.scheduler.interfaces import ModelInfo
from regard.tasks.inputs import InputValue

DECODERS = min(
    4, os.cpu_count() or 1
)  # files that are decoded at a time: each may take hundreds of megabytes
NO_PATH = "No path and no URL is taken."
# How the content of a file is given, by its key in a request.
GIVEN = {
    "image": 'the content of an image: {"image": BASE64}, or uploaded',
    "file": 'a list of vectors, or the content of a file: {"file": BASE64}, or uploaded',
}


class InputReader:
    """Checks the inputs of requests and decodes their files.

    max_text   bytes of all texts of a request
    """

    def __init__(self, max_text: int) -> None:
        self.max_text = max_text

    @cached_property
    def _decoders(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(DECODERS, "regard files")

    async def read(self, model: ModelInfo, given: Inputs, most: int) -> list[InputValue]:
        """The inputs of a request for a model, at most so many; refused where they are not what it reads."""
        return await self._values(model, _listed(model, given), most)

    async def read_one(self, model: ModelInfo, given: Any) -> InputValue:
        """The one input of a request; several sources are a list."""
        (value,) = await self._values(model, [given], 1)
        return value

    async def _values(self, model: ModelInfo, inputs: Sequence[Any], most: int) -> list[InputValue]:
        if not 0 < len(inputs) <= most:
            wanted, where = (f"1 to {most}", "requests") if most > 1 else ("one in a line", "lines")
            message = f"input: wanted {wanted}; got {len(inputs)}. Send them in several {where}."
            raise RequestRefused(HTTPStatus.BAD_REQUEST, message)
        rows = [_sources(model, each) for each in inputs]
        texts = sum(len(each.encode()) for row in rows for each in row if isinstance(each, str))
        if texts > self.max_text:
            message = f"input: wanted texts of at most {self.max_text:,} bytes; got {texts:,}. Split the request."
            raise RequestRefused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message)
        if not model.takes_files:
            return [_joined(row) for row in rows]
        return [await self._value(model, row, number) for number, row in enumerate(rows, start=1)]

    async def _value(self, model: ModelInfo, row: Sequence[SourceValue], number: int) -> InputValue:
        parts: list[Any] = []
        loop = asyncio.get_running_loop()
        for each, field, size in zip(row, model.fields, model.sizes, strict=True):
            if field.content_key is None:
                parts.append(each)
                continue
            content = each.contents[field.content_key] if isinstance(each, SourceFile) else each
            name = f"input {number}"
            parts.append(
                await loop.run_in_executor(self._decoders, field.from_request, name, content, size)
            )
        return _joined(parts)


def _joined(parts: Sequence[Any]) -> InputValue:
    """One source as it is, several as a tuple."""
    value: InputValue = parts[0] if len(parts) == 1 else tuple(parts)
    return value


def _listed(model: ModelInfo, given: Any) -> list[Any]:
    """The inputs of a request as a list, also where one is given that is a list itself."""
    if not isinstance(given, list):
        return [given]
    is_one = len(model.reads) == 1 and FIELDS[model.reads[0]].is_listed(given)
    return [given] if is_one else given


def _words(given: Any) -> list[str] | None:
    """The words of a sentence that is given as a list of several; a list of one text is that text."""
    if not isinstance(given, list) or len(given) < 2:
        return None
    words = [each for each in given if isinstance(each, str)]
    return words if len(words) == len(given) else None


def _sources(model: ModelInfo, given: Any) -> list[SourceValue]:
    """The sources of one input, each of its kind: a list, or one text with a tab between them.

    A list of several texts is one source where that is a list of words, and a list of vectors is one.
    """
    kinds = model.reads or ("text",)
    words = _words(given)
    row: list[Any]
    if len(kinds) == 1 and FIELDS[kinds[0]].is_token_list and words is not None:
        row = [cell_of(words)]
    elif isinstance(given, list):
        is_one = len(kinds) == 1 and FIELDS[kinds[0]].is_listed(given)
        row = [given] if is_one else given
    else:
        row = [*given.split("\t")] if isinstance(given, str) and len(kinds) > 1 else [given]
    if len(row) != len(kinds):
        wanted = f"one {kinds[0]}"
        remedy = "Give each input its one source."
        if len(kinds) > 1:
            wanted = f"{len(kinds)} sources ({', '.join(kinds)})"
            example = ", ".join(['"..."'] * len(kinds))
            remedy = f'Give each input as a list in the list of inputs: {{"input": [[{example}]]}}.'
        raise InvalidArgument("input", wanted=wanted, got=str(len(row)), remedy=remedy)
    for kind, each in zip(kinds, row, strict=True):
        _check_source(kind, each)
    return row


def _check_source(kind: str, given: Any) -> None:
    """Refuse a source that is given in another form than its field is read in."""
    field = FIELDS[kind]
    got = _shown(given)
    key = field.content_key
    if key is None:
        if not isinstance(given, str):
            remedy = "Choose a model that reads it."
            if isinstance(given, SourceFile):
                remedy = "Choose a model that reads images."
            raise InvalidArgument("input", wanted=field.noun, got=got, remedy=remedy)
        return
    is_given = isinstance(given, SourceFile) and [*given.contents] == [key]
    if not is_given and not (isinstance(given, list) and field.has_lists):
        raise InvalidArgument("input", wanted=GIVEN[key], got=got, remedy=NO_PATH)


def _shown(given: Any) -> str:
    """What kind of value a request gives, for messages: its text could be a path, and is not repeated."""
    if isinstance(given, SourceFile):
        keys = [*given.contents]
        names = {"image": "an image", "file": "a file"}
        return " and ".join(names[key] for key in keys) or "no content"
    if given is None:
        return "null"
    names_of_types = {str: "a text", list: "a list", float: "a number", int: "a number"}
    return names_of_types[type(given)]
