"""What may be written: texts without what a terminal would obey, XML may not hold, or hides; JSON without NaN."""

import json
import unicodedata
from collections.abc import Mapping
from math import isfinite
from typing import Any

INSTEAD = "\ufffd"  # the sign that stands for another
JOINERS = "\u200c\u200d\u00ad"  # Persian words and families of emoji need them; and where a word may be divided


def printable(text: str, also: str = "") -> str:
    """A text with a sign in place of each character that is not to be shown, but for those in `also`.

    Letters, marks and spaces of every width stay. Control characters and ends of lines do not, nor halves of
    characters, numbers that no character has, private ones, turns of direction, and other formats that nobody sees.
    """
    return "".join(one if one in also or _shown(one) else INSTEAD for one in text)


def _shown(letter: str) -> bool:
    return letter.isprintable() or letter in JOINERS or unicodedata.category(letter) == "Zs"


def as_json_line(table: Mapping[str, Any]) -> str:
    """A table as one line of JSON, which knows no number that is not finite."""
    known = {key: None if isinstance(value, float) and not isfinite(value) else value for key, value in table.items()}
    return json.dumps(known, ensure_ascii=False, allow_nan=False)
