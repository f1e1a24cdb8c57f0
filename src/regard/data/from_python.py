"""Examples from Python objects: written once to a .jsonl table named by its content,
then read like any file.

So preparing, resuming and evaluating do not depend on where the examples came from, and none are
held in memory.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np

from regard.core.atomic_io import named_os_errors, sync_folder
from regard.core.config import nearest
from regard.core.errors import InvalidArgument
from regard.data.example import SPLITS, Example
from regard.data.fields import FIELDS
from regard.data.image_store import ARRAYS
from regard.data.mapped_arrays import digest_of
from regard.data.token_lists import ListCell, cell_text

LARGEST_IN_TABLE = 1 << 14  # numbers of an array that are written into the table itself

# Targets alone, (source, target), (source, source, …, target), or rows with named columns.
PythonRows = Iterable[str | Example | Sequence[Any] | Mapping[str, Any]]


def with_python_data(
    settings: Mapping[str, Any], given: Mapping[str, PythonRows], folder: str | Path
) -> dict[str, Any]:
    """The table [data] of a recipe with these splits, written to the folder."""
    folder = Path(folder)
    for split in given:
        if split not in SPLITS:
            wanted = f"splits among {', '.join(SPLITS)}"
            raise InvalidArgument(
                "data", wanted=wanted, got=repr(split), remedy=nearest(split, SPLITS, listed=True)
            )
    data = dict(settings)
    columns: list[str] = []

    def named(field: Any, name: str) -> Any:
        if not isinstance(field, Mapping):  # the recipe refuses it
            return field
        columns.append(field["column"] if field.get("column") is not None else name)
        return {**field, "column": columns[-1]}

    if data.get("source") is not None:
        data["source"] = named(data["source"], "source")
    if isinstance(data.get("sources"), list | tuple):
        data["sources"] = [
            named(field, f"source {i}") for i, field in enumerate(data["sources"], start=1)
        ]
    data["target"] = named(data.get("target") or {}, "target")
    tables = [data.get("source"), *(data.get("sources") or ()), data["target"]]
    for key in _folder_keys(tables):
        if data.get(key) is None:
            # Where a program's relative paths begin; the table is elsewhere.
            data[key] = os.getcwd()
    arrays = [_reads_arrays(table) for table in tables if isinstance(table, Mapping)]
    with named_os_errors(folder, "a folder to write to"):
        folder.mkdir(parents=True, exist_ok=True)
    return data | {
        split: str(_write(split, rows, columns, arrays, folder)) for split, rows in given.items()
    }


def _reads_arrays(table: Mapping[str, Any]) -> bool:
    """Whether cells of such a field may name the files of arrays."""
    kind = str(table.get("kind"))
    return kind in FIELDS and FIELDS[kind].stored is ARRAYS


def _stored(cell: Any, folder: Path) -> Any:
    """A large array as the name of a file that holds it; anything else as it is.

    The line of a table is bounded, and numbers in it take several times their size.
    """
    if not (hasattr(cell, "shape") and hasattr(cell, "dtype")):
        return cell
    if hasattr(cell, "detach"):
        # A tensor, perhaps of bfloat16, which NumPy does not have.
        cell = cell.detach().cpu().double().numpy()
    array = np.ascontiguousarray(cell)
    if array.size <= LARGEST_IN_TABLE or array.dtype.kind not in "fiub":
        return cell
    with NamedTemporaryFile(
        "wb", dir=folder, prefix=".given.", suffix=".tmp", delete=False
    ) as file:
        try:
            np.save(file, array, allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
            digest = digest_of(Path(file.name))
            path = folder.absolute() / f"given-{digest[:16]}.npy"
            _publish(Path(file.name), path, digest)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(file.name)
    return str(path)


def _folder_keys(tables: Sequence[Any]) -> set[str]:
    """The keys of [data] that say where the files are that cells of these fields name."""
    kinds = [str(table.get("kind")) for table in tables if isinstance(table, Mapping)]
    fields = [FIELDS[kind] for kind in kinds if kind in FIELDS]
    return {field.folder_key for field in fields if field.stored is not None}


def _write(
    split: str, rows: PythonRows, columns: Sequence[str], arrays: Sequence[bool], folder: Path
) -> Path:
    """Write the rows of a split. `arrays` says which columns may name the files of arrays."""

    def stored(column: int, cell: Any) -> Any:
        return _stored(cell, folder) if arrays[column] else cell

    digest = hashlib.sha256()
    with NamedTemporaryFile(
        "wb", dir=folder, prefix=".given.", suffix=".tmp", delete=False
    ) as file:
        try:
            for number, row in enumerate(rows, start=1):
                where = f"data[{split!r}], row {number}"
                line = json.dumps(_row(row, columns, where, stored)).encode() + b"\n"
                digest.update(line)
                file.write(line)
            file.flush()
            os.fsync(file.fileno())
            # Messages name the split and the row instead (`regard.core.errors.shown_file`).
            path = folder.absolute() / f"given-{split}-{digest.hexdigest()[:16]}.jsonl"
            _publish(Path(file.name), path, digest.hexdigest())
        finally:
            with suppress(FileNotFoundError):
                os.unlink(file.name)
    sync_folder(folder)
    return path


def _publish(temporary: Path, path: Path, digest: str) -> None:
    """Give a file its name, which says its content.

    An equal file that has it stays: others may be reading it.
    """
    if path.exists():
        with path.open("rb") as file:
            is_equal = hashlib.file_digest(file, "sha256").hexdigest() == digest
        if not is_equal:
            os.replace(temporary, path)  # it was damaged
        return
    try:
        os.link(temporary, path)
    except FileExistsError:  # another process has written it since
        pass
    except OSError:  # a file system without links
        os.replace(temporary, path)


def _row(
    row: Any, columns: Sequence[str], where: str, stored: Callable[[int, Any], Any]
) -> dict[str, Any]:
    wanted = "texts, numbers or lists of these"
    got = repr(row)[:80]
    if isinstance(row, Mapping):
        for column in columns:
            if column not in row:
                remedy = "Name the columns in the recipe: data.source.column."
                raise InvalidArgument(
                    where, wanted=f"a key {column!r}", got=repr(list(row)), remedy=remedy
                )
        cells = [row[column] for column in columns]
    elif isinstance(row, Example):
        cells = [*row.sources, row.target][-len(columns) :]
    else:
        cells = []
        if isinstance(row, str):
            cells = [row]
        elif isinstance(row, Sequence):
            cells = list(row)
    if len(cells) != len(columns):
        wanted = (
            f"({', '.join(columns)})"
            if len(columns) > 1
            else "a text: the recipe has no [data.source]"
        )
        raise InvalidArgument(
            where, wanted=wanted, got=got, remedy="Give such rows, or change the recipe."
        )
    spelled: dict[str, Any] = {}
    for number, (column, cell) in enumerate(zip(columns, cells, strict=True)):
        text = cell_text(stored(number, cell))
        if text is None:
            raise InvalidArgument(where, wanted=wanted, got=got, remedy="Give such rows.")
        # A list stays one in the file, so that a field that has no lists can tell.
        spelled[column] = json.loads(text) if isinstance(text, ListCell) else text
    return spelled
