"""Recipes as TOML."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def toml_lines(table: Mapping[str, Any], name: str = "") -> Iterator[str]:
    """The lines of a table as TOML: its values, then its tables. (JSON writes texts, numbers and lists like TOML.)"""
    values = {
        key: value
        for key, value in table.items()
        if not isinstance(value, Mapping) and value is not None
    }
    if name and (values or not table):
        yield from ("", f"[{name}]")
    for key, value in values.items():
        yield f"{_key(key)} = {json.dumps(value, ensure_ascii=False)}"
    for key, value in table.items():
        if isinstance(value, Mapping):
            inner_name = _key(key)
            if name:
                inner_name = f"{name}.{inner_name}"
            yield from toml_lines(value, inner_name)


def _key(name: str) -> str:
    """A key, quoted unless it consists of letters, digits, - and _ alone."""
    if BARE_KEY.fullmatch(name):
        return name
    return json.dumps(name, ensure_ascii=False)
