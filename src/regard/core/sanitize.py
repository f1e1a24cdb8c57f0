"""Output sanitizing: texts without control or invisible characters, and JSON without NaN."""

import json
import unicodedata
from collections.abc import Mapping
from math import isfinite
from typing import Any

REPLACEMENT = "\ufffd"
JOINERS = (
    "\u200c\u200d\u00ad"  # zero-width (non-)joiner, needed in Persian and in emoji; soft hyphen
)


def printable(text: str, also: str = "") -> str:
    """A text with U+FFFD in place of each unprintable character that is not in `also`.

    Letters, marks and spaces of every width are kept. Control characters, line breaks, surrogates, unassigned and
    private code points, direction marks and other invisible format characters are replaced.
    """
    if text.isprintable():  # most are, and a server writes a line for each request
        return text
    return "".join(
        character if character in also or _is_shown(character) else REPLACEMENT
        for character in text
    )


def indented(text: str) -> str:
    """A message without unprintable characters, whose further lines do not look like messages of their own."""
    return printable(text, also="\n").replace("\n", "\n  ")


def _is_shown(character: str) -> bool:
    return (
        character.isprintable() or character in JOINERS or unicodedata.category(character) == "Zs"
    )


def is_encodable(text: str) -> bool:
    """Whether a text can be encoded as UTF-8: it holds no unpaired surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def one_line(text: str) -> str:
    """A text on one line: line breaks are escaped."""
    return (
        text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
        if set(text) & {"\n", "\r"}
        else text
    )


def as_json_line(table: Mapping[str, Any]) -> str:
    """A table as one line of JSON; numbers that are not finite become null."""
    finite = {
        key: None if isinstance(value, float) and not isfinite(value) else value
        for key, value in table.items()
    }
    return json.dumps(finite, ensure_ascii=False, allow_nan=False)
