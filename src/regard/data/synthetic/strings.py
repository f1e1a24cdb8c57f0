"""Strings of random letters to copy, reverse or sort."""

from collections.abc import Callable, Iterator

from regard.data.example import Example, Split
from regard.data.synthetic.sampling import distinct, uniform

ALPHABET = "abcdefghijklmnopqrstuvwxyz"


def copy(split: Split, seed: int = 0, size: int | None = None) -> Iterator[Example]:
    """A string and the same string."""
    return _strings("copy", split, seed, size, lambda letters: letters)


def reverse(split: Split, seed: int = 0, size: int | None = None) -> Iterator[Example]:
    """A string and its reverse."""
    return _strings("reverse", split, seed, size, lambda letters: letters[::-1])


def sort(split: Split, seed: int = 0, size: int | None = None) -> Iterator[Example]:
    """A string and its letters in alphabetical order."""
    return _strings("sort", split, seed, size, lambda letters: "".join(sorted(letters)))


def random_letters(random: Callable[[], float]) -> str:
    """3 to 12 letters."""
    return "".join([ALPHABET[int(random() * len(ALPHABET))] for _ in range(3 + int(random() * 10))])


def _strings(task: str, split: Split, seed: int, size: int | None, answer: Callable[[str], str]) -> Iterator[Example]:
    random = uniform(task, split, seed)

    def draw() -> Example:
        letters = random_letters(random)
        return Example(letters, answer(letters))

    return distinct(draw, lambda example: str(example.source), split, size)
