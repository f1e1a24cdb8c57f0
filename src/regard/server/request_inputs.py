"""The inputs of a request: texts, labels and images, as many as a model reads, and images as their pixels.

Images arrive as the contents of files, never as a path or a URL. They are decoded in threads of their own, to the size
that the model reads: neither the event loop nor the engine waits for them, and what is queued is small.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from http import HTTPStatus

from regard.core.errors import InvalidArgument
from regard.data.fields.base import FIELDS
from regard.data.images import Pixels, decode_image
from regard.data.token_lists import cell_of
from regard.server.interfaces import ModelInfo
from regard.server.problems import RequestRefused
from regard.server.wire import ImageFile, Inputs, SourceValue
from regard.tasks.inputs import InputValue

DECODERS = min(
    4, os.cpu_count() or 1
)  # images that are decoded at a time: each may take hundreds of megabytes


class InputReader:
    """Checks the inputs of requests and decodes their images.

    max_text   bytes of all texts of a request
    """

    def __init__(self, max_text: int) -> None:
        self.max_text = max_text

    @cached_property
    def _decoders(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(DECODERS, "regard images")

    async def read(self, model: ModelInfo, given: Inputs, most: int) -> list[InputValue]:
        """The inputs of a request for a model, at most so many; refused where they are not what it reads."""
        inputs = given if isinstance(given, list) else [given]
        if not 0 < len(inputs) <= most:
            wanted, where = (f"1 to {most}", "requests") if most > 1 else ("one in a line", "lines")
            message = f"input: wanted {wanted}; got {len(inputs)}. Send them in several {where}."
            raise RequestRefused(HTTPStatus.BAD_REQUEST, message)
        rows = [_sources(model, each) for each in inputs]
        texts = sum(len(each.encode()) for row in rows for each in row if isinstance(each, str))
        if texts > self.max_text:
            message = f"input: wanted texts of at most {self.max_text:,} bytes; got {texts:,}. Split the request."
            raise RequestRefused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message)
        if "image" not in model.reads:
            return [
                _joined([each for each in row if isinstance(each, str)]) for row in rows
            ]  # all of them
        return [await self._value(model, row, number) for number, row in enumerate(rows, start=1)]

    async def read_one(
        self, model: ModelInfo, given: SourceValue | list[SourceValue]
    ) -> InputValue:
        """The one input of a request; several sources are a list."""
        (value,) = await self.read(model, [given], 1)
        return value

    async def _value(self, model: ModelInfo, row: Sequence[SourceValue], number: int) -> InputValue:
        parts: list[str | Pixels] = []
        for each, size in zip(row, model.image_sizes or (None,) * len(row), strict=True):
            if isinstance(each, str):
                parts.append(each)
                continue
            assert size is not None
            decode: Callable[..., Pixels] = decode_image
            loop = asyncio.get_running_loop()
            name = f"image of input {number}"
            parts.append(
                await loop.run_in_executor(self._decoders, decode, each.image, name, *size)
            )
        return _joined(parts)


def _joined(parts: "Sequence[str | Pixels]") -> InputValue:
    """One source as it is, several as a tuple."""
    return parts[0] if len(parts) == 1 else tuple(parts)


def _words(given: SourceValue | list[SourceValue]) -> list[str] | None:
    """The words of a sentence that is given as a list of several; a list of one text is that text."""
    if not isinstance(given, list) or len(given) < 2:
        return None
    words = [each for each in given if isinstance(each, str)]
    return words if len(words) == len(given) else None


def _sources(model: ModelInfo, given: SourceValue | list[SourceValue]) -> list[SourceValue]:
    """The sources of one input, each of its kind: a list, or one text with a tab between them.

    A list of several texts is one source where that is a list of words.
    """
    kinds = model.reads or ("text",)
    words = _words(given)
    row: list[SourceValue]
    if len(kinds) == 1 and FIELDS[kinds[0]].is_token_list and words is not None:
        row = [cell_of(words)]
    elif isinstance(given, list):
        row = given
    else:
        row = [*given.split("\t")] if isinstance(given, str) and len(kinds) > 1 else [given]
    if len(row) != len(kinds):
        wanted = (
            f"{len(kinds)} sources ({', '.join(kinds)})" if len(kinds) > 1 else f"one {kinds[0]}"
        )
        raise InvalidArgument(
            "input", wanted=wanted, got=str(len(row)), remedy="Give each input all its sources."
        )
    for kind, each in zip(kinds, row, strict=True):
        is_image = isinstance(each, ImageFile)
        wants_image = FIELDS[kind].is_file
        if wants_image and not is_image:
            raise InvalidArgument(
                "input",
                wanted='the content of an image: {"image": BASE64}, or uploaded',
                got="a text",
                remedy="No path and no URL is taken.",
            )
        if is_image and not wants_image:
            raise InvalidArgument(
                "input",
                wanted=FIELDS[kind].noun,
                got="an image",
                remedy="Choose a model that reads images.",
            )
    return row
