"""Inputs of models in requests: texts, labels and images, an image as a data: URL."""

import base64
import binascii
from collections.abc import Sequence

from regard.core.errors import InvalidArgument
from regard.data.fields.base import FIELDS
from regard.server.wire import ImageFile, SourceValue


def sources_of(parts: Sequence[str], reads: Sequence[str]) -> list[SourceValue]:
    """The sources of one input, from a string for each: an image as a data: URL."""
    is_image = [FIELDS[kind].is_file for kind in reads]
    # A language model reads one text, which is no source.
    is_image += [False] * (len(parts) - len(reads))
    numbered = enumerate(zip(parts, is_image, strict=False), start=1)
    return [
        image_of(part, f"input {number}") if image else part for number, (part, image) in numbered
    ]


def image_of(url: str, name: str) -> ImageFile:
    """The content of a data: URL (RFC 2397) in base64. No file and no other address is ever read."""
    head, comma, content = url.partition(",")
    if not comma or not head.startswith("data:image/") or not head.endswith(";base64"):
        wanted = "an image as data:image/png;base64,…"
        raise InvalidArgument(name, wanted=wanted, got=repr(url[:40]), remedy="Send its content.")
    try:
        return ImageFile(base64.b64decode(content, validate=True))
    except binascii.Error as error:
        raise InvalidArgument(
            name, wanted="base64", got=str(error), remedy="Encode its content."
        ) from None
