"""Data sources: where the examples of a split come from.

Text lines, tables, Hugging Face datasets, lists of captioned images and synthetic tasks are chosen by the keys of
[data]. A source of the user's own is registered under a name and chosen by `[data] reader = "name"`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from regard.core.errors import InvalidArgument, InvalidData
from regard.data import caption_datasets, huggingface_datasets, text
from regard.data.config import DATA_SOURCES, DataConfig
from regard.data.example import Example, Split
from regard.data.image_store import ImageStore, Member, open_image_store
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


class RowSource(DataSource):
    """Rows of texts: the sources (of an image, its name), where there are any, and the target."""

    @abstractmethod
    def rows(self, split: Split) -> Iterable[tuple[str, ...]]:
        """The rows of a split."""

    def examples(self, split: Split) -> Iterator[Example]:
        config, file = self.config, self.config.files(split)[0]
        store = open_image_store(config.images or self.folder(file)) if config.reads_images else None
        kinds = [field.kind for field in config.source_fields]
        for *row, target in self.rows(split):
            sources = tuple(
                _find_image(file, store, value) if store is not None and kind == "image" else value
                for kind, value in zip(kinds, row, strict=True)
            )
            yield Example(sources if config.sources else sources[0] if sources else None, target)

    def folder(self, file: str) -> Path:
        """The folder of images where [data] names none."""
        return Path(file).parent


class TextLines(RowSource):
    """Parallel files with an example per line."""

    def rows(self, split: Split) -> Iterable[tuple[str, ...]]:
        return text.parallel(self.config.files(split), self.config.encoding_errors)


class Table(RowSource):
    """Columns of a .tsv, .csv or .jsonl file."""

    def rows(self, split: Split) -> Iterable[tuple[str, ...]]:
        return text.rows(self.config.files(split)[0], self.config.columns, self.config.encoding_errors)


class HuggingFaceDataset(RowSource):
    """Columns of a Hugging Face dataset."""

    def rows(self, split: Split) -> Iterable[tuple[str, ...]]:
        return huggingface_datasets.rows(self.config.files(split)[0], self.config.columns)

    def folder(self, file: str) -> Path:
        return Path()


class CaptionedImages(RowSource):
    """Images and captions in one of the formats of `caption_datasets`."""

    def rows(self, split: Split) -> Iterable[tuple[str, ...]]:
        return caption_datasets.rows(self.config.files(split), split, self.config.encoding_errors)


def open_source(config: DataConfig, split: Split) -> DataSource:
    """The data source of a split."""
    if config.synthetic:
        return SyntheticSource(config)
    if config.reader is not None:
        return DATA_SOURCES[config.reader](config)
    files = config.files(split)
    if huggingface_datasets.is_dataset(files[0]):
        return HuggingFaceDataset(config)
    if config.columns:
        return Table(config)
    return CaptionedImages(config) if config.is_caption_list(files) else TextLines(config)


def examples(config: DataConfig, split: Split) -> Iterator[Example]:
    """The examples of a split, in the order of its files; at least one."""
    if split not in config.splits:
        raise InvalidArgument(
            "split", wanted=f"one of {', '.join(config.splits)}", got=repr(split), remedy=f"Or set data.{split}."
        )
    remaining = open_source(config, split).examples(split)
    first = next(remaining, None)
    if first is None:
        file = config.files(split)[0]
        raise InvalidData(file, wanted="at least one example", got="an empty file", remedy=f"Look at data.{split}.")
    return chain([first], remaining)


def _find_image(file: str, store: ImageStore, name: str) -> Path | Member:
    if not name or "\0" in name:
        raise InvalidData(file, wanted="the path of an image", got=repr(name), remedy="Give every row one.")
    if "\t" in name:
        remedy = "Name a file of Flickr's form .token.txt."
        raise InvalidData(file, wanted="the path of an image", got=repr(name)[:60], remedy=remedy)
    return store.find(name)
