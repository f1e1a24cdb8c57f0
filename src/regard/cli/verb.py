"""A verb: its help (arguments by their names, examples
that never break inside an option) and its arguments' values.
"""

import re
from pathlib import Path
from typing import Any, get_args

from typer.core import TyperCommand, TyperGroup


class Verb(TyperCommand):
    """A command whose help text ends with a list of examples,
    "Examples:" and one in each paragraph.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _coerce_texts(self.get_params(ctx))
        return super().parse_args(ctx, args)

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
            # Bounds as Typer writes them, and "required" of an argument,
            # which its name in the usage shows.
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


class Verbs(TyperGroup):
    """The commands of one program."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _coerce_texts(self.get_params(ctx))
        return super().parse_args(ctx, args)


def _coerce_texts(params: list[Any]) -> None:
    for param in params:
        # Typer makes this attribute when it is first used.
        if getattr(param, "_runtime_param", param) is None:
            param._runtime_param = _TextCoercion()


class _TextCoercion:
    """Converts texts, paths and integers, and leaves the rest to Typer,
    which imports Pydantic for it: 0.15 s.
    """

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        kind = param.type_descriptor.annotation
        several = param.multiple or param.nargs == -1
        if value is None:
            return () if several else None
        if isinstance(kind, type) and isinstance(value, kind):
            return value
        if kind is Path and isinstance(value, str):
            return Path(value)
        if kind is int and _is_allowed(value, param.type_descriptor.parameter_info):
            return int(value)
        if several and get_args(kind) in ((str,), (Path,)) and not isinstance(value, str):
            (single,) = get_args(kind)
            return [single(each) for each in value]
        from typer._coercion import build_runtime_param

        return build_runtime_param(param.type_descriptor).coerce(value, param=param, ctx=ctx)


def _is_allowed(value: Any, limits: Any) -> bool:
    """Whether a text is an integer within the limits of an option."""
    if not isinstance(value, str) or not re.fullmatch(r"-?[0-9]{1,18}", value):
        return False
    low = limits.min
    high = limits.max
    return (low is None or int(value) >= low) and (high is None or int(value) <= high)


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
