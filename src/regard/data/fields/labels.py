"""The field `labels`: any number of the classes of the training data."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from regard.core.config import doc
from regard.core.errors import InvalidArgument, Problem
from regard.core.sanitize import one_line
from regard.core.shapes import Tensor
from regard.data.column_files import ColumnWriter, TextWriter, open_label_sets
from regard.data.columns import Column
from regard.data.fields.base import Field, check_list
from regard.data.vocabulary import Labels


@dataclass(frozen=True)
class LabelsField(Field):
    """Several labels, or none: what a multi-label classifier predicts."""

    kind: Literal["labels"] = doc("labels", "any number of labels for each example")
    separator: str = doc("|", "between the labels of a cell; a list in JSON needs none")

    noun = "several labels"
    vocabulary_class = Labels
    is_source = False
    has_lists = True

    def conflicts(self) -> Iterator[Problem]:
        if not self.separator:
            yield Problem("separator", "a text between labels", "''", "Write '|', for example.")

    def row_text(self, vocabulary: Labels, values: Tensor, row: int) -> str:
        given = values[row].nonzero().flatten().tolist()
        return self.spell([vocabulary.decode(number) for number in given])

    def reference(self, cell: str) -> str:
        return self.spell(self.parse(cell))

    def spell(self, names: Sequence[str]) -> str:
        """The text of these labels, which `parse` reads:
        JSON where a separator would be misread.
        """
        text = self.separator.join(names)
        is_plain = not text.startswith("[") and not any(self.separator in name for name in names)
        return text if is_plain else json.dumps(names, ensure_ascii=False)

    def parse(self, cell: Any) -> tuple[str, ...]:
        names: Any = cell
        if isinstance(cell, str):
            text = cell.strip()
            names = _json_list(text) if text.startswith("[") else text.split(self.separator)
        if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
            wanted = f"labels, as a list or with {self.separator!r} between them"
            got = one_line(repr(cell))[:60]
            raise InvalidArgument("labels", wanted=wanted, got=got, remedy="Give their names.")
        stripped = (name.strip() for name in names)
        return tuple(dict.fromkeys(name for name in stripped if name))

    def check(self, name: str, values: Iterable[Any]) -> list[Any]:
        return [self.parse(value) for value in check_list(name, values, texts_only=False)]

    def learn(self, values: Iterator[Any], *, is_target: bool) -> Labels:
        return Labels(name for names in values for name in names)

    def check_cell(self, vocabulary: Any, cell: str) -> None:
        self.encode(vocabulary, [self.parse(cell)])

    def encode(self, vocabulary: Labels, values: Sequence[Any]) -> list[Any]:
        return [sorted(vocabulary.encode(name) for name in names) for names in values]

    def writer(self, stem: Path, vocabulary: Labels, *, running: bool) -> ColumnWriter:
        return TextWriter(stem, vocabulary.size)

    def open(self, stem: Path, vocabulary: Any, context_length: int | None) -> Column:
        return open_label_sets(stem, vocabulary.size)


def _json_list(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
