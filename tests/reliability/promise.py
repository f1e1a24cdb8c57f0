"""A promise, and the tests that hold it."""

from collections.abc import Mapping
from typing import NamedTuple


class Promise(NamedTuple):
    """One row. Tests are `path::function`, under tests/."""

    id: str
    promise: str
    tests: tuple[str, ...]


def rows(table: Mapping[str, tuple[str, ...]]) -> tuple[Promise, ...]:
    """Promises from a mapping of the id to the promise and its tests."""
    return tuple(Promise(id, promise, tests) for id, (promise, *tests) in table.items())  # type: ignore[arg-type]
