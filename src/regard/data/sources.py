"""Data sources: where the examples of a split come from.

Text lines, tables, files with a token a line, Hugging Face datasets, lists of captioned images, folders of classes and
synthetic tasks are chosen by the keys of [data]. A source of the user's own is registered under a name and chosen by
`[data] reader = "name"`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import chain
from pathlib import Path, PurePosixPath

from regard.core.errors import InvalidArgument, InvalidData
from regard.data import caption_datasets, conll, huggingface_datasets, text
from regard.data.config import DATA_SOURCES, DataConfig
from regard.data.example import Example, Split
from regard.data.huggingface_datasets import is_dataset
from regard.data.image_store import ImageStore, Member, find_images, open_image_store
from regard.data.synthetic.sampling import split_of
from regard.data.synthetic.tasks import TASKS


class DataSource(ABC):
    """Yields the examples of each split of a data configuration, always in the same order."""

    def __init__(self, config: DataConfig) -> None:
        self.config = config

    @abstractmethod
    def examples(self, split: Split) -> Iterator[Example]:
        """The examples of a split. Files that cannot be used raise InvalidData."""


class SyntheticSource(DataSource):
    """The examples of a synthetic task."""

    def examples(self, split: Split) -> Iterator[Example]:
        assert self.config.synthetic is not None
        return TASKS[self.config.synthetic].generate(split, self.config.seed)


class FileSource(DataSource):
    """What is read from files and Hugging Face datasets, chosen by the names of files."""

    def examples(self, split: Split) -> Iterator[Example]:
        config, file = self.config, self.config.files(split)[0]
        if config.is_class_folder(config.files(split)):
            yield from labeled_images(file)
            return
        store = None
        if config.reads_images:
            store = open_image_store(
                config.images or ("" if is_dataset(file) else Path(file).parent)
            )
        for *row, target in self._rows(split):
            sources = tuple(
                _find_image(file, store, value) if store is not None and field.is_file else value
                for field, value in zip(config.source_fields, row, strict=True)
            )
            if config.sources:
                yield Example(sources, target)
            else:
                yield Example(sources[0] if sources else None, target)

    def _rows(self, split: Split) -> Iterator[tuple[str, ...]]:
        """The sources (of an image, its name), where there are any, and the target."""
        config, files = self.config, self.config.files(split)
        if is_dataset(files[0]):
            return huggingface_datasets.rows(files[0], config.columns)
        if config.is_token_file(files[0]):
            columns = config.token_columns(files[0])
            return conll.cells(files[0], columns, config.encoding_errors)
        if config.columns:
            return text.rows(files[0], config.columns, config.encoding_errors)
        if config.is_caption_list(files):
            return caption_datasets.rows(files, split, config.encoding_errors)
        return text.parallel(files, config.encoding_errors)


def examples(config: DataConfig, split: Split) -> Iterator[Example]:
    """The examples of a split, in the order of its files; at least one."""
    if split not in config.splits:
        raise InvalidArgument(
            "split",
            wanted=f"one of {', '.join(config.splits)}",
            got=repr(split),
            remedy=f"Or set data.{split}.",
        )
    source: type[DataSource] = FileSource
    if config.synthetic:
        source = SyntheticSource
    elif config.reader:
        source = DATA_SOURCES[config.reader]
    shares = config.shares
    remaining = source(config).examples("train" if split in shares else split)
    if shares and split in ("train", *shares):
        every: dict[Split, float] = {"valid": 0.0, "test": 0.0, **shares}
        remaining = (each for each in remaining if split_of(_split_key(each), every) == split)
    first = next(remaining, None)
    if first is None:
        file = config.files(split)[0]
        raise InvalidData(
            file,
            wanted="at least one example",
            got="no share of it" if split in shares else "an empty file",
            remedy=f"Look at data.{split}.",
        )
    return chain([first], remaining)


def at_example(
    config: DataConfig, split: Split, number: int, error: InvalidArgument
) -> InvalidData:
    """The error of an example with its file and line; without a line where its number (from 1) does not give one."""
    file, line = config.files(split)[-1], None
    numbered = config.reader is None and not config.shares and not is_dataset(file)
    files = config.files(split)
    if numbered and not config.is_caption_list(files) and not config.is_class_folder(files):
        if config.is_token_file(file):
            columns = config.token_columns(file)
            line = conll.line_of(file, number, columns, config.encoding_errors)
        else:
            line = text.line_of(file, number, config.encoding_errors)
    where = file if line is not None else f"{file}, example {number}"
    return InvalidData(where, line, wanted=error.wanted, got=error.got, remedy=error.remedy)


def labeled_images(path: str) -> Iterator[Example]:
    """The images of a folder or .zip file, each with the name of the folder that it is in."""
    open_image_store(path)  # refuses what is neither
    for image in find_images([path]):
        inner = image.name if isinstance(image, Member) else str(image.relative_to(path))
        label = PurePosixPath(inner).parent.name
        if not label:
            wanted = "images in a folder of their class, as in cats/1.jpg"
            raise InvalidData(
                path,
                wanted=wanted,
                got=inner,
                remedy="Move it, or list images and labels in a table.",
            )
        yield Example(image, label)


def _split_key(example: Example) -> str:
    """What the split of an example depends on: its sources; of a language model, the text."""
    sources = (
        source.name if isinstance(source, Path) else source
        for source in example.sources or (example.target,)
    )
    return "\t".join(map(str, sources))


def _find_image(file: str, store: ImageStore, name: str) -> Path | Member:
    if not name or "\0" in name:
        raise InvalidData(
            file, wanted="the path of an image", got=repr(name), remedy="Give every row one."
        )
    if "\t" in name:
        remedy = "Name a file of Flickr's form .token.txt."
        raise InvalidData(file, wanted="the path of an image", got=repr(name)[:60], remedy=remedy)
    return store.find(name)
