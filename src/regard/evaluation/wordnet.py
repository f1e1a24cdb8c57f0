"""Synonyms from WordNet's database files, if they are installed: in the folder $WNSEARCHDIR, or in Debian's."""

import os
from functools import cache
from pathlib import Path

PARTS_OF_SPEECH = ("noun", "verb", "adj", "adv")
FOLDER = "/usr/share/wordnet"
# Inflectional suffixes and what replaces them in the lemma (WordNet's morphy rules).
SUFFIXES = {
    "noun": "s: ses:s xes:x zes:z ches:ch shes:sh men:man ies:y",
    "verb": "s: ies:y es:e es: ed:e ed: ing:e ing:",
    "adj": "er: est: er:e est:e",
    "adv": "",
}


class WordNet:
    """The synsets of words; two words that share one are synonyms."""

    def __init__(self, folder: Path) -> None:
        self.synsets_of = {part: _index(folder / f"index.{part}") for part in PARTS_OF_SPEECH}
        self.exceptions = {part: _exceptions(folder / f"{part}.exc") for part in PARTS_OF_SPEECH}

    def synsets(self, word: str) -> frozenset[str]:
        """All synsets of a word in any inflected form."""
        result: set[str] = set()
        for part, synsets_of in self.synsets_of.items():
            lemmas = {word, *self.exceptions[part].get(word, ())}
            for rule in SUFFIXES[part].split():
                suffix, _, replacement = rule.partition(":")
                if word.endswith(suffix):
                    lemmas.add(word.removesuffix(suffix) + replacement)
            for lemma in lemmas:
                result.update(f"{part} {synset}" for synset in synsets_of.get(lemma, ()))
        return frozenset(result)


def folder() -> Path | None:
    """The folder of WordNet's files; None if it is not installed."""
    path = Path(os.environ.get("WNSEARCHDIR", FOLDER))
    return path if (path / "index.noun").is_file() else None


@cache
def wordnet() -> WordNet | None:
    """The installed WordNet, read once; None if there is none."""
    path = folder()
    if path is None:
        return None
    return WordNet(path)


def _index(path: Path) -> dict[str, tuple[str, ...]]:
    """Lemma -> synset offsets, which end its line. Lines that begin with a space are the license."""
    index = {}
    for line in path.read_text("utf-8").splitlines():
        if not line.startswith(" "):
            lemma, _, count, *rest = line.split()
            index[lemma] = tuple(rest[-int(count) :])
    return index


def _exceptions(path: Path) -> dict[str, list[str]]:
    """Irregular form -> lemmas."""
    if not path.is_file():
        return {}
    lemmas_of = {}
    for line in path.read_text("utf-8").splitlines():
        if line.strip():
            word, *lemmas = line.split()
            lemmas_of[word] = lemmas
    return lemmas_of
