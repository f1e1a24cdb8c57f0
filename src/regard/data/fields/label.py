"""The field `label`: one of the classes of the training data."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from regard.core.config import doc
from regard.core.shapes import Tensor
from regard.data.column_files import ColumnWriter, LabelWriter, open_labels
from regard.data.columns import Column
from regard.data.fields.base import Field, check_list
from regard.data.label_check import target_labels
from regard.data.vocabulary import Labels


@dataclass(frozen=True)
class LabelField(Field):
    """A label, which is one of several classes."""

    kind: Literal["label"] = doc("label", "a label is one of the classes of the training data")

    noun = "a label"
    vocabulary_class = Labels
    input_kind = "label"
    names_folders = True

    def row_text(self, vocabulary: Labels, values: Tensor, row: int) -> str:
        return vocabulary.decode(int(values[row]))

    def example(self, vocabulary: Labels) -> str:
        return vocabulary.names[0]

    def check(self, name: str, values: Iterable[Any]) -> list[Any]:
        return check_list(name, values)

    def learn(self, values: Iterator[Any], *, is_target: bool) -> Labels:
        return target_labels(values) if is_target else Labels(values)

    def check_cell(self, vocabulary: Any, cell: str) -> None:
        self.encode(vocabulary, [self.parse(cell)])

    def encode(self, vocabulary: Labels, values: Sequence[Any]) -> list[Any]:
        return [vocabulary.encode(name) for name in values]

    def collate(self, vocabulary: Labels, encoded: Sequence[Any]) -> Tensor:
        return torch.tensor(encoded)

    def writer(self, stem: Path, vocabulary: Labels, *, running: bool) -> ColumnWriter:
        return LabelWriter(stem)

    def open(self, stem: Path, vocabulary: Any, context_length: int | None) -> Column:
        return open_labels(stem)


def labels_of(vocabulary: object) -> Labels | None:
    """The names of labels; None for what the other kinds of fields learn."""
    return vocabulary if isinstance(vocabulary, Labels) else None
