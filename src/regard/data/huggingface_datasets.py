"""Hugging Face datasets as tables: from the Hub by their id, or from a folder on disk.

    hf:NAME:SPLIT  or  hf:NAME:CONFIGURATION:SPLIT

NAME is owner/name, with @REVISION after it to pin one, or the path of a folder; SPLIT is what the
package `datasets` understands, as in train[:1000]. A column inside a column is named with a dot:
translation.de.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from regard.core.config import nearest
from regard.core.errors import InvalidData, MissingExtra
from regard.data.token_lists import cell_text

PREFIX = "hf:"
WANTED = "hf:NAME:SPLIT, or hf:NAME:CONFIGURATION:SPLIT"
_ADDRESS = re.compile(
    r"hf:(?P<name>[^:@]+)(@(?P<revision>[^:@]+))?(:(?P<configuration>[^:\[\]]+))?:(?P<split>[^:\[\]]+(\[[^\[\]]*\])?)"
)
CHUNK = 1000  # rows per read


def is_dataset(name: str) -> bool:
    return name.startswith(PREFIX)


def is_complete(address: str) -> bool:
    return _ADDRESS.fullmatch(address) is not None


def rows(address: str, columns: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """These columns, row by row. A class is given by its name, a number as `str` writes it."""
    table = _loaded(address).flatten()
    for column in columns:
        if column not in table.column_names:
            got = f"the columns {', '.join(map(repr, table.column_names))}"
            remedy = nearest(column, table.column_names, listed=True)
            raise InvalidData(address, wanted=f"a column {column!r}", got=got, remedy=remedy)
    texts = [_texts(table.features[column]) for column in columns]
    number = 0
    for chunk in table.select_columns(list(dict.fromkeys(columns))).iter(CHUNK):
        for row in zip(*(chunk[column] for column in columns), strict=True):
            number += 1
            cells = tuple(text(value) for text, value in zip(texts, row, strict=True))
            if None in cells:
                which = cells.index(None)
                wanted = f"a text, a number, a class or a list of these in {columns[which]!r}"
                remedy = "Choose another column, or a part of the split without such rows."
                raise InvalidData(
                    f"{address}, row {number}", wanted=wanted, got=repr(row[which]), remedy=remedy
                )
            yield cast(tuple[str, ...], cells)


def fingerprint(address: str, columns: Sequence[str]) -> str:
    """A hash of the columns' content."""
    digest = hashlib.sha256()
    for row in rows(address, columns):
        digest.update(json.dumps(row).encode())
    return digest.hexdigest()


def _texts(feature: Any) -> Callable[[Any], str | None]:
    """The conversion of a feature's values to texts; None for a value that has none."""
    of_parts = getattr(feature, "feature", None)  # of a list
    if of_parts is not None:
        part = _texts(of_parts)
        names_parts = hasattr(of_parts, "int2str")

        def listed(values: Any) -> str | None:
            if not names_parts:
                return cell_text(values)
            parts = [part(value) for value in values]
            # A number without a class is no missing number.
            return None if None in parts else cell_text(parts)

        return listed

    def label(value: Any) -> str | None:
        labeled = isinstance(value, int) and 0 <= value < feature.num_classes  # -1: no label
        if not labeled:
            return None
        return str(feature.int2str(value))

    return label if hasattr(feature, "int2str") else cell_text


def _loaded(address: str) -> Any:
    """The `datasets` table of a split, memory-mapped."""
    try:
        datasets = import_module("datasets")
    except ImportError:
        raise MissingExtra("datasets", "datasets", f"The data {address}") from None
    parts = _ADDRESS.fullmatch(address)
    assert parts is not None
    name = parts["name"]
    split = parts["split"]
    try:
        saved_files = ("dataset_dict.json", "state.json")  # of `save_to_disk`
        if any((Path(name) / file).is_file() for file in saved_files):
            saved = datasets.load_from_disk(name)
            if not isinstance(saved, dict):
                saved = {str(saved.split or "train"): saved}
            return saved[split]
        return datasets.load_dataset(
            name, parts["configuration"], split=split, revision=parts["revision"]
        )
    except Exception as error:  # the package, its file formats and its downloads raise many types
        got = " ".join(str(error).split()) or type(error).__name__
        remedy = f"Give {WANTED}, as at https://huggingface.co/datasets."
        if isinstance(error, ConnectionError | TimeoutError):
            remedy = "Connect to the network; datasets downloaded before are read without it."
        raise InvalidData(
            address, wanted="a dataset that can be loaded", got=got, remedy=remedy
        ) from error
