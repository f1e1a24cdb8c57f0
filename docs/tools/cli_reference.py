"""Write docs/cli.md: every verb of the command line with its arguments, options and examples, from the program itself.

python docs/tools/cli_reference.py > docs/cli.md
"""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import typer

from regard.cli import app

INTRODUCTION = """# Command line

Most verbs are also Python functions: `regard train` is `regard.train`. Results go to stdout, messages to stderr; the
[exit codes](exit-codes.md) say how a command ended. `regard VERB --help` prints what this page says of a verb.
`regard --install-completion` completes verbs, options, recipes, metrics and keys in your shell.

This page is generated: `python docs/tools/cli_reference.py > docs/cli.md`.
"""


def reference() -> str:
    root = typer.main.get_command(app)
    return "\n".join([INTRODUCTION, *_sections(root, typer.Context(root, info_name="regard"))])


def _sections(group: Any, context: typer.Context) -> Iterator[str]:
    for name, command in group.commands.items():
        inner = typer.Context(command, info_name=name, parent=context)
        if hasattr(command, "commands"):
            yield from _sections(command, inner)
        else:
            yield from _verb(command, inner)


def _verb(command: Any, context: typer.Context) -> Iterator[str]:
    text, *examples = re.split(
        r"\s*\bExamples?:\s*", inspect.cleandoc(command.help or ""), maxsplit=1
    )
    yield f"## {context.command_path}\n"
    yield f"{text}\n"
    if examples:
        lines = [" ".join(example.split()) for example in examples[0].split("\n\n")]
        yield "\n".join(["```sh", *lines, "```", ""])
    for kind, title in (("argument", "argument"), ("option", "option")):
        rows = [
            _row(each, context)
            for each in command.get_params(context)
            if each.param_type_name == kind
        ]
        if rows := [row for row in rows if row]:
            yield "\n".join([f"| {title} | |", "|---|---|", *rows, ""])


def _row(param: Any, context: typer.Context) -> str | None:
    record = param.get_help_record(context)
    if record is None or "--help" in param.opts:
        return None
    name = (
        str(param.metavar or param.name.upper())
        if param.param_type_name == "argument"
        else record[0]
    )
    text = re.sub(
        r"\s*\[[\d<=]*x[<>=\d]*\]|; [\d<=]*x[<>=\d]*(?=\])|\s*\[required\]$", "", record[1]
    )
    return f"| `{_cell(name)}` | {_cell(_text(text))} |"


def _text(help: str) -> str:
    """Options as code, unless they stand in code; brackets that Markdown would read as HTML or links escaped."""
    parts = re.split(r"(`[^`]*`)", help.replace("<", "&lt;").replace("[default", "\\[default"))
    options = re.compile(r"(?<![\w-])(--[a-z][\w-]*)")
    return "".join(part if part.startswith("`") else options.sub(r"`\1`", part) for part in parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(reference(), end="")
