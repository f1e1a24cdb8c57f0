"""Inputs of models in requests as texts: an image as a data: URL, vectors as one or as a list in JSON."""

import base64
import binascii
from collections.abc import Sequence

from regard.core.errors import InvalidArgument
from regard.data.fields.base import FIELDS
from regard.serving.http.schemas import SourceFile, SourceValue, Vectors
from regard.serving.http.service import decoded_value

DATA_URLS = {"image": "data:image/", "file": "data:"}  # how those of a content begin
SHOWN = {"image": "an image as data:image/png;base64,…", "file": "a file as data:…;base64,…"}


def sources_of(parts: Sequence[str], reads: Sequence[str]) -> list[SourceValue]:
    """The sources of one input, from a string for each: the content of a file as a data: URL."""
    keys = [FIELDS[kind].content_key for kind in reads]
    # A language model reads one text, which is no source.
    keys += [None] * (len(parts) - len(reads))
    numbered = enumerate(zip(parts, keys, strict=False), start=1)
    return [_source(part, key, f"input {number}") for number, (part, key) in numbered]


def _source(part: str, key: str | None, name: str) -> SourceValue:
    if key is None:
        return part
    if key == "file" and part.lstrip().startswith("["):
        vectors: SourceValue = decoded_value(part.encode(), Vectors)
        return vectors
    return content_of(part, key, name)


def content_of(url: str, key: str, name: str) -> SourceFile:
    """The content of a data: URL (RFC 2397) in base64. No file and no other address is ever read."""
    head, comma, content = url.partition(",")
    if not comma or not head.startswith(DATA_URLS[key]) or not head.endswith(";base64"):
        raise InvalidArgument(
            name, wanted=SHOWN[key], got=repr(url[:40]), remedy="Send its content."
        )
    try:
        return SourceFile(**{key: base64.b64decode(content, validate=True)})
    except binascii.Error as error:
        raise InvalidArgument(
            name, wanted="base64", got=str(error), remedy="Encode its content."
        ) from None
