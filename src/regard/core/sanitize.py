"""Output sanitizing: texts without control or invisible characters, and JSON without NaN."""

import json
import unicodedata
from collections.abc import Mapping
from math import isfinite
from typing import Any

REPLACEMENT = "\ufffd"
# Zero-width non-joiner and joiner, which Persian and emoji need, and the soft hyphen.
JOINERS = "\u200c\u200d\u00ad"


def printable(text: str, also: str = "") -> str:
    """A text with U+FFFD in place of each unprintable character that is not in `also`.

    Letters, marks and spaces of every width are kept. Control characters, line breaks, surrogates, unassigned and
    private code points, direction marks and other invisible format characters are replaced.
    """
    # Most texts are printable, and a server writes a line for each request.
    if text.isprintable():
        return text
    shown = []
    for character in text:
        if character in also or _is_shown(character):
            shown.append(character)
        else:
            shown.append(REPLACEMENT)
    return "".join(shown)


def indented(text: str) -> str:
    """A message without unprintable characters, whose further lines do not look like messages of their own."""
    return printable(text, also="\n").replace("\n", "\n  ")


def _is_shown(character: str) -> bool:
    if character.isprintable() or character in JOINERS:
        return True
    return unicodedata.category(character) == "Zs"


def is_encodable(text: str) -> bool:
    """Whether a text can be encoded as UTF-8: it holds no unpaired surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def one_line(text: str) -> str:
    """A text on one line: line breaks are escaped."""
    if set(text) & {"\n", "\r"}:
        return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return text


def as_json_line(table: Mapping[str, Any]) -> str:
    """A table as one line of JSON; numbers that are not finite become null."""
    finite = dict(table)
    for key, value in table.items():
        if isinstance(value, float) and not isfinite(value):
            finite[key] = None
    return json.dumps(finite, ensure_ascii=False, allow_nan=False)
