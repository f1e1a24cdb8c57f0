"""Finding the vectors of some words in a large file, which is read once and never held in memory as a whole.

Text: a word and its numbers to each line, with a first line of the number of words and the dimension (word2vec, gensim,
fastText, `regard words train`) or without (GloVe). Binary: word2vec's format, with that first line. Both may be packed,
in a file whose name ends in .gz.
"""

import gzip
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from regard.core.errors import InvalidData
from regard.data.text import MARK, open_regular, readable

Vector = NDArray[np.float32]
LONGEST = 1 << 20  # bytes of a line
LARGEST_DIM = 1 << 15
PRINTABLE = frozenset(b"\t\r" + bytes(range(32, 127)))
DAMAGED = "The file is damaged, or of another format."
OTHER_FORMATS = {
    b"\xba\x16\x4f\x2f": ("a model of fastText", "Give its .vec file."),
    b"PK\x03\x04": ("a zip archive", "Unpack it."),
    b"\x1f\x8b": ("a packed file", "Give it a name that ends in .gz."),
    b"\x28\xb5\x2f\xfd": ("a packed file", "Unpack it."),
    b"\x80": (
        "a pickled Python object",
        "gensim writes text with KeyedVectors.save_word2vec_format.",
    ),
    b"\x93NUMPY": ("an array of NumPy", "Write a word and its numbers to each line."),
}


@dataclass(frozen=True)
class Layout:
    """How a file holds its vectors."""

    dim: int
    count: int | None  # words by the first line; None without such a line
    is_binary: bool


def layout_of(path: Path) -> Layout:
    """The layout of a file, from its first lines."""
    with _opened(path) as file:
        start = file.read(LONGEST)
    for mark, (got, remedy) in OTHER_FORMATS.items():
        if start.startswith(mark):
            raise InvalidData(path, wanted="a file of word vectors", got=got, remedy=remedy)
    text = start.removeprefix(MARK).lstrip(b"\r\n")
    skipped = start[: len(start) - len(text)]
    line = 1 + skipped.count(b"\n")
    first, _, rest = text.partition(b"\n")
    fields = first.split()
    if len(fields) == 2 and all(field.isdigit() for field in fields):
        # No file holds more words than 19 digits can say, and Python refuses to read thousands of digits.
        count, dim = (int(field[:19]) for field in fields)
        if count < 1 or not 1 <= dim <= LARGEST_DIM:
            wanted = f"at least 1 word and a dimension from 1 to {LARGEST_DIM}"
            raise _malformed(path, line, wanted, _shown(first))
        return Layout(dim, count, _is_binary(rest, dim))
    if len(fields) < 2 or not all(map(_is_number, fields[1:])):
        wanted = "a word and its numbers, or the number of words and their dimension"
        got = _shown(first) if text else "an empty file"
        raise _malformed(path, line, wanted, got)
    return Layout(len(fields) - 1, None, is_binary=False)


def find_vectors(path: Path, words: Collection[str]) -> dict[str, Vector]:
    """Read the vectors of these words from a file, which may lack some. Of a word's vectors, the first one counts."""
    layout = layout_of(path)
    wanted = {word.encode(): word for word in words}
    rows = _binary_rows if layout.is_binary else _text_rows
    found: dict[str, Vector] = {}
    for word, vector in rows(path, layout, wanted):
        found.setdefault(wanted[word], vector)
    return found


@contextmanager
def _opened(path: Path) -> Iterator[BufferedIOBase]:
    with readable(path), open_regular(path) as file:
        if path.suffix != ".gz":
            yield file
            return
        with gzip.GzipFile(fileobj=file) as unpacked:
            yield unpacked


def _text_rows(
    path: Path, layout: Layout, wanted: Collection[bytes]
) -> Iterator[tuple[bytes, Vector]]:
    """Yield the rows of the wanted words. The columns of all other rows are counted too, to find truncated files."""
    rows = 0
    number = 0
    needs_header = layout.count is not None
    with _opened(path) as file:
        while raw := file.readline(LONGEST):
            number += 1
            if len(raw) == LONGEST and not raw.endswith(b"\n"):
                wanted_line = f"lines of less than {LONGEST:,} bytes"
                raise _malformed(path, number, wanted_line, "a longer one")
            line = raw
            if number == 1:
                line = raw.removeprefix(MARK)
            line = line.replace(b"\t", b" ").rstrip(b" \r\n")
            if not line:
                continue
            if needs_header:
                needs_header = False
                continue
            if rows == layout.count:
                wanted_end = f"the end after the {rows:,} words of the first line"
                raise _malformed(path, number, wanted_end, _shown(line))
            rows += 1
            if line.count(b" ") == layout.dim:
                word, _, numbers = line.partition(b" ")
            else:
                word, numbers = _with_spaces(path, number, line, layout.dim)
            if word in wanted:
                yield word, _parsed(path, number, word, numbers)
    if layout.count is not None and rows < layout.count:
        expected = f"{layout.count:,} words, as the first line says"
        raise _malformed(path, number + 1, expected, f"the end after {rows:,}")


def _with_spaces(path: Path, number: int, line: bytes, dim: int) -> tuple[bytes, bytes]:
    """A word that has spaces itself, as a few of GloVe's do, and the numbers after it."""
    word, *columns = line.rsplit(b" ", dim)
    last = word.rpartition(b" ")[2]
    if len(columns) < dim or _is_number(last):
        first, *others = line.split(b" ")
        got = f"{_shown(first)} and {len(others)}"
        raise _malformed(path, number, f"a word and {dim} numbers", got)
    return word, b" ".join(columns)


def _parsed(path: Path, number: int, word: bytes, numbers: bytes) -> Vector:
    written = numbers.decode("ascii", "replace").split(" ")
    try:
        # A number too large for float32 becomes infinite.
        with np.errstate(over="ignore"):
            vector = np.array(written, dtype=np.float32)
    except ValueError as error:
        raise _malformed(path, number, f"numbers after {_shown(word)}", str(error)) from None
    is_finite = np.isfinite(vector)
    if not is_finite.all():
        wanted = f"finite numbers after {_shown(word)}"
        raise _malformed(path, number, wanted, written[int(is_finite.argmin())])
    return vector


def _binary_rows(
    path: Path, layout: Layout, wanted: Collection[bytes]
) -> Iterator[tuple[bytes, Vector]]:
    """The rows of the wanted words: a word, a space, and its numbers as little-endian float32."""
    assert layout.count is not None
    size = 4 * layout.dim
    with _opened(path) as file:
        # Skip the first line, and empty lines before it.
        while not file.readline(LONGEST).removeprefix(MARK).strip(b"\r\n"):
            continue
        buffer = b""
        start = 0
        for row in range(1, layout.count + 1):
            # Read on until the buffer holds a whole row: the word, a space and its numbers.
            space = buffer.find(b" ", start)
            while space < 0 or len(buffer) < space + 1 + size:
                more = file.read(LONGEST)
                if not more or (space < 0 and len(buffer) - start > LONGEST):
                    wanted_row = f"{layout.count:,} words of {layout.dim} numbers"
                    got = f"the end within word {row:,}"
                    raise InvalidData(path, wanted=wanted_row, got=got, remedy=DAMAGED)
                buffer = buffer[start:] + more
                start = 0
                space = buffer.find(b" ")
            # The original tool ends each vector with a line break; gensim does not.
            word = buffer[start:space].lstrip(b"\n")
            start = space + 1 + size
            if word in wanted:
                vector = np.frombuffer(buffer, dtype="<f4", count=layout.dim, offset=space + 1)
                if not np.isfinite(vector).all():
                    expected = f"finite numbers for {_shown(word)}"
                    got = f"others, in word {row:,}"
                    raise InvalidData(path, wanted=expected, got=got, remedy=DAMAGED)
                yield word, vector.astype(np.float32)
        rest = (buffer[start:] + file.read(LONGEST)).strip(b"\r\n")
    if rest:
        expected = f"the end after the {layout.count:,} words of the first line"
        raise InvalidData(path, wanted=expected, got="more bytes", remedy=DAMAGED)


def _is_binary(rest: bytes, dim: int) -> bool:
    """Whether the bytes after the first line are word2vec's binary format, whose numbers are not text."""
    _, _, after_word = rest.partition(b" ")
    numbers = after_word[: 4 * dim]
    line, _, _ = numbers.partition(b"\n")
    # In text, each number has a digit at least, and a space before the next one.
    if len(line) >= min(2 * dim - 1, len(numbers)):
        return not PRINTABLE.issuperset(line)
    return not (PRINTABLE | {10}).issuperset(numbers)


def _is_number(field: bytes) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _shown(text: bytes) -> str:
    return repr(text[:40].decode("utf-8", "replace"))


def _malformed(path: Path, line: int, wanted: str, got: str) -> InvalidData:
    return InvalidData(path, line, wanted=wanted, got=got, remedy=DAMAGED)
