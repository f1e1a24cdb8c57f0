"""Streaming readers of text files and tables.

Files whose name ends in .gz or .zst are decompressed. Text is UTF-8. A line ends at LF, CRLF or a
lone CR only: other Unicode line breaks (NEL, U+2028, form feed) and NUL are part of the text. A
byte order mark at the start is dropped.
"""

import csv
import errno
import gzip
import json
import logging
import os
import stat
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from io import BufferedIOBase, BufferedReader
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from regard.core.config import near_name, nearest
from regard.core.errors import InvalidData, MissingExtra
from regard.data import parquet
from regard.data.token_lists import ListCell, WrittenNumber, cell_text

Errors = Literal["strict", "replace"]
CHUNK = 1 << 18
ZSTD_CHUNK = 1 << 11  # compressed bytes at once, which may unpack to 30,000 times as much
LONGEST_LINE = 1 << 22  # bytes: tokenizing takes up to 150 times as much memory
LARGEST_DOCUMENT = 1 << 30  # bytes of a file that is read as a whole
LONGEST_CELL = 1 << 26  # characters; the csv module's own limit is 131,072
logger = logging.getLogger(__name__)
MARK = b"\xef\xbb\xbf"
SEPARATORS = {".csv": ",", ".tsv": "\t"}  # of the cells of a table
NAMES = {",": "commas", ";": "semicolons", "|": "bars", "\t": "tabs"}


def lines(
    path: str | Path, errors: Errors = "strict", *, longest: int = LONGEST_LINE
) -> Iterator[str]:
    """The lines of a file, without line ends; one of more than `longest` bytes is refused."""
    offset = 0  # bytes before this line
    for number, raw in enumerate(_raw_lines(path, longest), start=1):
        bare = raw.removesuffix(b"\n").removesuffix(b"\r")
        skip = len(MARK) if number == 1 and bare.startswith(MARK) else 0
        if raw == MARK and skip:
            return  # an empty file
        try:
            yield bare[skip:].decode("utf-8", errors)
        except UnicodeDecodeError as error:
            raise _no_utf8(path, number, error, offset + skip) from None
        offset += len(raw)


def whole(path: str | Path, errors: Errors = "strict") -> str:
    """The whole text of a file, line ends unchanged."""
    chunks = list[bytes]()
    size = 0
    for chunk in _chunks(path):
        chunks.append(chunk)
        size += len(chunk)
        if size > LARGEST_DOCUMENT:
            raise InvalidData(
                path, wanted=f"at most {LARGEST_DOCUMENT:,} bytes", got="more", remedy="Split it."
            )
    content = b"".join(chunks)
    skip = len(MARK) if content.startswith(MARK) else 0
    try:
        return content[skip:].decode("utf-8", errors)
    except UnicodeDecodeError as error:
        raise _no_utf8(path, None, error, skip) from None


def texts(path: str | Path, columns: Sequence[str], errors: Errors = "strict") -> Iterator[str]:
    """The lines of a file; of a table, the cells of these columns, with tabs between them."""
    if is_table(path):
        return map("\t".join, rows(path, columns, errors))
    return lines(path, errors)


def parallel(
    paths: Sequence[str | Path],
    errors: Errors = "strict",
    columns: Sequence[Sequence[str]] | None = None,
) -> Iterator[tuple[str, ...]]:
    """The lines of parallel files, which must have as many; `columns` are, for each file,
    those to read of a table.
    """
    if columns is None:
        streams = [lines(path, errors) for path in paths]
    else:
        streams = [texts(path, names, errors) for path, names in zip(paths, columns, strict=True)]
    return together(paths, streams)


def together(
    paths: Sequence[str | Path], streams: Sequence[Iterator[str]]
) -> Iterator[tuple[str, ...]]:
    """The texts of parallel files, which must have as many."""
    count = 0
    while True:
        row = [next(stream, None) for stream in streams]
        present = tuple(line for line in row if line is not None)
        if len(present) < len(row):
            break
        yield present
        count += 1
    if present:
        rest = [
            (line is not None) + sum(1 for _ in stream)
            for line, stream in zip(row, streams, strict=True)
        ]
        got = " and ".join(
            f"{count + more:,} in {path}" for more, path in zip(rest, paths, strict=True)
        )
        remedy = "Each line of one must belong to the same line of the others."
        raise InvalidData(
            paths[0], wanted="as many lines as in the files beside it", got=got, remedy=remedy
        )


def rows(
    path: str | Path, columns: Sequence[str], errors: Errors = "strict"
) -> Iterator[tuple[str, ...]]:
    """These columns of a table, row by row: .tsv and .csv with a header,
    .jsonl with an object per line, or .parquet.

    .tsv has no quoting; .csv quotes as spreadsheets do, and a quoted line break becomes LF. Numbers
    in .jsonl are returned as they are written, and lists as JSON.
    """
    if not columns:
        raise InvalidData(
            path, wanted="a column to read of this table", got="none", remedy="Add --column NAME."
        )
    return TABLES[form(path)](path, columns, errors)


def is_table(path: str | Path) -> bool:
    """Whether a file is a table by its name: .tsv, .csv or .jsonl, packed or not, or .parquet."""
    return form(path) in TABLES


def line_of(path: str | Path, number: int, errors: Errors = "strict") -> int:
    """The line on which an example ends, by its number from 1:
    quoted cells of a table may have several lines.
    """
    if form(path) != ".csv":
        return number + (form(path) == ".tsv")
    reader = csv.reader((f"{line}\n" for line in lines(path, errors)), strict=True)
    for _ in islice(reader, number + 1):
        pass
    return reader.line_num


def form(path: str | Path) -> str:
    """The format of a file by its name: ".tsv" of "pairs.tsv.gz",
    ".token" of "captions.token.txt".
    """
    path = Path(path)
    if path.suffix in COMPRESSED:
        path = path.with_suffix("")
    if path.name.endswith(".token.txt"):
        return ".token"
    return path.suffix


def _no_utf8(
    path: str | Path, line: int | None, error: UnicodeDecodeError, before: int
) -> InvalidData:
    got = f"byte 0x{error.object[error.start]:02x} at offset {before + error.start:,} of the text"
    remedy = (
        "Convert it; or `predict --errors replace`, and data.encoding_errors = 'replace' in a "
        "recipe, read it."
    )
    return InvalidData(path, line, wanted="UTF-8 text", got=got, remedy=remedy)


def _raw_lines(path: str | Path, longest: int) -> Iterator[bytes]:
    """Lines with their line ends."""
    begun: list[bytes] = []  # parts of an unfinished line
    number = 1
    for chunk in _chunks(path):
        if begun and begun[-1].endswith(b"\r"):  # may be the first half of CRLF
            chunk = begun.pop() + chunk
        for line in chunk.splitlines(keepends=True):  # bytes split at LF, CRLF and CR only
            if begun and begun[-1].endswith(b"\r"):
                yield b"".join(begun)
                begun.clear()
                number += 1
            begun.append(line)
            _check_length(path, number, begun, longest)
            if line.endswith(b"\n"):
                yield b"".join(begun)
                begun.clear()
                number += 1
    if begun:
        yield b"".join(begun)


def _check_length(path: str | Path, number: int, parts: Sequence[bytes], longest: int) -> None:
    """Refuse the parts of a line that have more bytes than this without its end."""
    size = sum(map(len, parts))
    if size <= longest:
        return
    end = b"".join(parts[-2:])[-2:]
    size -= len(end) - len(end.removesuffix(b"\n").removesuffix(b"\r"))
    if size > longest:
        wanted = f"a line of at most {longest:,} bytes"
        raise InvalidData(
            path, number, wanted=wanted, got="more", remedy="Break it into sentences."
        )


def _chunks(path: str | Path) -> Iterator[bytes]:
    decompress = COMPRESSED.get(Path(path).suffix, _plain)
    with readable(path), open(path, "rb") as file:
        yield from decompress(file)


def _plain(file: BufferedIOBase) -> Iterator[bytes]:
    while chunk := file.read1(CHUNK):  # from a pipe: what is available
        yield chunk


def _gunzip(file: BufferedIOBase) -> Iterator[bytes]:
    with gzip.GzipFile(fileobj=file) as unpacked:
        yield from _plain(unpacked)


def _unzstd(file: BufferedIOBase) -> Iterator[bytes]:
    """Frame by frame: the package's own reader does not detect a truncated file."""
    try:
        import zstandard
    except ImportError:
        raise MissingExtra("zstandard", "zstd", "A .zst file") from None
    frame = None
    while chunk := file.read1(ZSTD_CHUNK):
        while chunk:
            frame = frame or zstandard.ZstdDecompressor().decompressobj()
            try:
                text = frame.decompress(chunk)
            except zstandard.ZstdError as error:
                raise EOFError(str(error)) from None
            if text:
                yield text
            chunk = frame.unused_data
            if frame.eof:
                frame = None
    if frame is not None:
        raise EOFError("the file ends in the middle of a frame")


COMPRESSED: dict[str, Callable[[BufferedIOBase], Iterator[bytes]]] = {
    ".gz": _gunzip,
    ".zst": _unzstd,
}


def open_regular(path: str | Path) -> BufferedReader:
    """Open a regular file, or one that a link leads to.

    Devices and pipes, which may never end, are refused.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        remedy = "Copy its content to a file, and name that."
        raise InvalidData(path, wanted="a regular file", got="a device or a pipe", remedy=remedy)
    return open(handle, "rb")


@contextmanager
def readable(path: str | Path) -> Iterator[None]:
    """Errors of opening and decompressing become InvalidData with the path."""
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        remedy = "Download or pack it again."
        raise InvalidData(
            path, wanted="a whole packed file", got=str(error), remedy=remedy
        ) from None
    except OSError as error:
        remedy = "Check the path."
        if isinstance(error, FileNotFoundError) and Path(path).parent.is_dir():
            siblings = [file.name for file in Path(path).parent.iterdir() if file.is_file()]
            near = near_name(Path(path).name, siblings)
            if near is not None:
                remedy = f"Did you mean {near!r}?"
            elif not siblings:
                remedy = "Its folder is empty."
        raise InvalidData(
            path, wanted="a file to read", got=str(error.strerror), remedy=remedy
        ) from None


def _tsv(path: str | Path, columns: Sequence[str], errors: Errors) -> Iterator[tuple[str, ...]]:
    yield from _cells(path, columns, (line.split("\t") for line in lines(path, errors)))


def _csv(path: str | Path, columns: Sequence[str], errors: Errors) -> Iterator[tuple[str, ...]]:
    csv.field_size_limit(LONGEST_CELL)
    reader = csv.reader((f"{line}\n" for line in lines(path, errors)), strict=True)
    try:
        yield from _cells(path, columns, reader, lambda: reader.line_num)
    except csv.Error as error:
        wanted = "comma-separated cells"
        remedy = "Check its quotes."
        raise InvalidData(
            path, reader.line_num, wanted=wanted, got=str(error), remedy=remedy
        ) from None


def _cells(
    path: str | Path,
    columns: Sequence[str],
    table: Iterator[list[str]],
    line: Callable[[], int] | None = None,
) -> Iterator[tuple[str, ...]]:
    header = next(table, None)
    if header is None:
        return
    indices = [_column_index(path, column, header) for column in columns]
    by_number = (
        header[index]
        for column, index in zip(columns, indices, strict=True)
        if column not in header
    )
    for cell in islice(filter(_like_an_example, by_number), 1):
        _warn_of_example(str(path), cell)
    for number, row in enumerate(table, start=2):
        if len(row) != len(header):
            wanted = f"{len(header)} cells, as in the header"
            at = number
            remedy = "Remove the tab, or add the cell."
            if line:
                at = line()
                remedy = "Quote or remove what separates cells."
            raise InvalidData(path, at, wanted=wanted, got=str(len(row)), remedy=remedy)
        yield tuple(row[index] for index in indices)


def _like_an_example(name: str) -> bool:
    """Whether a header cell is a sentence rather than a column name."""
    return len(name) > 40 or len(name.split()) > 3 or name.rstrip().endswith((".", "!", "?"))


@cache
def _warn_of_example(path: str, cell: str) -> None:
    reason = (
        f"its first line, {cell[:40]!r}, resembles an example, but is read as the names of columns"
    )
    logger.warning("%s: %s", path, reason)


def _column_index(path: str | Path, column: str, header: Sequence[str]) -> int:
    if header.count(column) == 1:
        return header.index(column)
    if column.isdecimal() and 1 <= int(column) <= len(header):
        return int(column) - 1  # for files that name a column differently
    wanted = f"one column {column!r}"
    got = f"the columns {', '.join(map(repr, header))}"
    remedy = nearest(column, header, listed=True)
    separator = SEPARATORS[form(path)]
    for other in (",", ";", "|", "\t"):
        if len(header) == 1 and column in header[0].split(other):
            got = f"one cell, {header[0]!r}, whose parts {NAMES[other]} separate"
            remedy = f"Separate the cells by {NAMES[separator]}."
    raise InvalidData(path, 1, wanted=wanted, got=got, remedy=remedy)


def _jsonl(path: str | Path, columns: Sequence[str], errors: Errors) -> Iterator[tuple[str, ...]]:
    for number, line in enumerate(lines(path, errors), start=1):
        got = line[:40]
        try:
            row = json.loads(line, parse_int=WrittenNumber, parse_float=WrittenNumber)
        except (ValueError, RecursionError) as error:
            row = None
            got = str(error)
        if not isinstance(row, dict):
            raise InvalidData(
                path, number, wanted="a JSON object", got=got, remedy="Write one object a line."
            )
        yield tuple(_value(path, number, row, column, errors) for column in columns)


def _value(path: str | Path, number: int, row: dict[str, Any], column: str, errors: Errors) -> str:
    if column not in row:
        got = "no keys"
        remedy = "Add it."
        if row:
            got = f"the keys {', '.join(map(repr, row))}"
            remedy = nearest(column, row, listed=True)
        raise InvalidData(path, number, wanted=f"a key {column!r}", got=got, remedy=remedy)
    return _cell(path, number, row[column], column, errors)


def _cell(path: str | Path, number: int, value: Any, column: str, errors: Errors) -> str:
    """The text of a value of JSON or Parquet; a list is one for fields that have lists."""
    text = cell_text(value)
    if text is None:
        wanted = f"a text, a number or a list of these in {column!r}"
        got = repr(value)[:80]
        raise InvalidData(path, number, wanted=wanted, got=got, remedy="Write a text.")
    well_formed = well_formed_text(path, number, text, column, errors)
    return ListCell(well_formed) if isinstance(text, ListCell) else well_formed


def _parquet(path: str | Path, columns: Sequence[str], errors: Errors) -> Iterator[tuple[str, ...]]:
    with readable(path), open_regular(path) as file:
        for number, row in enumerate(parquet.rows(path, file, columns), start=1):
            cells = zip(columns, row, strict=True)
            yield tuple(_cell(path, number, value, column, errors) for column, value in cells)


def well_formed_text(
    path: str | Path, number: int | None, value: str, key: str, errors: Errors
) -> str:
    """A text of JSON, whose escapes may hold unpaired surrogates."""
    try:
        return value.encode("utf-8", "strict").decode()
    except UnicodeEncodeError:
        if errors == "replace":
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        wanted = f"Unicode text in {key!r}"
        remedy = "Correct the escape, or set data.encoding_errors = 'replace'."
        raise InvalidData(
            path, number, wanted=wanted, got="half of a surrogate pair", remedy=remedy
        ) from None


TABLES = {".tsv": _tsv, ".csv": _csv, ".jsonl": _jsonl, ".parquet": _parquet}
