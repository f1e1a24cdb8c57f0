"""Data sources: where the examples of a split come from.

Text lines, tables, files with a token a line, Hugging Face datasets, lists of captioned images,
folders of classes and synthetic tasks are chosen by the keys of [data]. A source of the user's own
is registered under a name and chosen by `[data] reader = "name"`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any

from regard.core.errors import InvalidArgument, InvalidData
from regard.data import caption_datasets, conll, huggingface_datasets, series, text
from regard.data.config import DATA_SOURCES, DataConfig
from regard.data.example import Example, Split
from regard.data.fields.base import Field
from regard.data.huggingface_datasets import is_dataset
from regard.data.image_store import FileKind, FileStore, Member, find_files, open_store
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
        config = self.config
        assert config.synthetic is not None
        task = TASKS[config.synthetic]
        if task.series is None or config.series is None:
            return task.generate(split, config.seed)
        name = config.synthetic
        loaded = [series.of_array(name, task.series(config.seed))]
        return series.windows(config.series, loaded, name, split)


class FileSource(DataSource):
    """What is read from files and Hugging Face datasets, chosen by the names of files."""

    def examples(self, split: Split) -> Iterator[Example]:
        config = self.config
        file = self.config.files(split)[0]
        if config.series is not None:
            loaded = series.load(
                file, config.series, config.encoding_errors, refuse_missing=refuses_missing(config)
            )
            yield from series.windows(config.series, loaded, file, split)
            return
        if config.is_class_folder(config.files(split)):
            yield from labeled_files(config, file)
            return
        stores = FileStores(config, file)
        fields = list(config.fields.values())
        for row in self._rows(split):
            pairs = zip(fields, row, strict=True)
            *found, target = (stores.find(field, value) for field, value in pairs)
            sources = tuple(found)
            if config.sources:
                yield Example(sources, target)
            else:
                source = sources[0] if sources else None
                yield Example(source, target)

    def _rows(self, split: Split) -> Iterator[tuple[str, ...]]:
        """The sources (of an image, its name), where there are any, and the target."""
        config = self.config
        files = self.config.files(split)
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


def refuses_missing(config: DataConfig) -> bool:
    """Whether a field of the data refuses values that are missing."""
    return any(field.refuses_missing for field in config.fields.values())


class FileStores:
    """The files that cells of a table name: a store for each kind of them,
    opened when one is named.

    table   the file that lists them, in whose folder they are unless the recipe says otherwise
    """

    def __init__(self, config: DataConfig, table: str) -> None:
        self.config = config
        self.table = table
        self.opened: dict[str, FileStore] = {}

    def find(self, field: Field, cell: Any) -> Any:
        """The file that a cell names, where it names one; otherwise the cell."""
        kind = field.stored
        if kind is None or not field.names_file(cell):
            return cell
        if kind.plural not in self.opened:
            given = getattr(self.config, field.folder_key)
            beside = "" if is_dataset(self.table) else Path(self.table).parent
            self.opened[kind.plural] = open_store(given or beside, kind)
        return _find_file(self.table, self.opened[kind.plural], kind, cell)


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
    stored = "train" if split in shares else split
    remaining = source(config).examples(stored)
    if shares and split in ("train", *shares):
        every: dict[Split, float] = {"valid": 0.0, "test": 0.0, **shares}
        remaining = (each for each in remaining if split_of(_split_key(each), every) == split)
    first = next(remaining, None)
    if first is None:
        file = next(iter(config.files(split)), str(config.synthetic))
        got = "no share of it" if split in shares else "an empty file"
        remedy = f"Look at data.{split}."
        raise InvalidData(file, wanted="at least one example", got=got, remedy=remedy)
    return chain([first], remaining)


def at_example(
    config: DataConfig, split: Split, number: int, error: InvalidArgument
) -> InvalidData:
    """The error of an example with its file and line;
    without a line where its number (from 1) does not give one.
    """
    file = config.files(split)[-1]
    line = None
    numbered = config.reader is None and not config.shares and not is_dataset(file)
    numbered = numbered and config.series is None
    files = config.files(split)
    if numbered and not config.is_caption_list(files) and not config.is_class_folder(files):
        if config.is_token_file(file):
            columns = config.token_columns(file)
            line = conll.line_of(file, number, columns, config.encoding_errors)
        else:
            line = text.line_of(file, number, config.encoding_errors)
    where = file
    if line is None:
        where = f"{file}, example {number}"
    got = error.got
    if isinstance(error, InvalidData):
        # The file that the example names.
        got = f"{got} ({error.path})"
    return InvalidData(where, line, wanted=error.wanted, got=got, remedy=error.remedy)


def labeled_files(config: DataConfig, path: str) -> Iterator[Example]:
    """The files of a folder or .zip file, each with the name of the folder that it is in."""
    (field,) = config.source_fields
    kind = field.stored
    assert kind is not None
    open_store(path, kind)  # refuses what is neither
    for file in find_files([path], kind):
        inner = file.name if isinstance(file, Member) else str(file.relative_to(path))
        label = PurePosixPath(inner).parent.name
        if not label:
            wanted = f"{kind.plural} in a folder of their class, as in cats/1{kind.extensions[0]}"
            raise InvalidData(
                path,
                wanted=wanted,
                got=inner,
                remedy=f"Move it, or list {kind.plural} and labels in a table.",
            )
        yield Example(file, label)


def _split_key(example: Example) -> str:
    """What the split of an example depends on: its sources; of a language model, the text."""
    sources = (
        source.name if isinstance(source, Path) else source
        for source in example.sources or (example.target,)
    )
    return "\t".join(map(str, sources))


def _find_file(file: str, store: FileStore, kind: FileKind, name: str) -> Path | Member:
    wanted = f"the path of {kind.noun}"
    if not name or "\0" in name:
        raise InvalidData(file, wanted=wanted, got=repr(name), remedy="Give every row one.")
    if "\t" in name:
        remedy = "Name a file of Flickr's form .token.txt."
        raise InvalidData(file, wanted=wanted, got=repr(name)[:60], remedy=remedy)
    return store.find(name)
