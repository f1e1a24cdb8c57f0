"""Captions for pictures that lie in files, folders and zip files, and drawings of where their words looked."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from regard.core.atomic_io import atomic_file, named_os_errors
from regard.core.errors import InvalidArgument
from regard.data.image_store import EXTENSIONS, Member, ZipStore, is_zip
from regard.data.images import Pixels, read_image, read_thumbnail
from regard.inference.outputs import Output
from regard.inference.predictor import Predictor
from regard.interpret.output_attention import require_cross_attention
from regard.interpret.regions import CaptionRegions, regions, words
from regard.model.seq2seq import Classifier, MaskedLanguageModel
from regard.views import caption_overlay as views

CHUNK = 64  # pictures at once
SHOWN = 448  # pixels of a drawn picture's longer side


@dataclass(frozen=True)
class CaptionedImage:
    """A picture with its captions, best first; or what is wrong with it."""

    picture: Path | Member
    outputs: Sequence[Output] = ()
    problem: str | None = None


def find_pictures(paths: Iterable[str | Path]) -> Iterator[Path | Member]:
    """Files as they are named; of folders and zip files all that are called like pictures, by name."""
    for path in map(Path, paths):
        found: Sequence[Path | Member]
        if os.path.isdir(path):  # which is never an error, whatever the path
            found = sorted(each for each in path.rglob("*") if _is_picture(each.name) and each.is_file())
        elif is_zip(path) and os.path.isfile(path):
            archive = ZipStore(path)
            names = sorted(info.filename for info in archive.file.infolist() if _is_picture(info.filename))
            found = [Member(path, name, archive) for name in names]
        else:
            found = [path]
        if not found:
            wanted, remedy = "at least one picture", f"They end in {', '.join(EXTENSIONS)}."
            raise InvalidArgument(str(path), wanted=wanted, got="none", remedy=remedy)
        yield from found


def caption(
    predictor: Predictor, paths: Iterable[str | Path], *, draw: Path | None = None, **options: Any
) -> Iterator[CaptionedImage]:
    """A caption for each picture, in order. One that cannot be read says so in its place, and the others go on.

    With `draw`, a folder gets a PNG and an SVG of each, and index.html with all of them once all are there. Options are
    those of `Predictor.outputs`.
    """
    if predictor.image_size is None or isinstance(predictor.model, Classifier | MaskedLanguageModel):
        wanted, remedy = "a model from pictures to texts", "`regard predict` takes any model."
        raise InvalidArgument("model", wanted=wanted, got="another", remedy=remedy)
    with nullcontext() if draw is None else _OverlayWriter(predictor, draw) as desk:
        numbered = enumerate(find_pictures(paths), start=1)
        while chunk := dict(islice(numbered, CHUNK)):
            yield from _captioned(predictor, chunk, desk, options)


def _captioned(
    predictor: Predictor, chunk: dict[int, Path | Member], desk: "_OverlayWriter | None", options: dict[str, Any]
) -> Iterator[CaptionedImage]:
    assert predictor.image_size is not None
    read: dict[int, Pixels | str] = {n: _read(each, predictor.image_size) for n, each in chunk.items()}
    whole: dict[int, Pixels] = {n: one for n, one in read.items() if not isinstance(one, str)}
    places, options = list(whole), {"attention": desk is not None, **options}
    found_at = predictor.iter_outputs(list(whole.values()), lines=places, **options) if whole else ()
    outputs = {places[i]: found for i, found in found_at}
    for n, picture in chunk.items():
        if isinstance(problem := read[n], str):
            yield CaptionedImage(picture, problem=problem)
            continue
        found = outputs[n]
        if desk is not None:
            desk.draw(picture, found[0])
        yield CaptionedImage(picture, found)


def _read(picture: Path | Member, size: int) -> Pixels | str:
    """Its pixels, or what is wrong with it."""
    try:
        return read_image(picture, size)
    except InvalidArgument as error:
        return str(error)


class _OverlayWriter:
    """A folder where drawings are made."""

    def __init__(self, predictor: Predictor, folder: Path) -> None:
        require_cross_attention("draw", predictor.model)
        self.predictor, self.folder, self.count = predictor, folder, 0
        self.grid: CaptionRegions = regions(predictor)
        self.stack = ExitStack()

    def __enter__(self) -> "_OverlayWriter":
        with self._writing():
            self.folder.mkdir(parents=True, exist_ok=True)
            self.page = self.stack.enter_context(atomic_file(self.folder / "index.html"))
            self.page.write(views.PAGE.encode())
        return self

    def __exit__(self, *failure: Any) -> None:
        with self._writing():
            if failure[0] is None:
                self.page.write(views.PAGE_END.encode())
            self.stack.__exit__(*failure)

    def draw(self, picture: Path | Member, output: Output) -> None:
        said = [] if output.attention is None else words(self.predictor, output, self.grid)
        weights = torch.zeros(len(said), self.grid.rows, self.grid.columns)
        for row, word in zip(weights, said, strict=True):
            row.copy_(word.weights)
        drawing = views.Drawing(str(picture), read_thumbnail(picture, SHOWN), [word.text for word in said], weights)
        self.count += 1
        with self._writing():
            for ending, content in ((".png", views.png(drawing)), (".svg", views.svg(drawing).encode())):
                with atomic_file(self.folder / (file_name(picture, self.count) + ending)) as file:
                    file.write(content)
            self.page.write(views.figure(drawing).encode())

    def _writing(self) -> AbstractContextManager[None]:
        return named_os_errors(self.folder, "a folder to draw into")


def file_name(picture: Path | Member, number: int) -> str:
    """A name of its own for what is made of the n-th picture, with nothing in it that a folder or a shell would obey.

    >>> file_name(Path("../a dog;.jpg"), 7)
    '0007-a-dog'
    """
    last = picture.name.replace("\\", "/").rpartition("/")[2].rpartition(".")[0]
    plain = re.sub(r"[^A-Za-z0-9_]+", "-", last)[:60].strip("-")
    return f"{number:04}-{plain}" if plain else f"{number:04}"


def _is_picture(name: str) -> bool:
    return name.lower().endswith(EXTENSIONS)
