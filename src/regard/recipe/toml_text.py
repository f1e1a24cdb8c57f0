"""Recipes as TOML."""

import json
from collections.abc import Iterator, Mapping
from typing import Any


def toml_lines(table: Mapping[str, Any], name: str = "") -> Iterator[str]:
    """The lines of a table as TOML: its values, then its tables. (JSON writes texts, numbers and lists like TOML.)"""
    values = {
        key: value
        for key, value in table.items()
        if not isinstance(value, Mapping) and value is not None
    }
    if name and (values or not table):
        yield from ("", f"[{name}]")
    yield from (f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values.items())
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from toml_lines(value, f"{name}.{key}" if name else key)
