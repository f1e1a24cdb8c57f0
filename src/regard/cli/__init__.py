"""The command line: one function per verb, which parses, calls and prints. Nothing heavy is imported until it runs.

Results go to stdout, messages to stderr. Exit codes: 0 done; 1 failure; 2 usage or bad input; 3 training diverged;
4 checkpoint refused; 130 and 143 stopped by a signal.
"""

import errno
import io
import os
import sys
from typing import Annotated

import typer

from regard import __version__
from regard.cli import align, compare, evaluate, look, predict, train, words
from regard.core.errors import RegardError

app = typer.Typer(
    name="regard",
    help="Train, look inside and serve attention models.",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help answers three times as fast
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"regard {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def regard(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train, look inside and serve attention models."""


app.command()(train.train)
app.command()(train.prepare)
app.command(cls=evaluate.WithMetrics)(evaluate.evaluate)
app.command()(compare.compare)
app.command()(predict.predict)
app.command()(predict.caption)
app.command()(look.look)
app.command()(align.align)
app.command()(evaluate.score)
app.command()(evaluate.verify)
app.command()(train.recipes)
app.command()(train.demo)
app.add_typer(words.app, name="words")


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without arrows shows question marks, and not a traceback
    try:
        try:
            app()
        finally:
            if sys.stdout is not None:  # closed by who started us
                sys.stdout.flush()
    except RegardError as error:
        rank = f" (rank {os.environ['RANK']})" if "RANK" in os.environ else ""  # one of torchrun's processes
        print(f"regard{rank}: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # whoever read our output has enough
        _forget_output()
        sys.exit(1)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        _forget_output()
        told = "What was being written is not whole: make room, and start again."
        print(f"regard: {error.strerror}. {told}", file=sys.stderr)
        sys.exit(1)


def _forget_output() -> None:
    """Let nothing that could not be written be tried again as Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
