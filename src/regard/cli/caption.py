"""`regard caption`."""

import sys
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

import regard
from regard.cli.losses import warn_of_ends
from regard.cli.options import (
    Beam,
    DecodeChanges,
    Device,
    Json,
    MaxLength,
    ModelFolder,
    Scores,
    argument,
    decode_options,
    option,
)
from regard.cli.predict_outputs import print_json, print_texts
from regard.core.sanitize import one_line
from regard.core.text_table import counted
from regard.views.progress import tracked


def caption(
    model: ModelFolder,
    images: Annotated[
        list[Path], argument("IMAGE", "Images, or folders and .zip files of images.")
    ],
    draw: Annotated[
        Path | None,
        option(
            "FOLDER",
            "Draw the attention of each word: PNG and SVG of each image, index.html of all.",
        ),
    ] = None,
    beam: Beam = None,
    max_length: MaxLength = None,
    scores: Scores = False,
    set_: DecodeChanges = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Print a caption for every image: its path, a tab and the caption.

    An image that cannot be read is reported on stderr, the others are captioned, and the exit code
    is 1. Drawings show the mean over the heads of the decoder's last layer.

    Examples: regard caption runs/captions photos/*.jpg

    regard caption runs/captions photos.zip --beam 5 --draw attention
    """
    options = decode_options(set_, beam_size=beam, max_length=max_length)
    broken = 0
    ends = Counter[str | None]()
    predictor = regard.load(model, device=device)
    captioned = regard.caption(predictor, images, draw=draw, scores=scores or as_json, **options)
    for each in tracked(captioned, "images", printing=True):
        if each.problem is not None:
            broken += 1
            print(f"regard: {each.problem}", file=sys.stderr)
            continue
        ends[each.outputs[0].finish_reason] += 1
        if as_json:
            print_json(str(each.image), each.outputs)
        else:
            name = one_line(str(each.image)).replace("\t", "\\t")
            print_texts(each.outputs, scores, before=f"{name}\t")
        sys.stdout.flush()
    warn_of_ends(ends, has_source=True)
    if broken:
        print(f"regard: {counted(broken, 'image')} could not be captioned", file=sys.stderr)
        raise typer.Exit(1)
