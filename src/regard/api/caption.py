"""`regard caption`: captions of images in files, folders and zip files, and drawings of their attention."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard.core.atomic_io import atomic_file, named_os_errors
from regard.core.errors import InvalidArgument
from regard.data.image_store import EXTENSIONS, Member, ZipStore, is_zip
from regard.data.images import Pixels, read_image, read_thumbnail
from regard.data.tokenizer import Tokenizer
from regard.inference.pipelines import Output
from regard.inference.predictor import Predictor
from regard.interpret.output_attention import require_cross_attention
from regard.interpret.regions import ImageRegions, RegionWord, image_regions, words_over_regions
from regard.model.seq2seq import Classifier, MaskedLanguageModel
from regard.views import caption_overlay
from regard.views.caption_overlay import Overlay

CHUNK = 64  # images at once
SHOWN = 448  # pixels of a drawn image's longer side


@dataclass(frozen=True)
class CaptionedImage:
    """An image with its captions, best first; or the reason why it could not be read."""

    picture: Path | Member
    outputs: Sequence[Output] = ()
    problem: str | None = None


def find_pictures(paths: Iterable[str | Path]) -> Iterator[Path | Member]:
    """Files as given; of folders and zip files, all entries with an image's ending, sorted by name."""
    for path in map(Path, paths):
        found: Sequence[Path | Member]
        if os.path.isdir(path):  # unlike Path.is_dir, it never raises
            found = sorted(each for each in path.rglob("*") if _is_picture(each.name) and each.is_file())
        elif is_zip(path) and os.path.isfile(path):
            archive = ZipStore(path)
            names = sorted(info.filename for info in archive.file.infolist() if _is_picture(info.filename))
            found = [Member(path, name, archive) for name in names]
        else:
            found = [path]
        if not found:
            wanted, remedy = "at least one image", f"Their names end in {', '.join(EXTENSIONS)}."
            raise InvalidArgument(str(path), wanted=wanted, got="none", remedy=remedy)
        yield from found


def caption(
    predictor: Predictor, paths: Iterable[str | Path], *, draw: Path | None = None, **options: Any
) -> Iterator[CaptionedImage]:
    """A caption for each image, in order. An image that cannot be read is reported in its place.

    draw      a folder that gets a PNG and an SVG of each image with its attention, and index.html with all of them
    options   those of `Predictor.outputs`
    """
    if predictor.image_size is None or isinstance(predictor.model, Classifier | MaskedLanguageModel):
        wanted, remedy = "a model from images to texts", "`regard predict` takes any model."
        raise InvalidArgument("model", wanted=wanted, got="another", remedy=remedy)
    with nullcontext() if draw is None else _OverlayWriter(predictor, draw) as writer:
        numbered = enumerate(find_pictures(paths), start=1)
        while chunk := dict(islice(numbered, CHUNK)):
            yield from _captioned(predictor, chunk, writer, options)


def _captioned(
    predictor: Predictor, chunk: dict[int, Path | Member], writer: "_OverlayWriter | None", options: dict[str, Any]
) -> Iterator[CaptionedImage]:
    assert predictor.image_size is not None
    read: dict[int, Pixels | str] = {n: _read(each, predictor.image_size) for n, each in chunk.items()}
    readable: dict[int, Pixels] = {n: one for n, one in read.items() if not isinstance(one, str)}
    numbers, options = list(readable), {"attention": writer is not None, **options}
    found = predictor.iter_outputs(list(readable.values()), lines=numbers, **options) if readable else ()
    outputs = {numbers[i]: best for i, best in found}
    for n, picture in chunk.items():
        if isinstance(problem := read[n], str):
            yield CaptionedImage(picture, problem=problem)
            continue
        if writer is not None:
            writer.draw(picture, outputs[n][0])
        yield CaptionedImage(picture, outputs[n])


def _read(picture: Path | Member, size: int) -> Pixels | str:
    """The pixels of an image, or the message of the error."""
    try:
        return read_image(picture, size)
    except InvalidArgument as error:
        return str(error)


def predictor_regions(predictor: Predictor) -> ImageRegions:
    """The grid that the encoder of an image model makes of its images."""
    assert predictor.image_size is not None
    _, batch = predictor.encode(np.zeros((predictor.image_size, predictor.image_size, 3), np.uint8))
    return image_regions(predictor.model, batch)


def caption_words(predictor: Predictor, output: Output, grid: ImageRegions) -> list[RegionWord]:
    """The words of a caption with their attention over the image's regions; none if it is empty."""
    assert isinstance(predictor.target, Tokenizer)
    return (
        []
        if output.attention is None
        else words_over_regions(output.token_ids, predictor.target, output.attention, grid)
    )


class _OverlayWriter:
    """Writes drawings of captioned images into a folder."""

    def __init__(self, predictor: Predictor, folder: Path) -> None:
        require_cross_attention("draw", predictor.model)
        self.predictor, self.folder, self.count = predictor, folder, 0
        self.grid = predictor_regions(predictor)
        self.stack = ExitStack()

    def __enter__(self) -> "_OverlayWriter":
        with self._writing():
            self.folder.mkdir(parents=True, exist_ok=True)
            self.page = self.stack.enter_context(atomic_file(self.folder / "index.html"))
            self.page.write(caption_overlay.PAGE.encode())
        return self

    def __exit__(self, *failure: Any) -> None:
        with self._writing():
            if failure[0] is None:
                self.page.write(caption_overlay.PAGE_END.encode())
            self.stack.__exit__(*failure)

    def draw(self, picture: Path | Member, output: Output) -> None:
        words = caption_words(self.predictor, output, self.grid)
        weights = torch.zeros(len(words), self.grid.rows, self.grid.columns)
        for row, word in zip(weights, words, strict=True):
            row.copy_(word.weights)
        overlay = Overlay(str(picture), read_thumbnail(picture, SHOWN), [word.text for word in words], weights)
        self.count += 1
        with self._writing():
            for ending in (".png", ".svg"):
                with atomic_file(self.folder / (file_name(picture, self.count) + ending)) as file:
                    file.write(caption_overlay.draw(overlay, ending))
            self.page.write(caption_overlay.figure(overlay).encode())

    def _writing(self) -> AbstractContextManager[None]:
        return named_os_errors(self.folder, "a folder to draw into")


def file_name(picture: Path | Member, number: int) -> str:
    """A unique file name for the drawing of the n-th image, without characters special to file systems or shells.

    >>> file_name(Path("../a dog;.jpg"), 7)
    '0007-a-dog'
    """
    last = picture.name.replace("\\", "/").rpartition("/")[2].rpartition(".")[0]
    plain = re.sub(r"[^A-Za-z0-9_]+", "-", last)[:60].strip("-")
    return f"{number:04}-{plain}" if plain else f"{number:04}"


def _is_picture(name: str) -> bool:
    return name.lower().endswith(EXTENSIONS)
