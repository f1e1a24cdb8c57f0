"""Files with a token a line and its annotations in columns: the formats of the CoNLL tasks,
and CoNLL-U.

A blank line ends a sentence. Cells are separated by tabs if the first row of the file has one,
otherwise by spaces, any number of them; columns have numbers from "1". Lines that begin with "#"
before a sentence are comments, and rows that begin with -DOCSTART- separate documents.

In CoNLL-U (https://universaldependencies.org/format.html) columns also have the names of
`CONLLU_COLUMNS`. Ranges of words that are written as one (3-4) and empty nodes (5.1) are skipped. A
file is read so if its name ends in .conllu, if a column is given by one of these names, or if its
first row has ten cells after tabs of which the first is the number of a token.

The column "words" is FORM in CoNLL-U and the first elsewhere; "tags" is UPOS in CoNLL-U and the
last elsewhere.
"""

import logging
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from regard.core.config import nearest
from regard.core.errors import InvalidArgument, InvalidData
from regard.data import text
from regard.data.text import Errors
from regard.data.token_lists import cell_of

CONLLU_COLUMNS = (
    "ID",
    "FORM",
    "LEMMA",
    "UPOS",
    "XPOS",
    "FEATS",
    "HEAD",
    "DEPREL",
    "DEPS",
    "MISC",
)
# Columns whose place depends on the form of the file.
WORDS = "words"
TAGS = "tags"
# Names of files that are read so, whatever they hold.
FORMS = (".conll", ".conllu", ".conllx", ".iob", ".iob2", ".bio")
# Of a cell that says nothing.
UNSPECIFIED = "_"
# Columns of which a word without a value has no tag.
PARTS_OF_SPEECH = ("UPOS", "XPOS")
DOCUMENT_START = "-DOCSTART-"
LARGEST_SENTENCE = text.LONGEST_LINE  # bytes, of its lines together
_TOKEN_ID = re.compile(r"\d+(-\d+|\.\d+)?", re.ASCII)
_WORD_ID = re.compile(r"\d+", re.ASCII)
logger = logging.getLogger(__name__)
Sentence = tuple[tuple[str, ...], ...]


def has_token_lines(path: str | Path) -> bool:
    """Whether a file has a token a line by its name, packed or not."""
    return text.form(path) in FORMS


def is_conllu(path: str | Path) -> bool:
    """Whether a file is CoNLL-U by its name, packed or not."""
    return text.form(path) == ".conllu"


def sentences(
    path: str | Path,
    columns: Sequence[str],
    errors: Errors = "strict",
    *,
    comments: bool | None = None,
) -> Iterator[Sentence]:
    """Each sentence of a file: for each of these columns, the cells of its tokens.

    path       of the file; .gz and .zst are unpacked
    columns    numbers from "1", names of CoNLL-U, "words" or "tags"
    errors     "replace": bytes that are not UTF-8 become U+FFFD
    comments   whether lines that begin with "#" are comments, where a sentence begins; None: in
               CoNLL-U all are, and otherwise those that do not look like a row: that have no tab in
               a file with tabs, and that begin with "# " or have too few cells in one with spaces
    """
    return (cells for _, cells in numbered_sentences(path, columns, errors, comments=comments))


def numbered_sentences(
    path: str | Path,
    columns: Sequence[str],
    errors: Errors = "strict",
    *,
    comments: bool | None = None,
) -> Iterator[tuple[int, Sentence]]:
    """As `sentences`, each after the number of the line on which it begins, from 1."""
    if not columns:
        raise InvalidData(
            path,
            wanted="a column to read",
            got="none",
            remedy="Name the column of the words and that of the tags.",
        )
    for column in columns:
        _check_column(path, column)
    found = False
    for first_line, rows in _Reader(path, columns, errors, comments).sentences():
        found = True
        yield first_line, tuple(zip(*rows, strict=True))
    if not found:
        raise InvalidData(
            path,
            wanted="at least one sentence",
            got="none",
            remedy="Write a token a line, and a blank line after each sentence.",
        )


def cells(
    path: str | Path, columns: Sequence[str], errors: Errors = "strict"
) -> Iterator[tuple[str, ...]]:
    """For each sentence, its tokens in each of these columns as one cell of a table spells them."""
    for sentence in sentences(path, columns, errors):
        yield tuple(map(cell_of, sentence))


def line_of(path: str | Path, number: int, columns: Sequence[str], errors: Errors) -> int | None:
    """The line on which a sentence begins, by its number from 1; None if there are fewer."""
    found = numbered_sentences(path, columns, errors)
    for count, (line, _) in enumerate(found, start=1):
        if count == number:
            return line
    return None


def formatted(columns: Sequence[Sequence[str]], names: Sequence[str] = ()) -> str:
    """The lines of a sentence with these columns, between tabs, and the blank line after it.

    columns   for each column, the cells of the tokens
    names     their names in CoNLL-U, which is then written: all ten columns, with numbers from 1
              and "_" for the others
    """
    if not columns or len({len(column) for column in columns}) > 1:
        lengths = " and ".join(str(len(column)) for column in columns) or "no columns"
        raise InvalidArgument(
            "columns",
            wanted="columns with a cell for each token",
            got=lengths,
            remedy="Give each token a tag.",
        )
    for cell in (cell for column in columns for cell in column):
        if not cell.strip(" ") or set(cell) & set("\t\n\r"):
            raise InvalidArgument(
                "columns",
                wanted="cells without tabs and line breaks, which are not empty",
                got=repr(cell)[:60],
                remedy="Write another format, such as JSON.",
            )
    if names:
        columns = _all_conllu_columns(columns, names)
    rows = ["\t".join(row) + "\n" for row in zip(*columns, strict=True)]
    return "".join([*rows, "\n"])


def _all_conllu_columns(
    columns: Sequence[Sequence[str]], names: Sequence[str]
) -> list[Sequence[str]]:
    unknown = [name for name in names if name not in CONLLU_COLUMNS]
    if unknown or len(names) != len(columns):
        raise InvalidArgument(
            "names",
            wanted=f"for each of {len(columns)} columns one of {', '.join(CONLLU_COLUMNS)}",
            got=", ".join(names),
            remedy="Name each column as CoNLL-U does.",
        )
    given = dict(zip(names, columns, strict=True))
    tokens = len(columns[0])
    unspecified = [UNSPECIFIED] * tokens
    numbers = [str(number) for number in range(1, tokens + 1)]
    given.setdefault("ID", numbers)
    return [given.get(name, unspecified) for name in CONLLU_COLUMNS]


class _Reader:
    """Reads one file. What its first row decides is None until then."""

    def __init__(
        self, path: str | Path, columns: Sequence[str], errors: Errors, comments: bool | None
    ) -> None:
        self.path = path
        self.columns = columns
        self.errors = errors
        self.comments = comments
        named = any(column in CONLLU_COLUMNS for column in columns)
        self.conllu: bool | None = is_conllu(path) or named or None
        self.separator: str | None = "\t" if self.conllu else None
        self.width: int | None = None  # cells of the row before
        self.indices: list[int] = []
        self.warned = False

    def sentences(self) -> Iterator[tuple[int, list[list[str]]]]:
        """The first line of each sentence, and its rows: the cells of the wanted columns."""
        rows: list[list[str]] = []
        begun = 0  # the first line of a sentence; 0 between sentences
        size = 0
        for number, line in self._lines():
            if not line.strip(" \t"):
                if rows:
                    yield begun, rows
                rows = []
                begun = 0
                size = 0
                continue
            if line.startswith("#") and self._is_comment(number, line, begun):
                continue
            cells = self._cells(line)
            if not begun and cells[0] == DOCUMENT_START:
                continue
            size += len(line.encode("utf-8")) + 1
            if size > LARGEST_SENTENCE:
                self._refuse_large(begun)
            if self.conllu and not self._is_word(number, cells):
                continue
            if not begun:
                begun = number
                self.width = None
            rows.append(self._wanted(number, cells))
        if rows:
            yield begun, rows

    def _lines(self) -> Iterator[tuple[int, str]]:
        """The numbered lines of the file, once the first row has said how they are to be read."""
        held: list[tuple[int, str]] = []
        size = 0
        numbered = enumerate(text.lines(self.path, self.errors), start=1)
        for number, line in numbered:
            held.append((number, line))
            size += len(line.encode("utf-8")) + 1
            is_row = line.strip(" \t") and not line.startswith(DOCUMENT_START)
            may_be_comment = line.startswith("#") and self.comments is not False
            if is_row and not may_be_comment:
                self._decide(line)
                break
            if size > LARGEST_SENTENCE:
                self._refuse_large(1)
        first = next((line for _, line in held if line.strip(" \t")), None)
        if self.width is None and first is not None:
            # There are only lines that begin with "#".
            self._decide(first)
        yield from held
        yield from numbered

    def _decide(self, row: str) -> None:
        if self.separator is None:
            self.separator = "\t" if "\t" in row else " "
        cells = self._cells(row)
        self.width = len(cells)
        if self.conllu is None:
            is_tokens = _TOKEN_ID.fullmatch(cells[0]) is not None
            self.conllu = self.separator == "\t" and len(cells) == len(CONLLU_COLUMNS) and is_tokens
        self.indices = [self._index(column) for column in self.columns]

    def _index(self, column: str) -> int:
        if _is_number(column):
            return int(column) - 1
        if column in CONLLU_COLUMNS:
            return CONLLU_COLUMNS.index(column)
        if self.conllu:
            return CONLLU_COLUMNS.index("FORM" if column == WORDS else "UPOS")
        assert self.width is not None
        return 0 if column == WORDS else self.width - 1

    def _cells(self, line: str) -> list[str]:
        if self.separator == "\t":
            return [cell.strip(" ") for cell in line.split("\t")]
        return [cell for cell in re.split(r"[ \t]+", line) if cell]

    def _is_comment(self, number: int, line: str, begun: int) -> bool:
        """Whether a line that begins with "#" is a comment."""
        if self.comments is not None:
            return self.comments and not begun
        if self.conllu:
            return True
        if begun:
            return False
        if self.separator == "\t":
            return "\t" not in line
        if self.width is None or len(self._cells(line)) != self.width:
            return True
        if not line.startswith("# "):
            return False
        if not self.warned:
            _warn_of_comment(str(self.path), number, line)
        self.warned = True
        return True

    def _is_word(self, number: int, cells: Sequence[str]) -> bool:
        """Whether a row of CoNLL-U is a word, not a range of words or an empty node."""
        if not _TOKEN_ID.fullmatch(cells[0]):
            raise InvalidData(
                self.path,
                number,
                wanted="the number of a token in the first cell, as in CoNLL-U",
                got=repr(cells[0])[:60],
                remedy="Give columns by number to read a file that is not CoNLL-U.",
            )
        return _WORD_ID.fullmatch(cells[0]) is not None

    def _wanted(self, number: int, cells: list[str]) -> list[str]:
        needed = max(self.indices) + 1
        if len(cells) < needed:
            wanted = f"a row with {needed} cells or more"
            between = "tabs" if self.separator == "\t" else "spaces"
            got = f"{len(cells)} between {between}"
            remedy = f"Add what is missing, or name a column from 1 to {len(cells)}."
            raise InvalidData(self.path, number, wanted=wanted, got=got, remedy=remedy)
        if self.width is not None and len(cells) != self.width:
            raise InvalidData(
                self.path,
                number,
                wanted=f"{self.width} cells, as in the row before",
                got=str(len(cells)),
                remedy=(
                    "Remove what separates cells within one, or write a "
                    "blank line after a sentence."
                ),
            )
        self.width = len(cells)
        if self.conllu:
            self._check_tagged(number, cells)
        chosen = [cells[index] for index in self.indices]
        for column, cell in zip(self.columns, chosen, strict=True):
            if not cell:
                raise InvalidData(
                    self.path,
                    number,
                    wanted=f"a value in column {column}",
                    got="an empty cell",
                    remedy=f"Write {UNSPECIFIED} for what is not known.",
                )
        return chosen

    def _check_tagged(self, number: int, cells: list[str]) -> None:
        """Refuse a word without a part of speech where these are read."""
        for index in self.indices:
            name = CONLLU_COLUMNS[index] if index < len(CONLLU_COLUMNS) else ""
            if name in PARTS_OF_SPEECH and cells[index] == UNSPECIFIED:
                raise InvalidData(
                    self.path,
                    number,
                    wanted=f"a tag in column {name}",
                    got=f"{UNSPECIFIED}, which says that it is not known",
                    remedy="Name another column, or complete the file.",
                )

    def _refuse_large(self, line: int) -> None:
        raise InvalidData(
            self.path,
            line or None,
            wanted=f"a sentence of at most {LARGEST_SENTENCE:,} bytes",
            got="more without a blank line",
            remedy="Write a blank line after each sentence.",
        )


def _is_number(column: str) -> bool:
    return column.isdecimal() and column.isascii()


def is_column(column: str) -> bool:
    """Whether such files may have a column of this name or number."""
    if column in (*CONLLU_COLUMNS, WORDS, TAGS):
        return True
    return _is_number(column) and int(column) >= 1


def _check_column(path: str | Path, column: str) -> None:
    if is_column(column):
        return
    raise InvalidData(
        path,
        wanted=f"columns by number from 1, or by a name of CoNLL-U: {', '.join(CONLLU_COLUMNS)}",
        got=repr(column),
        remedy=nearest(column, CONLLU_COLUMNS, listed=True),
    )


@cache
def _warn_of_comment(path: str, number: int, line: str) -> None:
    logger.warning(
        "%s, line %d: %r is read as a comment, although it has as many cells as a row",
        path,
        number,
        line[:40],
    )
