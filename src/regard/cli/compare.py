"""The verb that puts systems side by side."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import (
    Cache,
    DecodeChanges,
    Device,
    Json,
    References,
    Resamples,
    Sources,
    Split,
    Systems,
    decode_options,
)

ENDINGS = (".html", ".svg")


def compare(
    systems: Systems,
    split: Split = None,
    sources: Sources = None,
    references: References = None,
    metric: Annotated[list[str] | None, typer.Option(help="As `regard evaluate` knows them; may be repeated.")] = None,
    by_length: Annotated[
        str, typer.Option(metavar="N|A,B,…", help="Source lengths: N groups, or groups that end at A, B, …")
    ] = "4",
    sentences: Annotated[int, typer.Option(min=0, help="Show so many, with the most different outputs.")] = 5,
    resamples: Resamples = 1000,
    out: Annotated[
        Path | None, typer.Option(help="Write a page (.html), or quality by source length as a figure (.svg).")
    ] = None,
    set_: DecodeChanges = None,
    device: Device = "cpu",
    cache: Cache = None,
    as_json: Json = False,
) -> None:
    """Systems on the same inputs, side by side: metrics, quality by source length, and where outputs differ most.

    The page also has a map of attention for each output of a model that has one, as has --json.

    Examples:
    regard compare runs/old runs/new

    regard compare runs/rnn runs/transformer --out compare.html --sentences 20
    """
    from regard.api.compare import side_by_side
    from regard.api.comparison_report import as_figure, as_page, as_text
    from regard.core.atomic_io import atomic_file
    from regard.core.errors import InvalidArgument

    if out is not None and out.suffix not in ENDINGS:
        wanted = f"a name in {' or '.join(ENDINGS)}"
        raise InvalidArgument("out", wanted=wanted, got=str(out), remedy="Choose one of these.")
    with nullcontext() if out is None else atomic_file(out) as file:
        found = side_by_side(
            systems,
            split=split,
            sources=sources,
            references=references or (),
            metrics=metric,
            resamples=resamples,
            by_length=by_length,
            sentences=sentences,
            cache=cache,
            device=device,
            decode=decode_options(set_),
        )
        if out is not None and file is not None:
            file.write((as_page if out.suffix == ".html" else as_figure)(found).encode())
    print(json.dumps(found.as_dict(), ensure_ascii=False) if as_json else as_text(found))
