"""Lists in the cells of tables: sequences of tokens or tags, of numbers or of vectors."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from regard.core.errors import InvalidArgument


def tokens_of(cell: object, name: str, *, numbers: bool = False) -> tuple[str, ...]:
    """The tokens of a cell: a list of texts and numbers, the same list as JSON,
    or a text split at white space.

    JSON is what a .csv or .tsv file holds where tokens contain spaces: ["New York", "is"]. A text
    is read so if all of it is a list of texts.

    cell      a text, a list, or what has `tolist` as the arrays of Parquet have
    name      of the column, for errors
    numbers   read a text as JSON, too, if it is a list of numbers. Such tags are common; a sentence
              that is "[1]" is no list
    """
    if isinstance(cell, str):
        listed = _listed(cell, numbers=numbers)
        return _checked(cell.split() if listed is None else listed, name)
    values: Any = cell
    if hasattr(values, "tolist"):
        values = values.tolist()
    if not isinstance(values, Sequence) or isinstance(values, bytes):
        raise InvalidArgument(
            name,
            wanted="a list of tokens, or a text with spaces between them",
            got=_shown(cell),
            remedy="Name another column.",
        )
    return _checked(values, name)


def cell_of(tokens: Sequence[str]) -> str:
    """The text of which `tokens_of` makes these tokens again: spaces between them,
    or JSON where that would differ.
    """
    text = " ".join(tokens)
    plain = text.split() == list(tokens) and _listed(text, numbers=True) is None
    return text if plain else json.dumps(list(tokens), ensure_ascii=False)


def _listed(text: str, *, numbers: bool) -> list[Any] | None:
    """The texts of a list in JSON, or its numbers; None if this is something else."""
    stripped = text.strip()
    if not (stripped.startswith("[") and stripped.endswith("]")):
        return None
    try:
        values: list[Any] = json.loads(stripped)
    except (ValueError, RecursionError):
        return None
    if all(isinstance(value, str) for value in values):
        return values
    return values if numbers and all(map(is_number, values)) else None


def _checked(values: Iterable[object], name: str) -> tuple[str, ...]:
    tokens = []
    for number, value in enumerate(values, start=1):
        if not isinstance(value, str) and not is_number(value):
            raise InvalidArgument(
                name,
                wanted="texts or numbers in a list of tokens",
                got=f"{_shown(value)} at number {number}",
                remedy="Write a text for each token.",
            )
        token = str(value)
        if not token.strip():
            raise InvalidArgument(
                name,
                wanted="tokens that are not empty",
                got=f"{token!r} at number {number}",
                remedy="Remove it, and its tag.",
            )
        tokens.append(token)
    return tuple(tokens)


class ListCell(str):
    """A cell that is a list, as JSON.

    Fields that have no lists refuse it, unlike a text that looks like one.
    """


class WrittenNumber(str):
    """A number of JSON as it is written."""


def cell_text(cell: Any) -> str | None:
    """The text of a cell from Python, JSON or Parquet, a `ListCell` for a list or an array;
    None for anything else.
    """
    if isinstance(cell, str | Path) or is_number(cell):
        return str(cell)
    values: Any = cell
    if hasattr(values, "tolist"):  # an array, or a tensor
        values = values.tolist()
    if is_number(values):
        return str(values)
    if not _is_list(values):
        return None
    return ListCell(_list_text(values))


def _is_list(values: object, depth: int = 2) -> bool:
    """Whether this is a list of texts and numbers, or with `depth` = 2 also a list of such lists.

    None is a missing number in a list of numbers.
    """
    if not isinstance(values, list | tuple):
        return False
    has_lists = any(isinstance(each, list | tuple) for each in values)
    may_be_missing = not has_lists and not _has_words(values)
    return all(
        isinstance(each, str)
        or is_number(each)
        or (each is None and may_be_missing)
        or (depth > 1 and _is_list(each, depth - 1))
        for each in values
    )


def _has_words(values: Sequence[Any]) -> bool:
    return any(isinstance(each, str) and not is_written(each) for each in values)


def _list_text(values: Sequence[Any]) -> str:
    """A list in JSON. Numbers among words are words."""
    has_words = _has_words(values)
    parts = []
    for each in values:
        if isinstance(each, list | tuple):
            parts.append(_list_text(each))
        elif has_words:
            parts.append(json.dumps(str(each), ensure_ascii=False))
        else:
            parts.append(str(each) if is_written(each) else json.dumps(each))
    return f"[{', '.join(parts)}]"


def is_written(value: object) -> bool:
    """Whether this is a number of JSON as it is written."""
    return isinstance(value, WrittenNumber)


def is_number(value: object) -> bool:
    """Whether this is a number in a table."""
    # A truth value is a number in Python, and none in a table.
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
