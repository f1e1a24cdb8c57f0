"""The field `tags`: one label for each word of the source."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from regard.core.config import doc
from regard.core.errors import InvalidArgument
from regard.data.column_files import ColumnWriter, TextWriter
from regard.data.columns import Column
from regard.data.fields.base import Field, check_list
from regard.data.token_lists import tokens_of
from regard.data.vocabulary import Labels
from regard.data.word_arrays import open_tags


@dataclass(frozen=True)
class TagsField(Field):
    """The tags of a sentence: what a sequence labelling model predicts."""

    kind: Literal["tags"] = doc(
        "tags", "a tag for each word of the source: a list, or a text split at white space"
    )

    noun = "tags"
    vocabulary_class = Labels
    is_source = False
    is_sequence = True
    has_lists = True
    is_token_list = True

    def size_of(self, value: Any) -> int:
        return len(self.parse(value))

    def row_text(self, vocabulary: Labels, values: Any, row: int) -> str:
        return " ".join(map(vocabulary.decode, values.row(row)))

    def parse(self, cell: Any) -> tuple[str, ...]:
        return tokens_of(cell, "tags", numbers=True)

    def check(self, name: str, values: Iterable[Any]) -> list[Any]:
        listed = check_list(name, values, texts_only=False)
        return [tokens_of(value, name, numbers=True) for value in listed]

    def learn(self, values: Iterator[Any], *, is_target: bool) -> Labels:
        return Labels(tag for tags in values for tag in tags)

    def check_cell(self, vocabulary: Any, cell: str) -> None:
        self.encode(vocabulary, [self.parse(cell)])

    def encode(self, vocabulary: Labels, values: Sequence[Any]) -> list[Any]:
        return [[vocabulary.encode(tag) for tag in tags] for tags in values]

    def length(self, encoded: Any) -> int:
        return len(encoded)

    def check_beside(self, encoded: Sequence[int], positions: Sequence[int | None]) -> None:
        """As many tags as the source has words."""
        words = positions[0]
        if words is not None and len(encoded) != words:
            raise InvalidArgument(
                "tags",
                wanted=f"{words} tags, one for each word of the source",
                got=str(len(encoded)),
                remedy="Give each word one tag.",
            )

    def writer(self, stem: Path, vocabulary: Labels, *, running: bool) -> ColumnWriter:
        return TextWriter(stem, vocabulary.size)

    def open(self, stem: Path, vocabulary: Any, context_length: int | None) -> Column:
        return open_tags(stem)
