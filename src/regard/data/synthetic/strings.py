"""Strings of random letters to copy, reverse or sort; which of these may be a second source."""

from collections.abc import Callable, Iterator

from regard.data.example import Example, Split
from regard.data.synthetic.sampling import distinct, uniform

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
OPERATIONS: dict[str, Callable[[str], str]] = {
    "copy": lambda letters: letters,
    "reverse": lambda letters: letters[::-1],
    "sort": lambda letters: "".join(sorted(letters)),
}


def strings(
    operation: str, split: Split, seed: int = 0, size: int | None = None
) -> Iterator[Example]:
    """A string and the same string ("copy"), its reverse,
    or its letters in alphabetical order ("sort").
    """
    random = uniform(operation, split, seed)

    def draw() -> Example:
        letters = random_letters(random)
        return Example(letters, OPERATIONS[operation](letters))

    return distinct(draw, lambda example: str(example.source), split, size)


def operations(split: Split, seed: int = 0, size: int | None = None) -> Iterator[Example]:
    """Two sources, the name of an operation (a label) and a string; and the result.

    No string is in two splits.

    >>> next(operations("test"))
    Example(source=('sort', 'epsxxffuemv'), target='eeffmpsuvxx')
    """
    random = uniform("operations", split, seed)

    def draw() -> Example:
        name = list(OPERATIONS)[int(random() * len(OPERATIONS))]
        letters = random_letters(random)
        return Example((name, letters), OPERATIONS[name](letters))

    return distinct(draw, lambda example: str(example.sources[1]), split, size)


def random_letters(random: Callable[[], float]) -> str:
    """3 to 12 letters."""
    return "".join([ALPHABET[int(random() * len(ALPHABET))] for _ in range(3 + int(random() * 10))])
