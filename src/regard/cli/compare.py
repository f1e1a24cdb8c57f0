"""`regard compare`."""

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
    metric: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A metric of `regard evaluate`; may be repeated.")
    ] = None,
    by_length: Annotated[
        str, typer.Option(metavar="N|A,B,…", help="By source length: N buckets, or buckets that end at A, B, …")
    ] = "4",
    sentences: Annotated[
        int, typer.Option(metavar="N", min=0, help="Show the N examples whose outputs differ most.")
    ] = 5,
    resamples: Resamples = 1000,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a page (.html), or a figure of quality by source length (.svg)."),
    ] = None,
    set_: DecodeChanges = None,
    device: Device = "cpu",
    cache: Cache = None,
    as_json: Json = False,
) -> None:
    """Compare systems on the same examples: metrics, quality by source length, and the most different outputs.

    Pages and --json also have an attention map for each output of a model with cross-attention.

    Examples:
    regard compare runs/old runs/new

    regard compare runs/rnn runs/transformer --out compare.html --sentences 20
    """
    from regard.api import compare
    from regard.core.atomic_io import atomic_file
    from regard.core.errors import InvalidArgument
    from regard.views.comparison import comparison_figure, comparison_page, comparison_text

    if out is not None and out.suffix not in ENDINGS:
        wanted = f"a name in {' or '.join(ENDINGS)}"
        raise InvalidArgument("out", wanted=wanted, got=str(out), remedy="Choose one of these.")
    with nullcontext() if out is None else atomic_file(out) as file:
        comparison = compare.compare(
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
            file.write((comparison_page if out.suffix == ".html" else comparison_figure)(comparison).encode())
    print(json.dumps(comparison.as_dict(), ensure_ascii=False) if as_json else comparison_text(comparison))
