"""Options that several verbs share, and reading lines."""

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from regard.cli import completion
from regard.core.errors import InvalidArgument
from regard.core.sanitize import printable

if TYPE_CHECKING:
    from regard.data.text import Errors
    from regard.inference.predictor import Predictor

Completions = Callable[[], Sequence[str | tuple[str, str]]]  # values, or values with their meanings


def option(
    metavar: str,
    help: str,
    *names: str,
    least: int | None = None,
    most: int | None = None,
    complete: Completions | None = None,
) -> Any:
    """An option with a value; its name is that of the parameter unless `names` are given.

    `complete` lists values for the shell's completion.
    """
    return typer.Option(
        *names, metavar=metavar, help=help, min=least, max=most, autocompletion=complete
    )


def argument(metavar: str, help: str, complete: Completions | None = None) -> Any:
    return typer.Argument(metavar=metavar, help=help, autocompletion=complete)


def flag(name: str, help: str) -> Any:
    """An option without a value, and without its negation."""
    return typer.Option(name, help=help)


RecipeFile = Annotated[
    str, argument("RECIPE", "A TOML file, or the name of a built-in recipe.", completion.recipes)
]
Changes = Annotated[
    list[str] | None,
    option(
        "KEY=VALUE",
        "Set a key of the recipe; may be repeated.",
        "--set",
        complete=completion.recipe_keys,
    ),
]
Cache = Annotated[
    Path | None,
    option("FOLDER", "Where prepared data is cached [default: $REGARD_CACHE, or ~/.cache/regard]."),
]
Systems = Annotated[
    list[Path], argument("SYSTEM", "Runs, checkpoints, or files of outputs, one per line.")
]
Split = Annotated[
    str | None,
    option(
        "NAME", "train, valid or test of a run's data [default: test].", complete=completion.splits
    ),
]
Sources = Annotated[
    Path | None,
    option("FILE", "Evaluate on this file of sources instead, one per line, or a table."),
]
References = Annotated[
    list[Path] | None, option("FILE", "References for its lines; may be repeated.")
]
Data = Annotated[
    list[str] | None,
    option(
        "FILE",
        "Evaluate on new data: a table, or one option each for a file "
        "of sources and one of targets.",
    ),
]
Column = Annotated[
    list[str] | None,
    option(
        "NAME",
        "Column of a .csv, .tsv, .jsonl or .parquet: sources first, then "
        "targets [default: the recipe's].",
    ),
]
InputColumn = Annotated[
    list[str] | None,
    option(
        "NAME",
        "Column of a .csv, .tsv, .jsonl or .parquet with the inputs [default: the recipe's].",
        "--column",
    ),
]
Metric = Annotated[
    list[str] | None,
    option(
        "NAME",
        "One of those of `regard evaluate --help`; may be repeated [default: those of the task].",
        complete=completion.metrics,
    ),
]
ByLength = Annotated[
    str | None, option("N|A,B,…", "By source length: N buckets, or buckets that end at A, B, …")
]
Resamples = Annotated[
    int, option("N", "Bootstrap resamples for intervals and p-values.", least=1, most=1_000_000)
]
Json = Annotated[bool, flag("--json", "Print JSON.")]
ModelFolder = Annotated[Path, argument("MODEL", "The folder of a run, or of a checkpoint.")]
DecodeChanges = Annotated[
    list[str] | None,
    option(
        "KEY=VALUE",
        "Set a key of the recipe's [decode]: temperature=0.8; may be repeated.",
        "--set",
        complete=completion.decode_keys,
    ),
]
Device = Annotated[
    str,
    option("NAME", "cpu, cuda, or auto: a GPU where there is one.", complete=completion.devices),
]
Beam = Annotated[int | None, option("N", "Beam size.", least=1)]
MaxLength = Annotated[int | None, option("N", "The most tokens of an output.", least=1)]
StopStrings = Annotated[
    list[str] | None,
    option("TEXT", "An output ends before this text; may be repeated.", "--stop"),
]
Scores = Annotated[
    bool, flag("--scores", "Print each output's score, by which outputs are ranked, before it.")
]
TrustDataPaths = Annotated[
    bool, flag("--trust-data-paths", "Read the data paths of an untrusted checkpoint.")
]
Truncate = Annotated[bool, flag("--truncate", "Truncate inputs that are too long.")]


def read_inputs(
    files: Sequence[Path | None], columns: Sequence[str], errors: str = "strict"
) -> Iterator[str]:
    """The lines of files, or of stdin without any; of tables, these columns,
    with tabs between them.
    """
    from regard.data.text import texts

    mode = _error_mode(errors)
    for path in [path for path in files if path is not None] or [Path("/dev/stdin")]:
        yield from texts(path, columns, mode)


def model_inputs(
    file: Path | None, predictor: "Predictor", columns: Sequence[str], errors: str = "strict"
) -> Iterator[Any]:
    """The inputs of a model in a file, or on stdin: `regard.inference.file_inputs`."""
    from regard.inference.file_inputs import file_inputs

    return file_inputs(predictor, file, columns, _error_mode(errors))


def typed_input(predictor: "Predictor", text: str) -> Any:
    """An input as it is typed: the path of a file where it names one."""
    from regard.inference.file_inputs import value_of

    fields = predictor.recipe.data.source_fields
    if len(fields) != 1:
        return text
    return value_of(fields[0], text)


def _error_mode(errors: str) -> "Errors":
    if errors not in ("strict", "replace"):
        raise InvalidArgument(
            "--errors", wanted="strict or replace", got=repr(errors), remedy="Choose one."
        )
    return "strict" if errors == "strict" else "replace"


def show(text: str, end: str = "\n", file: TextIO | None = None, *, flush: bool = True) -> None:
    """Print a text of a model or of data: exactly to a file or a pipe,
    without unprintable characters to a terminal.
    """
    file = file or sys.stdout
    if file.isatty():
        text = printable(text, also="\t\n")
    print(text, end=end, flush=flush, file=file)


def decode_options(changes: list[str] | None, **given: Any) -> dict[str, Any]:
    """Options of a search: those given by name, and those of --set, which must be keys of [decode].

    `decode.KEY`, as `regard train --set` has it, means the same as KEY.
    """
    from regard.core.config import nearest
    from regard.generation.config import DecodeConfig
    from regard.recipe.load import read_tables

    given = read_tables(given, [change.strip().removeprefix("decode.") for change in changes or ()])
    keys = DecodeConfig.__dataclass_fields__
    for key in given.keys() - keys:
        raise InvalidArgument("set", wanted="a key of [decode]", got=key, remedy=nearest(key, keys))
    return given
