"""Options that several verbs share, and reading and writing lines."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

RecipeFile = Annotated[str, typer.Argument(metavar="RECIPE", help="A TOML file, or the name of a built-in recipe.")]
Changes = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a key of the recipe; may be repeated.")
]
Cache = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Where prepared data is cached [default: $REGARD_CACHE, or ~/.cache/regard]."),
]
Systems = Annotated[
    list[Path], typer.Argument(metavar="SYSTEM", help="Runs, checkpoints, or files of outputs, one per line.")
]
Split = Annotated[
    str | None, typer.Option(metavar="NAME", help="train, valid or test of a run's data [default: test].")
]
Sources = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Evaluate on this file of sources instead, one per line.")
]
References = Annotated[
    list[Path] | None, typer.Option(metavar="FILE", help="References for its lines; may be repeated.")
]
Resamples = Annotated[int, typer.Option(metavar="N", min=1, help="Bootstrap resamples for intervals and p-values.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ModelFolder = Annotated[Path, typer.Argument(metavar="MODEL", help="The folder of a run, or of a checkpoint.")]
DecodeChanges = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Set a key of the recipe's [decode]: temperature=0.8; may be repeated."
    ),
]
Device = Annotated[str, typer.Option(metavar="NAME", help="cpu or cuda.")]
Beam = Annotated[int | None, typer.Option(metavar="N", min=1, help="Beam size.")]
MaxLength = Annotated[int | None, typer.Option(metavar="N", min=1, help="The most tokens of an output.")]
Scores = Annotated[bool, typer.Option("--scores", help="Print each output's log-probability before it.")]
Truncate = Annotated[bool, typer.Option("--truncate", help="Truncate inputs that are too long.")]


def read_lines(files: list[Path]) -> Iterator[str]:
    """The lines of files, or of stdin without any."""
    from regard.data.text import lines

    for path in files or [Path("/dev/stdin")]:
        yield from lines(path)


def decode_options(changes: list[str] | None, **given: Any) -> dict[str, Any]:
    """Options of a search: those given by name, and those of --set."""
    from regard.recipe.load import with_setting

    for change in changes or []:
        given = with_setting(given, change)
    return given


def one_line(text: str) -> str:
    """An output on one line: line breaks are escaped."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r") if set(text) & {"\n", "\r"} else text
