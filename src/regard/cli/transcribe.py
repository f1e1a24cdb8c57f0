"""`regard transcribe`."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

import regard
from regard.cli.options import Device, ModelFolder, argument, flag, option, show
from regard.core.errors import InvalidArgument, InvalidData
from regard.core.sanitize import one_line
from regard.core.text_table import counted

STDIN = Path("-")


@contextmanager
def _audio(recording: Path) -> "Iterator[Path | BinaryIO]":
    """A recording as `regard.transcribe` takes it: its path, or standard input."""
    if recording != STDIN:
        yield recording
        return
    with open(0, "rb", closefd=False) as file:
        yield file


def transcribe(
    model: ModelFolder,
    recordings: Annotated[
        list[Path], argument("WAV", "Recordings of any length; -: audio on standard input.")
    ],
    window: Annotated[float, option("SECONDS", "Audio that is encoded at once.")] = 20.0,
    overlap: Annotated[
        float, option("SECONDS", "Audio that a window shares with the next one.")
    ] = 4.0,
    times: Annotated[
        bool,
        flag(
            "--times", "Print a line for each word: the second at which it begins, a tab, the word."
        ),
    ] = False,
    raw: Annotated[
        str | None,
        option(
            "FORMAT",
            "Samples without a header, little-endian: u8, s16le, s24le, s32le, f32le or f64le.",
        ),
    ] = None,
    rate: Annotated[int | None, option("N", "Of --raw: samples of a channel per second.")] = None,
    channels: Annotated[
        int, option("N", "Of --raw: channels, of which the mean is read.", least=1)
    ] = 1,
    device: Device = "auto",
) -> None:
    """Print the text of recordings of any length, a line for each, word by word as they are known.

    The model has a CTC head. A recording is read in windows that overlap, so that memory does not
    grow with its length. The words of a window are printed as soon as it has been read, also while
    audio is still arriving on standard input. A recording that cannot be read is reported on
    stderr, the others are transcribed, and the exit code is 1.

    Examples: regard transcribe runs/digit-strings recording.wav

    regard transcribe runs/digit-strings *.wav --times

    arecord -f S16_LE -r 16000 -t raw | regard transcribe runs/digit-strings - --raw s16le --rate 16000
    """
    if recordings.count(STDIN) > 1:
        raise InvalidArgument("WAV", wanted="- once", got="twice", remedy="Leave one out.")
    if STDIN in recordings and os.isatty(0):
        raise InvalidArgument(
            "WAV",
            wanted="audio on standard input",
            got="a terminal",
            remedy="Send it there: regard transcribe MODEL - < FILE.",
        )
    predictor = regard.load(model, device=device)
    broken = 0
    of_raw = {"raw": raw, "rate": rate, "channels": channels}
    for recording in recordings:
        before = ""
        try:
            with _audio(recording) as audio:
                options: dict[str, Any] = {"window": window, "overlap": overlap, **of_raw}
                for word in regard.transcribe(predictor, audio, **options):
                    text = one_line(word.text)
                    if times:
                        show(f"{word.seconds:.2f}\t{text}")
                    else:
                        show(f"{before}{text}", end="")
                    before = " "
        except InvalidData as error:
            broken += 1
            print(f"regard: {error}", file=sys.stderr)
            if not before:
                continue
        if not times:
            print(flush=True)
    if broken:
        print(f"regard: {counted(broken, 'recording')} could not be transcribed", file=sys.stderr)
        raise typer.Exit(1)
