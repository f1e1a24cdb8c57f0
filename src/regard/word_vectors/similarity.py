"""Similar words and analogies by cosine, and the reader of word2vec's text format, with NumPy and without PyTorch."""

from array import array
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.core.config import nearest as nearest_spelling
from regard.core.errors import InvalidArgument, InvalidData
from regard.data.text import lines

Matrix = NDArray[np.float32]
LONGEST = 19  # digits of a count: no file holds more, and Python refuses to read thousands of them


class WordSimilarity:
    """Cosines between words, each of which has a row of the matrix."""

    def __init__(self, words: Sequence[str], matrix: Matrix) -> None:
        self.words = tuple(words)
        self.matrix = matrix
        self.rows = {word: row for row, word in enumerate(self.words)}

    @staticmethod
    def load(path: str | Path) -> "WordSimilarity":
        """Read a file of word vectors."""
        return WordSimilarity(*read_vectors(Path(path)))

    @cached_property
    def units(self) -> Matrix:
        """The vectors normalized to length 1, so that a product is a cosine."""
        return normalized(self.matrix)

    def row(self, word: str) -> int:
        """The row of a word in the matrix."""
        if word not in self.rows:
            wanted = f"one of the {len(self.words)} known words"
            remedy = nearest_spelling(word, self.words)
            raise InvalidArgument("word", wanted=wanted, got=repr(word), remedy=remedy)
        return self.rows[word]

    def nearest(self, word: str, count: int = 10) -> list[tuple[str, float]]:
        """The words with the largest cosines to a word, without the word itself."""
        row = self.row(word)
        return self.greatest(self.units[row], {row}, count)

    def analogy(self, a: str, b: str, c: str, count: int = 1) -> list[tuple[str, float]]:
        """`a` is to `b` as `c` is to what? By 3CosAdd, never one of the three (https://aclanthology.org/W14-1618)."""
        rows = [self.row(word) for word in (a, b, c)]
        from_, to, start = self.units[rows]
        return self.greatest(normalized(to - from_ + start), set(rows), count)

    def greatest(self, unit: Matrix, excluded: set[int], count: int) -> list[tuple[str, float]]:
        """The words with the largest cosines to a vector of length 1, without the rows `excluded`."""
        if count < 1:
            raise InvalidArgument("count", wanted="at least 1", got=str(count), remedy="Raise it.")
        cosines = self.units @ unit  # (words,)
        order = np.argsort(-cosines, kind="stable")
        candidates = order[: count + len(excluded)].tolist()
        chosen = [row for row in candidates if row not in excluded][:count]
        return [(self.words[row], float(cosines[row])) for row in chosen]


def normalized(vectors: Matrix) -> Matrix:
    """The vectors (the last axis) divided by their lengths; zeros stay."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    units: Matrix = np.divide(vectors, np.maximum(lengths, 1e-12), dtype=np.float32)
    return units


def read_vectors(path: Path) -> tuple[tuple[str, ...], Matrix]:
    """The words and vectors of a file in word2vec's text format."""
    stripped = ((number, line.rstrip(" \t")) for number, line in enumerate(lines(path), start=1))
    nonempty = ((number, line) for number, line in stripped if line)
    count, dim = _header(path, *next(nonempty, (1, "")))
    words: dict[str, int] = {}
    numbers = array("f")  # not allocated by the header, which may be wrong
    for number, line in nonempty:
        word, *values = line.split(" ")
        if len(words) == count:
            wanted = f"the end after the {count} words of the first line"
            raise _malformed(path, number, wanted, repr(line[:40]))
        if len(values) != dim:
            got = f"{word!r} and {len(values)}"
            raise _malformed(path, number, f"a word and {dim} numbers", got)
        if word in words:
            got = f"{word!r}, which is on line {words[word]} too"
            raise _malformed(path, number, "each word once", got)
        try:
            # A number too large for float32 becomes infinite, which is refused below.
            with np.errstate(over="ignore"):
                row = np.array(values, dtype=np.float32)
        except ValueError as error:
            raise _malformed(path, number, f"{dim} numbers after {word!r}", str(error)) from None
        finite = np.isfinite(row)
        if not finite.all():
            first_bad = values[finite.argmin()]
            raise _malformed(path, number, f"{dim} finite numbers after {word!r}", first_bad)
        words[word] = number
        numbers.frombytes(row.tobytes())
    if len(words) < count:
        wanted = f"{count} words, as the first line says"
        got = f"{len(words)}, then the end"
        raise _malformed(path, 1 + len(words), wanted, got)
    matrix = np.frombuffer(numbers, dtype=np.float32).reshape(count, dim)
    return tuple(words), matrix


def _header(path: Path, number: int, line: str) -> tuple[int, int]:
    """The number of words and their dimension, from the first line."""
    fields = line.split(" ")
    if len(fields) == 2 and all(map(_is_count, fields)):
        return int(fields[0]), int(fields[1])
    raise _malformed(path, number, "the number of words and their dimension", repr(line[:40]))


def _is_count(field: str) -> bool:
    return field.isdecimal() and len(field) <= LONGEST and int(field) > 0


def _malformed(path: Path, line: int, wanted: str, got: str) -> InvalidData:
    remedy = "The file is truncated, or of another format."
    return InvalidData(path, line, wanted=wanted, got=got, remedy=remedy)
