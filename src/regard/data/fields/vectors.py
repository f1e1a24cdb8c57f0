"""The field `vectors`: a sequence of vectors of one dimension."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from regard.core.config import Count, doc
from regard.core.errors import InvalidArgument
from regard.core.sanitize import one_line
from regard.core.sequence import Vectors
from regard.data.arrays import Column, ColumnWriter, VectorWriter, open_vectors
from regard.data.fields.base import Field, Ranges, check_list
from regard.data.npy import array_of_npy
from regard.data.statistics import Statistics

DEVIATIONS = 3  # from the mean, within which most numbers are


@dataclass(frozen=True)
class VectorsField(Field):
    """A sequence of vectors, which may differ in length from example to example."""

    kind: Literal["vectors"] = doc("vectors", "a sequence of vectors of one dimension")
    normalize: bool = doc(
        True, "give each number of a vector mean 0 and scale 1, by the training data"
    )
    max_length: Count | None = doc(
        None, "training examples with more vectors are left out and counted"
    )

    noun = "a sequence of vectors"
    vocabulary_class = Statistics
    is_sequence = True
    input_kind = "vectors"
    needs_input_module = True
    has_positions = True
    has_lists = True
    content_key = "file"

    @property
    def limit_key(self) -> str | None:
        return None if self.max_length is None else "max_length"

    def size_of(self, value: Any) -> int:
        return len(value)

    def row_text(self, vocabulary: Statistics, values: Vectors, row: int) -> str:
        return f"{int(values.lengths[row])} vectors of {vocabulary.size} numbers"

    def example(self, vocabulary: Statistics) -> NDArray[np.float32]:
        return np.zeros((1, vocabulary.size), np.float32)

    def parse(self, cell: Any) -> NDArray[np.float32]:
        value: Any = cell
        if isinstance(cell, str):
            value = _json_array(cell)
        try:
            # A number that is too large becomes infinity, which is refused below.
            with np.errstate(over="ignore"):
                array = np.asarray(value, dtype=np.float32)
        except (TypeError, ValueError):
            array = np.zeros(0, dtype=np.float32)
        if array.ndim != 2 or 0 in array.shape:
            got = one_line(repr(cell))[:60]
            raise InvalidArgument(
                "vectors",
                wanted="a list of vectors of one dimension, at least one",
                got=got,
                remedy="Give an array (length, dimension).",
            )
        if not np.isfinite(array).all():
            position, number = (int(index[0]) for index in np.nonzero(~np.isfinite(array)))
            raise InvalidArgument(
                "vectors",
                wanted="finite numbers",
                got=f"{array[position, number]} as number {number + 1} of vector {position + 1}",
                remedy="Replace missing values first.",
            )
        return array

    @classmethod
    def is_listed(cls, given: Sequence[Any]) -> bool:
        first = given[0] if given else None
        return isinstance(first, list) and bool(first) and isinstance(first[0], int | float)

    def from_request(self, name: str, given: Any, size: int | None) -> NDArray[np.float32]:
        value = given
        if isinstance(given, bytes):
            value = array_of_npy(f"file of {name}", given, size)
        elif not _holds_numbers(given):
            value = None
        try:
            return self.parse(value)
        except InvalidArgument as error:
            raise InvalidArgument(
                name, wanted=error.wanted, got=error.got, remedy=error.remedy
            ) from None

    def request_text(self, value: Any) -> str:
        # The shortest decimals that are the same number in 32 bits.
        return json.dumps([[float(str(number)) for number in row] for row in self.parse(value)])

    def usual_ranges(self, vocabulary: Statistics) -> Ranges:
        pairs = zip(vocabulary.mean, vocabulary.scale, strict=True)
        return tuple(
            (mean - DEVIATIONS * scale, mean + DEVIATIONS * scale) for mean, scale in pairs
        )

    def title(self, cell: Any) -> str:
        array = self.parse(cell)
        return f"{len(array)} vectors of {array.shape[1]} numbers"

    def check(self, name: str, values: Iterable[Any]) -> list[Any]:
        return [self.parse(value) for value in check_list(name, values, texts_only=False)]

    def learn(self, values: Iterator[Any], *, is_target: bool) -> Statistics:
        dimension = 0

        def of_one_dimension() -> Iterator[NDArray[np.float32]]:
            nonlocal dimension
            for value in values:
                dimension = dimension or value.shape[1]
                _check_dimension(value, dimension)
                yield value

        return Statistics.of(of_one_dimension(), normalize=self.normalize)

    def check_cell(self, vocabulary: Any, cell: str) -> None:
        self.encode(vocabulary, [self.parse(cell)])

    def encode(self, vocabulary: Statistics, values: Sequence[Any]) -> list[Any]:
        for value in values:
            _check_dimension(value, vocabulary.size)
        return [vocabulary.normalize(value) for value in values]

    def length(self, encoded: Any) -> int:
        return len(encoded)

    def shorten(self, encoded: Any, limit: int) -> Any:
        return encoded[:limit]

    def positions(self, encoded: Any) -> int:
        return len(encoded)

    def exceeds_limit(self, encoded: Any) -> bool:
        return self.max_length is not None and len(encoded) > self.max_length

    def collate(self, vocabulary: Statistics, encoded: Sequence[Any]) -> Vectors:
        return Vectors.of(encoded)

    def writer(self, stem: Path, vocabulary: Statistics, *, running: bool) -> ColumnWriter:
        return VectorWriter(stem, vocabulary.size)

    def open(self, stem: Path, vocabulary: Any, context_length: int | None) -> Column:
        return open_vectors(stem)


def _check_dimension(value: NDArray[Any], dimension: int) -> None:
    if value.shape[1] != dimension:
        raise InvalidArgument(
            "vectors",
            wanted=f"vectors of {dimension} numbers, as in the training data",
            got=str(value.shape[1]),
            remedy="Give vectors of one dimension.",
        )


def _holds_numbers(vectors: Sequence[Any]) -> bool:
    """Whether all of these are lists of numbers: NumPy would also read the number of a text."""
    return all(
        isinstance(vector, list) and all(isinstance(each, int | float) for each in vector)
        for vector in vectors
    )


def _json_array(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
