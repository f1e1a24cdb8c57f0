"""The interface of fields: what one part of an example is, from the file to the batch.

A field is configured by a table of the recipe ([data.source], [data.target]) whose key `kind`
chooses its class. The class has the keys of its kind and everything that depends on it: how a value
is read from a cell of a table, what is learned from the training data (a vocabulary, statistics),
the arrays on disk, and batches. A kind of the user's own is registered with
`regard.register.field`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np

from regard.core.config import Config, doc, nearest, read
from regard.core.errors import InvalidArgument, InvalidRecipe, Problem
from regard.core.registry import Registry
from regard.core.sanitize import one_line
from regard.core.sequence import FieldBatch
from regard.data.column_files import ColumnWriter
from regard.data.columns import Column
from regard.data.image_store import FileKind
from regard.data.images import ResizeFilter
from regard.data.time_axis import TimeAxis
from regard.data.token_lists import ListCell
from regard.data.train_tokenizer import TokenizerKind
from regard.data.vocabulary import Vocabulary

FieldType = TypeVar("FieldType", bound="Field")
Ranges = tuple[tuple[float, float], ...]
FIELDS: "Registry[type[Field]]" = Registry("kind of field")

# Regard wrote these keys into the recipe of every checkpoint, whatever the kind of the field,
# until each kind had a class with its own keys. With these values they say nothing.
FORMER_DEFAULTS: dict[str, Any] = {
    "tokenizer": "bpe",
    "vocab_size": 8000,
    "lowercase": False,
    "max_tokens": None,
    "image_size": 64,
    "image_resize": "bicubic",
    "image_crop_from": None,
    "image_mean": (0.5, 0.5, 0.5),
    "image_std": (0.5, 0.5, 0.5),
}
SAYS_NOTHING = FORMER_DEFAULTS | {"augment": None}


@dataclass(frozen=True)
class Field(Config, ABC):
    """One part of every example: [data.source], one of [[data.sources]], or [data.target]."""

    kind: str = doc("", "what it is")
    column: str | None = doc(None, 'column of a table: its name, or its number from "1"')

    noun: ClassVar[str]  # "a text", for messages
    vocabulary_class: ClassVar[type[Vocabulary] | None] = None  # None: nothing is learned
    is_sequence: ClassVar[bool] = False  # whether its length varies, and may be limited
    has_lists: ClassVar[bool] = False  # whether a cell may be a list
    is_file: ClassVar[bool] = False  # whether every value is the name of a file, such as an image
    # The kind of files that cells of a table may name, and the key of [data] with their folder.
    stored: ClassVar[FileKind | None] = None
    folder_key: ClassVar[str] = "files_from"
    # The package's kind in whose place a kind of the user's own can be predicted, or None.
    like: ClassVar[str | None] = None
    is_source: ClassVar[bool] = True  # whether an encoder can read it
    reads_windows: ClassVar[bool] = False  # whether windows of series are values of it
    needs_source: ClassVar[bool] = True  # as a target: a text alone makes a language model
    names_folders: ClassVar[bool] = False  # whether files in a folder of its name are its examples
    input_kind: ClassVar[str] = ""  # of the encoder's input module: a name of `INPUTS`
    also_read_by: ClassVar[tuple[str, ...]] = ()  # other input modules that can read it
    # Whether encoders need another module than a token embedding.
    needs_input_module: ClassVar[bool] = False
    # Whether a value is a list of tokens, as a file with a token a line has them.
    is_token_list: ClassVar[bool] = False
    # Whether parts of a value, such as words, can have an output each (`positions`).
    has_positions: ClassVar[bool] = False
    # Whether a task reads a value in several windows where a model has fewer positions.
    is_windowed: ClassVar[bool] = False
    # Whether graphs of operators, as ONNX has them, can read it.
    in_graphs: ClassVar[bool] = True
    # The key under which a request gives the content of a file: "image". None:
    # its values are texts in a request.
    content_key: ClassVar[str | None] = None

    def not_packable(self) -> str | None:
        """The setting, as "missing = 'mask'",
        with which its sequences cannot be packed without padding.
        """
        return None

    @classmethod
    def resolve(
        cls, table: Mapping[str, Any]
    ) -> tuple[type[Config], Mapping[str, Any], list[Problem]]:
        if cls is not Field:
            return cls, table, []
        kind = table.get("kind", "text")
        if kind not in FIELDS:
            remedy = nearest(str(kind), FIELDS, listed=True)
            return cls, table, [Problem("kind", str(FIELDS), repr(kind)[:80], remedy)]
        chosen = FIELDS[kind]
        own = {key.name for key in fields(chosen)}
        foreign = {key.name for other in FIELDS for key in fields(FIELDS[other])} - own
        kept: dict[str, Any] = {}
        problems = []
        for key, value in table.items():
            if key not in foreign:
                kept[key] = value
            elif not _says_nothing(key, value):
                wanted = f"nothing here: it means nothing to {chosen.noun}"
                problems.append(Problem(key, wanted, repr(value), "Leave it out."))
        return chosen, kept, problems

    @classmethod
    def input_kinds(cls) -> tuple[str, ...]:
        """The input modules that can read it."""
        return (cls.input_kind, *cls.also_read_by)

    @classmethod
    def variants(cls) -> Mapping[str, type[Config]]:
        return {kind: FIELDS[kind] for kind in FIELDS} if cls is Field else {}

    def registered(self) -> Iterator[tuple[Registry[Any], str]]:
        yield FIELDS, self.kind
        yield from super().registered()

    # What belongs together among the fields of an example.

    @property
    def tokenization(self) -> tuple[object, ...] | None:
        """The settings that two fields with one vocabulary have in common; None: it shares none."""
        return None

    @property
    def unit(self) -> TokenizerKind | None:
        """The kind of tokens it is split into; None for what is not text."""
        return None

    @property
    def asked_size(self) -> int | None:
        """The size of the vocabulary that it asks for; None: it follows from the data."""
        return None

    def color_problems(self, *, normalized_by_encoder: bool) -> Iterator[Problem]:
        """How an encoder that normalizes colors itself, or does not, conflicts with the keys."""
        return iter(())

    @property
    def resizing(self) -> tuple[int, ResizeFilter, int | None] | None:
        """How images are resized, as arguments of `images.load_image`;
        None for what is no image.
        """
        return None

    @property
    def bounds_outputs(self) -> bool:
        """Whether the length of such a source, or output, bounds that of its output."""
        return False

    @property
    def random_changes(self) -> tuple[Any, ...] | None:
        """Random changes of each training example; None where it has no such key."""
        return None

    @property
    def arrays_settings(self) -> dict[str, Any]:
        """The settings on which the arrays on disk depend."""
        own = {key.name: getattr(self, key.name) for key in fields(self)}
        return FORMER_DEFAULTS | own

    def for_new_files(self: FieldType, column: str | None) -> FieldType:
        """The same field of other files, of which no example is left out."""
        return replace(self, column=column)

    @property
    def gives_characters(self) -> bool:
        """Whether its batches hold the characters of words, for an input module that reads them."""
        return False

    @property
    def refuses_missing(self) -> bool:
        """Whether numbers that are missing are refused."""
        return False

    # What is shown and reported of a value.

    def size_of(self, value: Any) -> int:
        """The length of a value by which reports group examples: in words, or in characters."""
        return 1

    def reference(self, cell: str) -> str:
        """A cell as a reference for outputs: in lower case where outputs are."""
        return cell

    def example(self, vocabulary: Any) -> Any:
        """Some value, for the first request of a server."""
        raise NotImplementedError(f"{type(self).__name__} is no source")

    def row_text(self, vocabulary: Any, values: Any, row: int) -> str:
        """One example of a batch of the field, as `regard train --dry-run` shows it."""
        return self.noun

    # From a cell of a table, or a request, to what a batch is made of.

    def names_file(self, cell: Any) -> bool:
        """Whether a cell of a table names a file of the kind `stored`."""
        return self.is_file

    def parse(self, cell: Any) -> Any:
        """The value that a cell of a table spells; InvalidArgument if it spells none."""
        if isinstance(cell, ListCell):
            having = [repr(kind) for kind in FIELDS if FIELDS[kind].has_lists]
            raise InvalidArgument(
                self.kind,
                wanted=self.noun,
                got=f"the list {one_line(cell)[:60]}",
                remedy=f"Name another column. Fields of the kinds {', '.join(having)} have lists.",
            )
        return cell

    def check(self, name: str, values: Iterable[Any]) -> list[Any]:
        """The values of a request, as `parse` returns them; `name` is that of the argument."""
        return check_list(name, values, texts_only=False)

    @classmethod
    def is_listed(cls, given: Sequence[Any]) -> bool:
        """Whether a list in the JSON of a request is one value, and not several."""
        return False

    def from_request(self, name: str, given: Any, size: int | None) -> Any:
        """The value of a request, for a field that has a `content_key`: an array,
        and never the name of a file.

        name    of the input, for messages
        given   the content of a file as bytes, or a list of JSON
        size    of what was learned of the field; None where nothing was
        """
        raise NotImplementedError(f"{type(self).__name__} is read from texts")

    def request_text(self, value: Any) -> str:
        """A value of a table as a page sends it: as a text."""
        return str(value)

    def first_input(self, vocabulary: Any) -> str | None:
        """An input that a page begins with, where any other form of it may be refused; None:
        the page has its own.
        """
        return None

    def usual_ranges(self, vocabulary: Any) -> Ranges | None:
        """The usual least and largest value of each number of a vector;
        None for what has no numbers.
        """
        return None

    def time_axis(self, cell: Any) -> TimeAxis:
        """The times of the vectors of a value."""
        return TimeAxis()

    def title(self, cell: Any) -> str:
        """What a drawing of an input is called."""
        return str(cell)

    @abstractmethod
    def learn(self, values: Iterator[Any], *, is_target: bool) -> Vocabulary | None:
        """The vocabulary or the statistics of the values of the training examples."""

    def check_cell(self, vocabulary: Any, cell: Any) -> None:
        """Refuse a cell that the trained model does not know."""

    @abstractmethod
    def encode(self, vocabulary: Any, values: Sequence[Any]) -> list[Any]:
        """The values as ids or arrays;
        InvalidArgument for one that the vocabulary does not have.
        """

    def length(self, encoded: Any) -> int:
        """The number of tokens that an encoded value counts for in a batch."""
        return 1

    def shorten(self, encoded: Any, limit: int) -> Any:
        """The beginning of an encoded sequence."""
        return encoded

    def latest(self, encoded: Any, count: int) -> Any:
        """The end of an encoded sequence that has more than `count` parts."""
        return encoded

    def positions(self, encoded: Any) -> int | None:
        """How many parts of an encoded value can have an output each, such as words; None:
        it is no sequence.
        """
        return None

    def check_together(self, first: Any, value: Any) -> None:
        """Refuse a value that does not go with the first of the training data,
        both as `parse` returns them.
        """

    def check_beside(self, encoded: Any, positions: Sequence[int | None]) -> None:
        """Refuse an encoded target that does not fit its sources,
        of which the positions are given.
        """

    def around(self, vocabulary: Any) -> int:
        """How many positions are added to a source before an encoder reads it."""
        return 0

    def collate(self, vocabulary: Any, encoded: Sequence[Any]) -> FieldBatch:
        """A batch of encoded values in host memory, as an input module reads it."""
        raise InvalidArgument(
            "source", wanted="a field that is read", got=self.noun, remedy="Make it the target."
        )

    # The arrays of a prepared corpus.

    def complete(self, vocabulary: Any, encoded: Any, *, is_target: bool, running: bool) -> Any:
        """An encoded value as it is stored: a text with its special tokens."""
        return encoded

    def exceeds_limit(self, encoded: Any) -> bool:
        """Whether a training example with this value is left out and counted."""
        return False

    @property
    def limit_key(self) -> str | None:
        """The key whose limit leaves examples out; None: there is none."""
        return None

    @abstractmethod
    def writer(self, stem: Path, vocabulary: Any, *, running: bool) -> ColumnWriter:
        """What writes the values of a split to disk."""

    @abstractmethod
    def open(self, stem: Path, vocabulary: Any, context_length: int | None) -> Column:
        """The column that `writer` wrote."""


def _says_nothing(key: str, value: Any) -> bool:
    if value is None:
        return True
    given = tuple(value) if isinstance(value, list) else value
    return key in SAYS_NOTHING and SAYS_NOTHING[key] == given


def make_field(kind: str = "text", **keys: Any) -> Field:
    """A field of this kind: `make_field("label", column="class")`.

    InvalidRecipe names all wrong keys.
    """
    config = read(Field, {"kind": kind, **keys}, "field")  # type: ignore[type-abstract]
    if isinstance(config, list):
        raise InvalidRecipe(config)
    return config


def check_list(
    name: str, texts: Iterable[Any], count: int | None = None, *, texts_only: bool = True
) -> list[Any]:
    """The texts as a list, `count` of them where that is given; a single text is refused."""
    if isinstance(texts, str | np.ndarray):
        raise InvalidArgument(
            name, wanted="a list", got=f"one {type(texts).__name__}", remedy="Give [it]."
        )
    texts = list(texts)
    for text in texts:
        if texts_only and not isinstance(text, str):
            raise InvalidArgument(
                name,
                wanted="texts",
                got=one_line(repr(text))[:60],
                remedy="Give a list of strings: this model reads no vectors or numbers.",
            )
    if count is not None and len(texts) != count:
        lists = "" if texts_only else " lists"
        raise InvalidArgument(
            name,
            wanted=f"{count}{lists}, one for each text",
            got=str(len(texts)),
            remedy="Empty ones are fine.",
        )
    return texts
