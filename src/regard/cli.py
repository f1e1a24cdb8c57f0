"""The command line: one function per verb, which parses, calls and prints. Nothing heavy is imported until it runs.

Results go to stdout, messages to stderr. Exit codes: 0 done; 1 failure; 2 usage or bad input.
"""

import io
import sys
from typing import Annotated

import typer

from regard import __version__
from regard.errors import InvalidArgument, RegardError

app = typer.Typer(
    name="regard",
    help="Train, look inside and serve attention models.",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help answers three times as fast
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"regard {__version__}")
        raise typer.Exit


@app.callback()
def regard(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train, look inside and serve attention models."""


@app.command()
def demo(
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Everything random is drawn from this.")] = 0,
    steps: Annotated[int, typer.Option(min=1, help="How many training steps.")] = 300,
) -> None:
    """Train one attention layer to spell words backwards, and see exactly where it looks.

    Takes some seconds on a laptop and needs no data.

    Example: regard demo --seed 1
    """
    from regard import demo as demonstration

    demonstration.run(seed=seed, steps=steps)


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without arrows shows question marks, and not a traceback
    try:
        app()
    except RegardError as error:
        print(f"regard: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, InvalidArgument) else 1)


if __name__ == "__main__":
    main()
