"""`regard.caption`: captions of images in files, folders and zip files,
and drawings of their attention.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard.core.atomic_io import atomic_file, named_os_errors
from regard.core.errors import InvalidArgument
from regard.data.fields.text import require_tokenizer
from regard.data.image_store import Member, find_images
from regard.data.images import Pixels, ResizeFilter, read_image, read_thumbnail
from regard.inference.load import load
from regard.inference.predictor import Predictor
from regard.interpret.output_attention import require_cross_attention
from regard.interpret.regions import ImageRegions, RegionWord, image_regions, words_over_regions
from regard.tasks.pipeline import Output
from regard.views import caption_overlay
from regard.views.caption_overlay import Overlay
from regard.views.html import PAGE_END

CHUNK = 64  # images at once
SHOWN = 448  # pixels of a drawn image's longer side


@dataclass(frozen=True)
class CaptionedImage:
    """An image with its captions, best first; or the reason why it could not be read."""

    image: Path | Member
    outputs: Sequence[Output] = ()
    problem: str | None = None


def caption(
    model: str | Path | Predictor,
    paths: Iterable[str | Path],
    *,
    draw: Path | None = None,
    **options: Any,
) -> Iterator[CaptionedImage]:
    """A caption for each image, in order. An image that cannot be read is reported in its place.

    model     a run, a checkpoint, or a loaded model
    paths     images, or folders and .zip files of images
    draw      a folder that gets a PNG and an SVG of each image with its attention, and index.html
              with all of them
    options   those of `Predictor.outputs`
    """
    predictor = load(model)
    field = predictor.recipe.data.source
    if field is None or field.resizing is None or predictor.model.generator is None:
        wanted = "a model from images to texts"
        remedy = "`regard predict` takes any model."
        raise InvalidArgument("model", wanted=wanted, got="another", remedy=remedy)
    drawing = nullcontext() if draw is None else _drawing(predictor, draw)
    with drawing as draw_image:
        numbered = enumerate(find_images(paths), start=1)
        while chunk := dict(islice(numbered, CHUNK)):
            images = {number: _read(image, field.resizing) for number, image in chunk.items()}
            readable = {
                number: pixels for number, pixels in images.items() if not isinstance(pixels, str)
            }
            numbers = list(readable)
            attention = {"attention": draw_image is not None}
            outputs = {}
            if readable:
                found = predictor.iter_outputs(
                    list(readable.values()), lines=numbers, **attention | options
                )
                outputs = {numbers[i]: best for i, best in found}
            for number, image in chunk.items():
                if isinstance(problem := images[number], str):
                    yield CaptionedImage(image, problem=problem)
                    continue
                if draw_image is not None:
                    draw_image(image, outputs[number][0])
                yield CaptionedImage(image, outputs[number])


def _read(image: Path | Member, resizing: tuple[int, ResizeFilter, int | None]) -> Pixels | str:
    """The pixels of an image, or the message of the error."""
    try:
        return read_image(image, *resizing)
    except InvalidArgument as error:
        return str(error)


def predictor_regions(predictor: Predictor) -> ImageRegions:
    """The grid that the encoder of an image model makes of its images."""
    assert predictor.image_size is not None
    _, batch = predictor.encode(np.zeros((predictor.image_size, predictor.image_size, 3), np.uint8))
    return image_regions(predictor.model, batch)


def caption_words(predictor: Predictor, output: Output, grid: ImageRegions) -> list[RegionWord]:
    """The words of a caption with their attention over the image's regions; none if it is empty."""
    if output.attention is None:
        return []
    target = require_tokenizer(predictor.target, "model")
    return words_over_regions(output.token_ids, target, output.attention, grid)


@contextmanager
def _drawing(
    predictor: Predictor, folder: Path
) -> Iterator[Callable[[Path | Member, Output], None]]:
    """A function that draws a captioned image into a folder,
    which also gets a page of all images.
    """
    require_cross_attention("draw", predictor.model)
    grid = predictor_regions(predictor)
    numbers = count(1)
    with named_os_errors(folder, "a folder to draw into"):
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_file(folder / "index.html") as page:

            def draw(image: Path | Member, output: Output) -> None:
                words = caption_words(predictor, output, grid)
                weights = torch.zeros(len(words), grid.rows, grid.columns)
                for row, word in zip(weights, words, strict=True):
                    row.copy_(word.weights)
                overlay = Overlay(
                    str(image), read_thumbnail(image, SHOWN), [word.text for word in words], weights
                )
                name = file_name(image, next(numbers))
                for ending in (".png", ".svg"):
                    with atomic_file(folder / f"{name}{ending}") as file:
                        file.write(caption_overlay.draw(overlay, ending))
                page.write(caption_overlay.figure(overlay).encode())

            page.write(caption_overlay.PAGE.encode())
            yield draw
            page.write(PAGE_END.encode())


def file_name(image: Path | Member, number: int) -> str:
    """A unique file name for the drawing of the n-th image,
    without characters special to file systems or shells.

    >>> file_name(Path("../a dog;.jpg"), 7)
    '0007-a-dog'
    """
    last = image.name.replace("\\", "/").rpartition("/")[2].rpartition(".")[0]
    plain = re.sub(r"[^A-Za-z0-9_]+", "-", last)[:60].strip("-")
    if not plain:
        return f"{number:04}"
    return f"{number:04}-{plain}"
