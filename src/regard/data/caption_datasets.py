"""Lists of images and captions, in the formats of the published datasets.

- `.json` of Karpathy's splits: images with `filename`, `split` and `sentences`; one file for all
  splits.
- `.json` of COCO: `images` and `annotations`; one file per split.
- `.token` or `.token.txt`, as with Flickr8k: a line `name.jpg#0<TAB>caption` for each caption;
  beside it a file of the names that belong to the split.

White space in a caption becomes single spaces. The captions of an image are adjacent.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from types import UnionType
from typing import Any

from regard.core.errors import InvalidData
from regard.data import text
from regard.data.image_store import stem
from regard.data.text import Errors

CaptionRows = Iterator[tuple[str, str]]  # file name of an image, and a caption
# The splits by their names in Karpathy's files.
SHARES = {"train": ("train", "restval"), "valid": ("val",), "test": ("test",)}
USED = {"images", "filename", "filepath", "split", "sentences", "raw"}
USED |= {"id", "file_name", "annotations", "image_id", "caption"}


def rows(files: Sequence[str], split: str, errors: Errors) -> CaptionRows:
    """The captions of a split, each with the file name of its image."""
    _, read = FORMS[text.form(files[0])]
    return ((name, " ".join(caption.split())) for name, caption in read(files, split, errors))


def _json(files: Sequence[str], split: str, errors: Errors) -> CaptionRows:
    path = files[0]
    try:
        content = json.loads(text.whole(path, errors), object_hook=_used)
    except (ValueError, RecursionError) as error:
        if isinstance(error, InvalidData):
            raise
        raise InvalidData(
            path, wanted="JSON", got=str(error), remedy="Download the file again."
        ) from None
    document = _Entry(path, "the document", content, errors)
    if "annotations" in document.content:
        return _coco(document)
    return _karpathy(document, split)


def _used(entry: dict[str, Any]) -> dict[str, Any]:
    """Only the keys that are read: most of such a file are tokens and URLs."""
    return {key: value for key, value in entry.items() if key in USED}


class _Entry:
    """An object of a JSON file with typed access to its keys;
    errors name the object and the key.
    """

    def __init__(self, path: str, where: str, content: Any, errors: Errors) -> None:
        self.path = path
        self.where = where
        self.errors = errors
        if not isinstance(content, dict):
            raise self.refused("a table", content)
        self.content: dict[str, Any] = content

    def refused(self, wanted: str, got: Any) -> InvalidData:
        remedy = "Correct it, or leave it out."
        return InvalidData(
            f"{self.path}, {self.where}", wanted=wanted, got=repr(got)[:60], remedy=remedy
        )

    def value(self, key: str, types: type | UnionType, wanted: str) -> Any:
        value = self.content.get(key)
        if not isinstance(value, types):
            raise self.refused(f"{wanted} in {key!r}", value)
        return value

    def text(self, key: str) -> str:
        return text.well_formed_text(
            self.path, None, self.value(key, str, "a text"), key, self.errors
        )

    def number(self, key: str) -> int | str:
        number: int | str = self.value(key, int | str, "a number")
        return number

    def entries(self, key: str) -> Iterator["_Entry"]:
        before = "" if self.where == "the document" else f"{self.where}."
        for number, content in enumerate(self.value(key, list, "a list")):
            yield _Entry(self.path, f"{before}{key}[{number}]", content, self.errors)


def _karpathy(document: _Entry, split: str) -> CaptionRows:
    shares = SHARES[split]
    others = set()
    empty = True
    for image in document.entries("images"):
        share = image.text("split")
        if share not in shares:
            others.add(share)
            continue
        folder = ""
        if image.content.get("filepath") is not None:
            folder = f"{image.text('filepath')}/"
        name = folder + image.text("filename")
        captions = [sentence.text("raw") for sentence in image.entries("sentences")]
        if not captions:
            raise image.refused("a caption", captions)
        for caption in captions:
            yield name, caption
        empty = False
    if empty:
        got = f"those of {', '.join(sorted(others))}" if others else "none at all"
        remedy = f"Leave data.{split} out, or name another file."
        raise InvalidData(
            document.path, wanted=f"images of the split {shares[0]!r}", got=got, remedy=remedy
        )


def _coco(document: _Entry) -> CaptionRows:
    captions: dict[int | str, list[str]] = {}
    images = list(document.entries("images"))
    for image in images:
        number = image.number("id")
        if number in captions:
            raise image.refused("an id that no image before it has", number)
        captions[number] = []
    for annotation in document.entries("annotations"):
        number = annotation.number("image_id")
        if number not in captions:
            raise annotation.refused("the id of one of the images", number)
        captions[number].append(annotation.text("caption"))
    for image in images:
        if not captions[image.number("id")]:
            raise image.refused("a caption among the annotations", image.text("file_name"))
        for caption in captions[image.number("id")]:
            yield image.text("file_name"), caption


def _token(files: Sequence[str], split: str, errors: Errors) -> CaptionRows:
    path, *lists = files
    wanted = {
        stem(name.strip()) for file in lists for name in text.lines(file, errors) if name.strip()
    }
    captioned = set()
    for number, line in enumerate(text.lines(path, errors), start=1):
        label, tab, caption = line.partition("\t")
        name, _, count = label.rpartition("#")
        if not tab or not name or not count.isdecimal():
            remedy = "Correct the line; a file of other lines must not be named .token."
            raise InvalidData(
                path,
                number,
                wanted="name.jpg#0, a tab, a caption",
                got=repr(line)[:60],
                remedy=remedy,
            )
        if not lists or stem(name) in wanted:
            captioned.add(stem(name))
            yield name, caption
    missing = sorted(wanted - captioned)
    if missing:
        got = f"none of {len(missing):,}, {missing[0]!r} the first"
        raise InvalidData(
            lists[0], wanted=f"images with captions in {path}", got=got, remedy="Correct the list."
        )


# File name suffix -> largest number of files, and the reader.
FORMS: dict[str, tuple[int, Callable[[Sequence[str], str, Errors], CaptionRows]]] = {
    ".json": (1, _json),
    ".token": (2, _token),
}
