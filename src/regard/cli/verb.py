"""The help of a verb: arguments by their names, examples that never break inside an option, summaries in full."""

import re
from typing import Any

from typer.core import TyperCommand


class Verb(TyperCommand):
    """A command whose help text ends with a list of examples, "Examples:" and one in each paragraph."""

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        """Arguments in capitals: brackets around those that may be left out."""
        names = []
        for each in self.get_params(ctx):
            if each.param_type_name == "argument":
                name = _name(each) if each.required else f"[{_name(each)}]"
                names.append(name + "..." * (each.nargs == -1))
        formatter.write_usage(ctx.command_path, " ".join(["[OPTIONS]", *names]))

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        text, *examples = re.split(r"\s*\bExamples?:\s*", self.help or "", maxsplit=1)
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(text)
        if examples:
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write("  Examples:\n")
                for example in examples[0].split("\n\n"):
                    formatter.write(_shown(" ".join(example.split()), formatter.width))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        rows: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            if (record := param.get_help_record(ctx)) is None:
                continue
            # Bounds as Typer writes them, and "required" of an argument, which its name in the usage shows.
            help = re.sub(r"\s*\[[\d<=]*x[<>=\d]*\]|; [\d<=]*x[<>=\d]*(?=\])", "", record[1])
            if param.param_type_name == "argument":
                rows["Arguments"].append((_name(param), re.sub(r"\s*\[required\]$", "", help)))
            else:
                rows["Options"].append((record[0], help))
        for title, records in rows.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def get_short_help_str(self, limit: int = 45) -> str:
        """The first paragraph, whatever its length: the list of commands wraps it."""
        return " ".join((self.help or "").split("\n\n", maxsplit=1)[0].split())


def _name(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _shown(example: str, width: int) -> str:
    """A command in lines that a shell joins again, broken only before options."""
    lines = [""]
    for part in re.split(r" (?=--)", example):
        if lines[-1] and len(lines[-1]) + len(part) + 7 > width:
            lines.append(f"  {part}")
        else:
            lines[-1] += f" {part}" if lines[-1] else part
    return "    " + " \\\n    ".join(lines) + "\n"
