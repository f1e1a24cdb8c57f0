"""Parquet files, read by pyarrow."""

from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from regard.core.config import nearest
from regard.core.errors import InvalidData, MissingExtra

ROWS = 1024  # in memory at once


def column_names(path: str | Path, file: BinaryIO) -> list[str]:
    """The columns of a file."""
    return list(_table(path, file).schema_arrow.names)


def rows(path: str | Path, file: BinaryIO, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """The values of these columns, row by row."""
    table = _table(path, file)
    try:
        names = table.schema_arrow.names
        for column in columns:
            if column not in names:
                got = f"the columns {', '.join(map(repr, names))}"
                remedy = nearest(column, names, listed=True)
                raise InvalidData(path, wanted=f"a column {column!r}", got=got, remedy=remedy)
        for batch in table.iter_batches(ROWS, columns=list(dict.fromkeys(columns))):
            values = batch.to_pydict()
            yield from zip(*(values[column] for column in columns), strict=True)
    # The errors of pyarrow about the content of a file are ValueErrors, as those of Regard are.
    except (OSError, ValueError) as error:
        if isinstance(error, InvalidData):
            raise
        raise _damaged(path, error) from None


def _table(path: str | Path, file: BinaryIO) -> Any:
    try:
        parquet = import_module("pyarrow.parquet")
    except ImportError:
        raise MissingExtra("pyarrow", "parquet", f"Reading {path}") from None
    try:
        return parquet.ParquetFile(file)
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from None


def _damaged(path: str | Path, error: Exception) -> InvalidData:
    got = " ".join(str(error).split())[:200]
    return InvalidData(path, wanted="a Parquet file", got=got, remedy="Write it again.")
