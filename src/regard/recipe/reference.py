"""The reference of every recipe key, generated from the configuration dataclasses.

python -m regard.recipe.reference > docs/recipe.md
"""

import json
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from regard.core.config import Config, describe
from regard.core.registry import Registry
from regard.recipe.schema import Key, keys, tables

INTRODUCTION = """# Recipe reference

A recipe is a TOML file with the tables `[data]`, `[model]`, `[train]` and `[decode]`. Every key may be changed on the
command line: `--set train.learning_rate=0.001`. Relative paths are resolved against the recipe's folder first, then
against the working directory. `regard recipes` lists the recipes that come with Regard, `regard recipes NAME` prints
one, and `regard recipes --schema` prints a JSON Schema for editors.

A recipe may begin with `extends = "translation"`, the name of a shipped recipe or a file: it has that recipe's tables,
with the keys that it gives itself. A part of the model of another `kind` takes the place of the other recipe's.

An example may have several sources, each with an encoder of its own: a table `[[data.sources]]` for each instead of
`[data.source]`, and in the same order a table `[[model.encoders]]` for each instead of `[model.encoder]`. Both are
counted from 1: `--set model.encoders.2.layers=3`.

This page is generated: `python -m regard.recipe.reference > docs/recipe.md`.
"""


def reference() -> str:
    """The reference as Markdown: a table of keys for each table of a recipe."""
    return "\n".join([INTRODUCTION, *_sections()]) + "\n"


def _sections() -> Iterator[str]:
    documented: dict[type[Config], str] = {}
    for name, note, config in tables():
        # The kinds of fields are the same for sources and target: they are listed once.
        if config in documented and name.startswith("data.") and not config.variants():
            continue
        title = f"[{name}]"
        if note:
            title += f", {note}"
        rows = [_row(key) for key in keys(config)]
        lines = ["No keys of its own."]
        if rows:
            lines = ["| key | type | default | meaning |", "|---|---|---|---|", *rows]
        if config.variants():
            kinds = ", ".join(f"`{kind}`" for kind in config.variants())
            lines = [f"Its `kind` is one of {kinds}, with the keys below."]
        if config in documented:
            lines = [f"The keys of {documented[config]}."]
        documented.setdefault(config, title)
        yield from (f"## {title}", "", *lines, "")


def _row(key: Key) -> str:
    cells = (f"`{key.name}`", _type(key.hint), _default(key), key.description)
    escaped = [cell.replace("|", "\\|") for cell in cells]
    return f"| {' | '.join(escaped)} |"


def _type(hint: Any) -> str:
    """The allowed values of an annotation, in words."""
    origin = get_origin(hint)
    arguments = get_args(hint)
    if origin is Annotated and isinstance(arguments[1], Registry):
        return ", ".join(f"`{name}`" for name in arguments[1]) or "a registered name"
    if origin is Literal:
        return ", ".join(f"`{name}`" for name in arguments)
    if origin in (Union, UnionType):
        return " or ".join(_type(argument) for argument in arguments if argument is not NoneType)
    if origin is tuple:
        return f"list: {_type(arguments[0])}"
    return describe(hint)


def _default(key: Key) -> str:
    if key.table is not None or key.default is None:
        return ""
    return f"`{json.dumps(key.default)}`"


if __name__ == "__main__":
    print(reference(), end="")
