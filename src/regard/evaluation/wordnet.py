"""Which English words mean the same, where WordNet's files are there to say so.

They are its "dict" folder: $WNSEARCHDIR, or where Debian puts it.
"""

import os
from functools import cache
from pathlib import Path

PARTS = ("noun", "verb", "adj", "adv")
FOLDER = "/usr/share/wordnet"
# Endings, and what stands in their place in a dictionary.
ENDINGS = {
    "noun": "s: ses:s xes:x zes:z ches:ch shes:sh men:man ies:y",
    "verb": "s: ies:y es:e es: ed:e ed: ing:e ing:",
    "adj": "er: est: er:e est:e",
    "adv": "",
}


class Synonyms:
    """Words as sets of meanings; two words that share one are synonyms."""

    def __init__(self, folder: Path) -> None:
        self.meanings = {part: _index(folder / f"index.{part}") for part in PARTS}
        self.irregular = {part: _irregular(folder / f"{part}.exc") for part in PARTS}

    def of(self, word: str) -> frozenset[str]:
        """All meanings of a word, whatever its form."""
        found: set[str] = set()
        for part, meanings in self.meanings.items():
            forms = {word, *self.irregular[part].get(word, ())}
            for ending in ENDINGS[part].split():
                end, _, instead = ending.partition(":")
                if word.endswith(end):
                    forms.add(word.removesuffix(end) + instead)
            for form in forms:
                found.update(f"{part} {meaning}" for meaning in meanings.get(form, ()))
        return frozenset(found)


@cache
def synonyms() -> Synonyms | None:
    """Those of this machine; None where there are no such files."""
    folder = Path(os.environ.get("WNSEARCHDIR", FOLDER))
    return Synonyms(folder) if (folder / "index.noun").is_file() else None


def _index(path: Path) -> dict[str, tuple[str, ...]]:
    """Each word with the numbers of its meanings, which end its line; lines that begin with a space are its licence."""
    found = {}
    for line in path.read_text("utf-8").splitlines():
        if not line.startswith(" "):
            word, _, count, *rest = line.split()
            found[word] = tuple(rest[-int(count) :])
    return found


def _irregular(path: Path) -> dict[str, list[str]]:
    lines = path.read_text("utf-8").splitlines() if path.is_file() else []
    return {word: forms for word, *forms in map(str.split, filter(str.strip, lines))}
