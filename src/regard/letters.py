"""Texts as they may be shown: nothing that a terminal would obey, that a file of XML may not hold, or that hides."""

import unicodedata

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
