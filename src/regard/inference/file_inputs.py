"""The inputs in a file, as a model reads them: lines, rows of a table,
and the files that they name.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.core.errors import InvalidArgument, InvalidData
from regard.data import conll, text
from regard.data.config import DataConfig
from regard.data.fields.base import Field
from regard.data.image_store import FileKind, find_files, holds_files
from regard.data.series import last_windows
from regard.data.sources import FileStores, refuses_missing

if TYPE_CHECKING:
    from regard.inference.predictor import Predictor

STDIN = Path("/dev/stdin")


def file_inputs(
    predictor: "Predictor",
    file: Path | None,
    columns: Sequence[str] = (),
    errors: text.Errors = "strict",
) -> Iterator[Any]:
    """The inputs of a model in a file, or on stdin.

    A file of the kind that the model reads, such as an image or a .npy file, is one input, and a
    folder or .zip file of them is several. A sentence of a file with a token a line is one input;
    files named .txt have a sentence a line, whatever the files of the training had. What a cell of
    a table names is relative to the table, and what a line names to the working directory.
    """
    config = predictor.recipe.data
    if config.series is not None and file is not None and text.is_table(file):
        # What follows each series of the file.
        refuse = refuses_missing(config)
        yield from last_windows(config.series, str(file), errors, refuse_missing=refuse)
        return
    kind = _file_kind(config.source_fields)
    if file is not None and kind is not None and holds_files(file, kind):
        for found in find_files([file], kind):
            yield _named(config.source_fields[0], found)
        return
    if file is not None and text.form(file) != ".txt" and config.is_token_file(file):
        names = config.token_columns(file, columns, inputs=True)
        for (words,) in conll.cells(file, names, errors):
            yield words
        return
    path = STDIN if file is None else file
    if not any(
        field.content_key is not None and not field.is_file for field in config.source_fields
    ):
        yield from text.texts(path, config.table_columns(columns, inputs=True), errors)
        return
    yield from _rows(predictor, path, columns, errors)


def _rows(
    predictor: "Predictor", path: Path, columns: Sequence[str], errors: text.Errors
) -> Iterator[Any]:
    """Inputs that are no texts, or that have a source that is none:
    each is checked where it is read.
    """
    config = predictor.recipe.data
    fields = config.source_fields
    stores = None
    if text.is_table(path) and not _has_lists(path, fields):
        stores = files_beside(config, path)
        rows = text.rows(path, config.table_columns(columns, inputs=True), errors)
    else:
        rows = (tuple(line.split("\t", len(fields) - 1)) for line in text.lines(path, errors))
    for number, row in enumerate(rows, start=1):
        if not any(row):
            yield ""
            continue
        if len(row) != len(fields):
            wanted = f"{len(fields)} sources, separated by tabs"
            remedy = "Give each line all its sources."
            raise InvalidData(path, number, wanted=wanted, got=str(len(row)), remedy=remedy)
        try:
            cells = zip(fields, predictor.sources, row, strict=True)
            parts = tuple(_value(stores, *cell) for cell in cells)
        except InvalidData:
            raise
        except InvalidArgument as error:
            line = number
            if stores is not None:
                line = text.line_of(path, number)
            raise InvalidData(
                path, line, wanted=error.wanted, got=error.got, remedy=error.remedy
            ) from None
        yield parts[0] if len(parts) == 1 else parts


def _value(stores: FileStores | None, field: Field, vocabulary: Any, cell: str) -> Any:
    if stores is None:
        value = value_of(field, cell)
    else:
        value = _named(field, stores.find(field, cell))
    field.check_cell(vocabulary, value)
    return value


def files_beside(config: DataConfig, table: Path) -> FileStores:
    """The files that a table of new inputs names: in its folder,
    wherever those of the training were.
    """
    return FileStores(replace(config, files_from=None), str(table))


def value_of(field: Field, given: str) -> Any:
    """An input as it is typed: the path of a file where it names one."""
    if field.names_file(given) and not field.is_file:
        return Path(given)
    return given


def _named(field: Field, found: Any) -> Any:
    # Models of images have always been given the names of files as texts.
    if field.is_file and isinstance(found, Path):
        return str(found)
    return found


def _file_kind(fields: Sequence[Field]) -> FileKind | None:
    """The kind of files that are inputs themselves, of a model with one source."""
    if len(fields) != 1:
        return None
    return fields[0].stored


def _has_lists(path: Path, fields: Sequence[Field]) -> bool:
    """Whether a .jsonl file has a list in each line, and no objects."""
    if text.form(path) != ".jsonl" or not fields[0].has_lists:
        return False
    first = next((line for line in text.lines(path) if line.strip()), "")
    return first.lstrip().startswith("[")
