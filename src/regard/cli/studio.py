"""`regard studio`."""

from functools import partial
from pathlib import Path
from typing import Annotated

import regard
from regard.cli import completion
from regard.cli.options import Device, TrustDataPaths, argument, flag, option
from regard.cli.serve import MaxBeams, MaxLength, SearchMemory, placed_models


def studio(
    models: Annotated[
        list[str] | None,
        argument(
            "[NAME=]RUN",
            "Runs or checkpoints [default: a small model of dates, which the package has].",
        ),
    ] = None,
    port: Annotated[
        int, option("N", "Port to listen on; 0: a free one.", least=0, most=65535)
    ] = 8700,
    device: Device = "auto",
    data: Annotated[
        list[str] | None,
        option(
            "NAME|FILE",
            "Browse a split of the run's data, or a table, or two files.",
            complete=completion.splits,
        ),
    ] = None,
    column: Annotated[
        list[str] | None, option("NAME", "Column of a table of --data [default: the recipe's].")
    ] = None,
    alignment: Annotated[
        tuple[Path, Path, Path] | None,
        option(
            "SOURCES TARGETS LINKS",
            "With --data: add each head's agreement with these reference links.",
        ),
    ] = None,
    trust_data_paths: TrustDataPaths = False,
    max_length: MaxLength = 4096,
    max_beams: MaxBeams = 128,
    search_memory: SearchMemory = None,
    allowed_host: Annotated[
        list[str] | None,
        option("NAME", "Host name by which browsers reach it through a proxy; repeatable."),
    ] = None,
    no_open: Annotated[bool, flag("--no-open", "Print the address, and open no browser.")] = False,
) -> None:
    """Show a model's attention live in the browser: type, watch, edit, compare.
    Listens on this machine only.

    Examples: regard studio

    regard studio runs/translation

    regard studio small=runs/small large=runs/large --no-open

    regard studio runs/translation --data test

    regard studio runs/translation --data test --alignment test.en test.de links.txt
    """
    named, devices = placed_models(models or (), [device])
    regard.studio(
        named or None,
        port=port,
        device=devices if named else device,
        data=data or (),
        columns=column or (),
        alignment=alignment or (),
        trust_data_paths=trust_data_paths,
        max_length=max_length,
        max_beams=max_beams,
        search_memory=search_memory,
        allowed_hosts=allowed_host or (),
        open_browser=not no_open,
        on_ready=partial(print, flush=True),
    )
