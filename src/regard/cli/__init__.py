"""The command line: one function per verb, which parses, calls and prints.
Nothing heavy is imported until it runs.

Results go to stdout, messages and the log records of `regard` to stderr. Exit codes: 0 done; 1
failure; 2 usage or bad input; 3 training diverged; 4 checkpoint refused; 128 + its number stopped
by a signal.
"""

import errno
import io
import os
import signal
import sys
from contextlib import suppress
from typing import Annotated

import typer

from regard import __version__
from regard.cli import (
    caption,
    evaluate,
    interop,
    look,
    predict,
    serve,
    studio,
    train,
    transcribe,
    words,
)
from regard.cli.verb import Verb, Verbs
from regard.cli.version import version_lines
from regard.core.errors import RegardError
from regard.core.log_output import logging_to_stderr
from regard.views.progress import close_status_lines

INTERRUPTED = 128 + signal.SIGINT  # Typer's exit code

app = typer.Typer(
    name="regard",
    cls=Verbs,
    help="Train, interpret and serve attention models.",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help starts three times as fast
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_and_exit(*lines: str) -> None:
    for line in lines:
        typer.echo(line)
    raise typer.Exit


def _version(wanted: bool) -> bool:
    if wanted:
        _print_and_exit(f"regard {__version__}")
    return wanted


def _verbose_version(wanted: bool) -> bool:
    if wanted:
        _print_and_exit(*version_lines())
    return wanted


@app.callback()
def regard(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, help="Print the version and exit.")
    ] = False,
    verbose: Annotated[
        bool,
        # Eager: it comes before --version, wherever it stands.
        typer.Option(
            "--verbose",
            callback=_verbose_version,
            is_eager=True,
            help="With --version: what bug reports need.",
        ),
    ] = False,
) -> None:
    """Train, interpret and serve attention models."""


app.command(cls=Verb)(train.train)
app.command(cls=Verb)(train.prepare)
app.command(cls=evaluate.WithMetrics)(evaluate.evaluate)
app.command(cls=Verb)(evaluate.compare)
app.command(cls=Verb)(predict.predict)
app.command(cls=Verb)(caption.caption)
app.command(cls=Verb)(transcribe.transcribe)
app.command(cls=Verb)(look.look)
app.command(cls=Verb)(look.align)
app.command(cls=Verb)(evaluate.score)
app.command(cls=Verb)(evaluate.shortlist)
app.command(cls=Verb)(evaluate.thresholds)
app.command(cls=Verb)(evaluate.verify)
app.command(cls=Verb)(evaluate.sign)
app.command("import", cls=Verb)(interop.import_)
app.command(cls=Verb)(interop.export)
app.command(cls=Verb)(interop.convert)
app.command(cls=Verb)(serve.serve)
app.command(cls=Verb)(studio.studio)
app.command(cls=Verb)(train.sweep)
app.command(cls=Verb)(train.average)
app.command(cls=Verb)(train.plot)
app.command(cls=Verb)(train.recipes)
app.command(cls=Verb)(train.data)
app.command(cls=Verb)(train.demo)
app.add_typer(words.app, name="words")


def main() -> None:
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal without arrows shows question marks, not a traceback.
            stream.reconfigure(errors="replace")
    rank = ""
    if "RANK" in os.environ:
        rank = f" (rank {os.environ['RANK']})"  # of a process started by torchrun
    try:
        try:
            with logging_to_stderr(f"regard{rank}: "):
                app()
        finally:
            close_status_lines()
            sys.stdout.flush()
    except SystemExit as exit:
        if exit.code == INTERRUPTED:
            # The terminal shows ^C where Ctrl-C was pressed: the message begins its own line.
            with suppress(OSError):
                begin = "\n" if sys.stderr.isatty() else ""
                print(f"{begin}regard{rank}: interrupted", file=sys.stderr)
        raise
    except RegardError as error:
        with suppress(OSError):  # stderr is closed
            print(f"regard{rank}: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # the reader of our output closed it
        _discard_output()
        sys.exit(1)
    except OSError as error:
        _discard_output()
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        where = f"{error.filename}: " if error.filename else ""
        remedy = ""
        if full:
            remedy = (
                " The file that was being written is incomplete: free some space and start again."
            )
        print(f"regard{rank}: {where}{error.strerror or error}.{remedy}", file=sys.stderr)
        sys.exit(1)
    finally:
        _discard_unread()


def _discard_unread() -> None:
    """Keep Python from failing at its exit to write what is left to a closed stderr."""
    try:
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def _open_closed_streams() -> None:
    """Open /dev/null for standard streams that the parent process closed:
    the next files would get their numbers.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            mode = "w" if number else "r"
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8"))


def _discard_output() -> None:
    """Keep Python from writing to stdout again when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
