"""`regard transcribe`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

import regard
from regard.cli.options import Device, ModelFolder, argument, flag, option, show
from regard.core.errors import InvalidData
from regard.core.sanitize import one_line
from regard.core.text_table import counted


def transcribe(
    model: ModelFolder,
    recordings: Annotated[list[Path], argument("WAV", "Recordings of any length.")],
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
    device: Device = "auto",
) -> None:
    """Print the text of recordings of any length, a line for each, word by word as they are known.

    The model has a CTC head. A recording is read in windows that overlap, so that memory does not
    grow with its length. A recording that cannot be read is reported on stderr, the others are
    transcribed, and the exit code is 1.

    Examples: regard transcribe runs/digit-strings recording.wav

    regard transcribe runs/digit-strings *.wav --times
    """
    predictor = regard.load(model, device=device)
    broken = 0
    for recording in recordings:
        words = regard.transcribe(predictor, recording, window=window, overlap=overlap)
        before = ""
        try:
            for word in words:
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
