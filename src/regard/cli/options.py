"""What several verbs take, and how they read and write lines."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

RecipeFile = Annotated[str, typer.Argument(metavar="RECIPE", help="A TOML file, or the name of a recipe of ours.")]
Changes = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the recipe; may be repeated.")
]
Cache = Annotated[
    Path | None, typer.Option(help="Where prepared data lie [default: $REGARD_CACHE, or ~/.cache/regard].")
]
Systems = Annotated[
    list[Path], typer.Argument(metavar="SYSTEM", help="Runs, checkpoints, or files of outputs, one a line.")
]
Split = Annotated[str | None, typer.Option(help="train, valid or test of a run's data [default: test].")]
Sources = Annotated[Path | None, typer.Option(help="Judge on this file instead, one a line.")]
References = Annotated[list[Path] | None, typer.Option(help="What is right for each line of it; may be repeated.")]
Resamples = Annotated[int, typer.Option(min=1, help="Of examples, for intervals and p-values.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ModelFolder = Annotated[Path, typer.Argument(metavar="MODEL", help="The folder of a run, or of a checkpoint.")]
DecodeChanges = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the recipe's [decode]: temperature=0.8."),
]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]


def read_lines(files: list[Path]) -> Iterator[str]:
    from regard.data.text import lines

    for path in files or [Path("/dev/stdin")]:
        yield from lines(path)


def options_of(changes: list[str] | None, **given: Any) -> dict[str, Any]:
    """Options of a search: those given by name, and those that --set changes."""
    from regard.recipe.load import with_setting

    for change in changes or []:
        given = with_setting(given, change)
    return given


def one_line(text: str) -> str:
    """An output takes one line, whatever is in it."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r") if set(text) & {"\n", "\r"} else text
