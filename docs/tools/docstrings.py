"""Sphinx extension: Regard's docstrings, plain text with aligned tables of arguments, as reStructuredText.

- a paragraph whose lines are `name   meaning` becomes a list of definitions;
- indented text and trees become literal blocks, doctests stay;
- in all other text only `code` has a meaning: asterisks, bars and underscores are themselves.

The fields of a configuration, which are documented one by one, are added to its docstring.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

ARGUMENT = re.compile(r"(\*{0,2}[\w.\[\]]+(?:, [\w.]+)*)(?:  +| (?=\w+ {2}))(\S.*)")


def reworked(lines: Sequence[str]) -> list[str]:
    out: list[str] = []
    for paragraph in _paragraphs(lines):
        if paragraph[0].startswith(">>>"):
            out += paragraph
        elif paragraph[0].startswith("    "):
            out += ["::", "", *("    " + line for line in paragraph)]
        elif ARGUMENT.fullmatch(paragraph[0]):
            out += _definitions(paragraph)
        else:
            out += [_escaped(line) for line in paragraph]
        out.append("")
    return out


def _paragraphs(lines: Sequence[str]) -> Iterator[list[str]]:
    paragraph: list[str] = []
    for line in [*lines, ""]:
        if line.strip():
            paragraph.append(line)
        elif paragraph:
            yield paragraph
            paragraph = []


def _definitions(paragraph: Sequence[str]) -> Iterator[str]:
    """`name   meaning`, where the meaning may go on in lines that are indented as far as it began."""
    for line in paragraph:
        found = ARGUMENT.fullmatch(line)
        if found:
            yield from ("", f"``{found[1]}``", f"    {_escaped(found[2])}")
        else:
            yield f"    {_escaped(line.strip())}"


def field_lines(obj: object) -> list[str]:
    """`name   meaning (default)` of each documented field of a configuration; nothing for other objects."""
    if not (isinstance(obj, type) and is_dataclass(obj)):
        return []
    documented = [each for each in fields(obj) if "doc" in each.metadata]
    return [
        f"{each.name}  {each.metadata['doc']} [default: {each.default!r}]" for each in documented
    ]


def _escaped(line: str) -> str:
    parts = re.split(r"(`[^`]*`)", line)
    return "".join(
        part if part.startswith("`") else re.sub(r"([*|\\]|(?<=\w)_(?!\w))", r"\\\1", part)
        for part in parts
    )


def setup(app: Any) -> dict[str, bool]:
    def process(
        app: Any, what: str, name: str, obj: object, options: object, lines: list[str]
    ) -> None:
        lines[:] = reworked([*lines, "", *field_lines(obj)])

    app.connect("autodoc-process-docstring", process)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
