"""Inputs of models in requests: texts, labels and images, an image as a data: URL."""

import base64
import binascii
from collections.abc import Sequence

from regard.core.errors import InvalidArgument
from regard.server.wire import ImageFile, SourceValue


def sources_of(parts: Sequence[str], reads: Sequence[str]) -> list[SourceValue]:
    """The sources of one input, from a string for each: an image as a data: URL."""
    kinds = [*reads, *["text"] * (len(parts) - len(reads))]  # a language model reads one text
    return [
        image_of(part, f"input {number}") if kind == "image" else part
        for number, (part, kind) in enumerate(zip(parts, kinds, strict=False), start=1)
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
