"""The field `number`: one number, or several of each example."""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from regard.core.config import doc
from regard.core.errors import InvalidArgument
from regard.core.sanitize import one_line
from regard.core.shapes import Tensor
from regard.data.column_files import ColumnWriter, NumberWriter, open_numbers
from regard.data.columns import Column
from regard.data.fields.base import Field, check_list
from regard.data.statistics import CHUNK, Statistics

DIGITS = 7  # of float32
MOST_DECIMALS = 300


@dataclass(frozen=True)
class NumberField(Field):
    """A number, or several: what a regression predicts."""

    kind: Literal["number"] = doc("number", "a number, or a list of as many for each example")
    normalize: bool = doc(
        True, "predict numbers of mean 0 and scale 1 in training; outputs are in the original units"
    )

    noun = "a number"
    vocabulary_class = Statistics
    is_source = False
    has_lists = True

    def row_text(self, vocabulary: Statistics, values: Tensor, row: int) -> str:
        numbers = vocabulary.restore(values[row].numpy())
        return numbers_text(numbers.tolist(), vocabulary)

    def parse(self, cell: Any) -> NDArray[np.float64]:
        return parse_numbers(cell, "a number, or a list of numbers")

    def check(self, name: str, values: Iterable[Any]) -> list[Any]:
        return [self.parse(value) for value in check_list(name, values, texts_only=False)]

    def check_together(self, first: Any, value: Any) -> None:
        if len(value) != len(first):
            raise InvalidArgument(
                "number",
                wanted=f"{len(first)} for each example, as in the first",
                got=str(len(value)),
                remedy="Give as many for each.",
            )

    def learn(self, values: Iterator[Any], *, is_target: bool) -> Statistics:
        return Statistics.of(_chunks(values), normalize=self.normalize)

    def reference(self, cell: str) -> str:
        return " ".join(repr(number).removesuffix(".0") for number in self.parse(cell).tolist())

    def check_cell(self, vocabulary: Any, cell: str) -> None:
        self.encode(vocabulary, [self.parse(cell)])

    def encode(self, vocabulary: Statistics, values: Sequence[Any]) -> list[Any]:
        for value in values:
            if len(value) != vocabulary.size:
                raise InvalidArgument(
                    "number",
                    wanted=f"{vocabulary.size} for each example, as in the training data",
                    got=str(len(value)),
                    remedy="Give as many.",
                )
        return list(vocabulary.normalize(np.stack(values))) if len(values) else []

    def writer(self, stem: Path, vocabulary: Statistics, *, running: bool) -> ColumnWriter:
        return NumberWriter(stem, vocabulary.size)

    def open(self, stem: Path, vocabulary: Any, context_length: int | None) -> Column:
        return open_numbers(stem)


def parse_numbers(cell: Any, wanted: str) -> NDArray[np.float64]:
    """The numbers of a cell: one number, a list, or a text of numbers as JSON or between spaces."""
    value = cell
    if isinstance(cell, str):
        value = _spelled(cell)
    try:
        numbers = np.atleast_1d(np.asarray(value, dtype=np.float64))
    except (TypeError, ValueError):
        numbers = np.zeros(0)
    is_usable = numbers.ndim == 1 and len(numbers) > 0 and bool(np.isfinite(numbers).all())
    if not is_usable or value is None or isinstance(value, bool):
        got = one_line(repr(cell))[:60]
        raise InvalidArgument("value", wanted=wanted, got=got, remedy="Give finite numbers.")
    return numbers


def _spelled(text: str) -> Any:
    """The number or the list of numbers that a text spells; None if it spells none."""
    stripped = text.strip()
    try:
        if stripped.startswith("["):
            return json.loads(stripped)
        # `float` also reads the literals of Python, such as 1_000.
        if "_" in stripped:
            return None
        numbers = [float(part) for part in stripped.split()]
    except (ValueError, RecursionError):
        return None
    return numbers or None


def _chunks(values: Iterator[Any]) -> Iterator[NDArray[np.float64]]:
    while chunk := list(islice(values, CHUNK)):
        yield np.stack(chunk)


def numbers_text(numbers: Sequence[float], statistics: Statistics) -> str:
    """The text of an example's numbers, as a cell of a table spells them."""
    pairs = zip(numbers, statistics.scale, strict=True)
    return " ".join(number_text(number, scale) for number, scale in pairs)


def number_text(number: float, scale: float) -> str:
    """A number with as many decimals as one of this scale has in float32, or more; -0.0 is 0.

    >>> number_text(3.14159265, 1.0), number_text(1999.0001, 10.0), number_text(1234567890.4, 1e7)
    ('3.141593', '1999.0001', '1234567890')
    """
    if not math.isfinite(number):
        return str(number)
    if number:
        scale = min(scale, abs(number))
    decimals = DIGITS - 1 - math.floor(math.log10(scale))
    rounded = round(number, min(decimals, MOST_DECIMALS))
    text = f"{rounded + 0.0!r}"
    return text.removesuffix(".0")
