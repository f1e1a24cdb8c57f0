"""The field `vectors`: a sequence of vectors of one dimension, from a file,
a recording or a list of lists.
"""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from regard.core.config import Count, doc
from regard.core.errors import InvalidArgument, InvalidData
from regard.core.sanitize import one_line
from regard.core.sequence import Vectors
from regard.data.array_files import array_of_content, read_array
from regard.data.column_files import ColumnWriter, VectorWriter, open_vectors
from regard.data.columns import Column, SlicedRows
from regard.data.fields.base import Field, Ranges, check_list
from regard.data.image_store import ARRAYS, Member
from regard.data.log_mel import LogMelConfig, Recording
from regard.data.series_window import Series, Window
from regard.data.statistics import Statistics
from regard.data.time_axis import TimeAxis
from regard.data.wav import open_wav

WAV = ".wav"
RIFF = b"RIFF"  # how the content of a WAV file begins
DEVIATIONS = 3  # from the mean, within which most numbers are
LARGEST_NUMBER = float(np.finfo(np.float32).max)
MOST_NUMBERS = 1 << 22  # of the content of a file in a request


@dataclass(frozen=True)
class VectorsField(Field):
    """A sequence of vectors, which may differ in length from example to example."""

    kind: Literal["vectors"] = doc(
        "vectors",
        "a sequence of vectors of one dimension: a list of lists, the name of a .npy or .npz "
        "file, or with `features` that of a .wav file",
    )
    normalize: bool = doc(
        True, "give each number of a vector mean 0 and scale 1, by the training data"
    )
    max_length: Count | None = doc(
        None, "training examples with more vectors are left out and counted"
    )
    missing: Literal["refuse", "mask"] = doc(
        "refuse",
        "missing numbers, NaN or null: refuse them; or mask: nothing attends to a source vector "
        "that has one, and a number of a target that is missing counts in no loss and no metric",
    )

    features: LogMelConfig | None = doc(
        None, "how recordings (.wav) become vectors; left out: cells are vectors already"
    )

    noun = "a sequence of vectors"
    vocabulary_class = Statistics
    is_sequence = True
    stored = ARRAYS
    input_kind = "vectors"
    needs_input_module = True
    has_positions = True
    has_lists = True
    content_key = "file"
    in_graphs = False

    def not_packable(self) -> str | None:
        # Attention over packed sequences has no mask, and would attend to a vector that is missing.
        return "missing = 'mask'" if self.missing == "mask" else None

    @property
    def arrays_settings(self) -> dict[str, Any]:
        settings = super().arrays_settings
        # Data that were prepared before there was this key have none.
        features = settings.pop("features")
        if features is not None:
            settings["features"] = asdict(features)
        return settings

    reads_windows = True

    @property
    def refuses_missing(self) -> bool:
        return self.missing == "refuse"

    @property
    def limit_key(self) -> str | None:
        return None if self.max_length is None else "max_length"

    def size_of(self, value: Any) -> int:
        return len(self.parse(value))

    def row_text(self, vocabulary: Statistics, values: Vectors, row: int) -> str:
        return f"{int(values.lengths[row])} vectors of {vocabulary.size} numbers"

    def example(self, vocabulary: Statistics) -> NDArray[np.float32]:
        # A model may read sequences of the length of its training data only.
        return np.zeros((vocabulary.length or 1, vocabulary.size), np.float32)

    def first_input(self, vocabulary: Statistics) -> str | None:
        """The mean at each position, where all sequences of the training data have one length."""
        if vocabulary.length is None:
            return None
        return array_text(np.tile(vocabulary.mean, (vocabulary.length, 1)), [4] * vocabulary.size)

    def names_file(self, cell: Any) -> bool:
        """Whether a cell of a table is the name of a file, not a list."""
        return isinstance(cell, str) and self.stored is not None and self.stored.names(cell)

    def parse(self, cell: Any) -> NDArray[np.float64] | Window:
        """An array (length, dimension).

        Only a path opens a file: a text is read as a list, never as a name.

        Bytes are those of a WAV file.
        """
        if isinstance(cell, Window):
            return cell
        if isinstance(cell, bytes):
            return self._of_recording(cell, "recording")
        if isinstance(cell, Path | Member):
            if str(cell).lower().endswith(WAV):
                content = cell.read() if isinstance(cell, Member) else cell
                return self._of_recording(content, str(cell))
            try:
                return self.array_of(read_array(cell))
            except InvalidData:
                raise
            except InvalidArgument as error:
                raise InvalidData(
                    cell, wanted=error.wanted, got=error.got, remedy=error.remedy
                ) from None
        return self.array_of(cell)

    def _of_recording(
        self, source: Path | bytes, name: str, most_seconds: float = math.inf
    ) -> NDArray[np.float64]:
        """The vectors of a WAV file of at most so many seconds, and of what the recipe allows."""
        if self.features is None:
            raise InvalidData(
                name,
                wanted="vectors",
                got="a recording",
                remedy='Add [data.source.features] with kind = "log-mel".',
            )
        most_seconds = min(most_seconds, self.features.max_seconds)
        with open_wav(source, name, most_seconds=most_seconds) as wav:
            recording = Recording(wav.samples, len(wav), wav.rate)
            return recording.log_mel(self.features).astype(np.float64)

    def array_of(self, value: Any) -> NDArray[np.float64]:
        """The array (length, dimension) of an array, a tensor, nested lists or their JSON;
        of numbers, (length, 1).
        """
        given = value
        if isinstance(value, str):
            given = _json_array(value)
        array = _as_numbers(given)
        if array.ndim == 1 and len(array):
            array = array[:, None]
        if array.ndim != 2 or 0 in array.shape:
            raise InvalidArgument(
                "vectors",
                wanted="a list of vectors of one dimension, at least one",
                got=_described(value),
                remedy="Give an array (length, dimension).",
            )
        self._check_finite(array)
        return array

    @classmethod
    def is_listed(cls, given: Sequence[Any]) -> bool:
        first = given[0] if given else None
        return isinstance(first, list) and bool(first) and isinstance(first[0], int | float | None)

    def from_request(self, name: str, given: Any, size: int | None) -> NDArray[np.float64]:
        try:
            if isinstance(given, bytes) and given.startswith(RIFF):
                return self._of_recording(given, f"file of {name}", self._most_seconds)
            if isinstance(given, bytes):
                return self.array_of(_array_of_content(name, given, size))
            # NumPy would also read the number of a text.
            return self.array_of(given if _holds_numbers(given) else None)
        except InvalidData:
            raise
        except InvalidArgument as error:
            raise InvalidArgument(
                name, wanted=error.wanted, got=error.got, remedy=error.remedy
            ) from None

    @property
    def _most_seconds(self) -> float:
        """The longest recording of a request:
        it may not have more numbers as vectors than an array may.
        """
        if self.features is None:
            return math.inf
        frames = MOST_NUMBERS // self.features.mels
        return frames * self.features.hop_samples / self.features.sample_rate

    def time_axis(self, cell: Any) -> TimeAxis:
        if isinstance(cell, Window):
            # Without times, rows of a table have the numbers that they have in their series.
            return TimeAxis(start=cell.series.first + cell.start, stamps=cell.stamps)
        if self.features is None:
            return TimeAxis()
        return TimeAxis(step=self.features.hop_samples / self.features.sample_rate)

    def request_text(self, value: Any) -> str:
        numbers = np.asarray(self.parse(value), dtype=np.float32)
        # The shortest decimals that are the same number in 32 bits; null where a number is missing.
        rows = [[_shortest(number) for number in row] for row in numbers]
        return json.dumps(rows)

    def usual_ranges(self, vocabulary: Statistics) -> Ranges:
        pairs = zip(vocabulary.mean, vocabulary.scale, strict=True)
        return tuple(
            (mean - DEVIATIONS * scale, mean + DEVIATIONS * scale) for mean, scale in pairs
        )

    def title(self, cell: Any) -> str:
        if isinstance(cell, Path | Member):
            return cell.name
        if isinstance(cell, Window):
            return repr(cell)
        array = np.asarray(self.parse(cell))
        return f"{len(array)} vectors of {array.shape[1]} numbers"

    def _check_finite(self, array: NDArray[np.float64]) -> None:
        wrong = ~(np.abs(array) <= LARGEST_NUMBER)
        remedy = 'Replace missing values first, or set missing = "mask".'
        if self.missing == "mask":
            wrong &= ~np.isnan(array)
            remedy = "Write NaN or null where a number is missing."
        if not wrong.any():
            return
        position, number = (int(index[0]) for index in np.nonzero(wrong))
        raise InvalidArgument(
            "vectors",
            wanted="finite numbers, in the range of float32",
            got=f"{array[position, number]} as number {number + 1} of vector {position + 1}",
            remedy=remedy,
        )

    def reference(self, cell: Any) -> str:
        return array_text(np.asarray(self.parse(cell)))

    def check(self, name: str, values: Iterable[Any]) -> list[Any]:
        return [self.parse(value) for value in check_list(name, values, texts_only=False)]

    def check_together(self, first: Any, value: Any) -> None:
        if not isinstance(value, Window):
            # The windows of a series have its columns.
            _check_dimension(value, first.shape[1], "the first example")

    def learn(self, values: Iterator[Any], *, is_target: bool) -> Statistics:
        dimension = 0
        longest = 1
        lengths: set[int] = set()
        names: tuple[str, ...] = ()

        def noted() -> Iterator[Any]:
            nonlocal longest, names
            for value in values:
                if isinstance(value, Window):
                    names = value.series.names_of(value.side)
                longest = max(longest, len(value))
                # Two are enough to say that there is not one.
                if len(lengths) < 2:
                    lengths.add(len(value))
                yield value

        def of_one_dimension() -> Iterator[NDArray[np.float64]]:
            nonlocal dimension
            for value in _each_row_once(noted()):
                dimension = dimension or value.shape[1]
                _check_dimension(value, dimension)
                yield value

        found = Statistics.of(of_one_dimension(), normalize=self.normalize)
        length = lengths.pop() if len(lengths) == 1 else None
        # Longer ones are left out of the training data.
        limit = longest if self.max_length is None else self.max_length
        longest_kept = min(longest, limit) if is_target else None
        return Statistics(found.mean, found.scale, longest_kept, length, names)

    def check_cell(self, vocabulary: Any, cell: Any) -> None:
        self.encode(vocabulary, [self.parse(cell)])

    def encode(self, vocabulary: Statistics, values: Sequence[Any]) -> list[Any]:
        return [_encoded(value, vocabulary) for value in values]

    def length(self, encoded: Any) -> int:
        return len(encoded)

    def shorten(self, encoded: Any, limit: int) -> Any:
        return encoded[:limit]

    def latest(self, encoded: Any, count: int) -> Any:
        return encoded[len(encoded) - count :] if len(encoded) > count else encoded

    def positions(self, encoded: Any) -> int:
        return len(encoded)

    def exceeds_limit(self, encoded: Any) -> bool:
        return self.max_length is not None and len(encoded) > self.max_length

    def collate(self, vocabulary: Statistics, encoded: Sequence[Any]) -> Vectors:
        return Vectors.of([np.asarray(each) for each in encoded])

    def writer(self, stem: Path, vocabulary: Statistics, *, running: bool) -> ColumnWriter:
        return VectorWriter(stem, vocabulary.size)

    def open(self, stem: Path, vocabulary: Any, context_length: int | None) -> Column:
        return open_vectors(stem)


def _each_row_once(
    values: Iterator[NDArray[np.float64] | Window],
) -> Iterator[NDArray[np.float64]]:
    """Arrays; of windows, which may overlap, all rows of the series that they are cut from."""
    # Kept, so that the id of each series stays its own.
    seen: dict[int, Series] = {}
    for value in values:
        if not isinstance(value, Window):
            yield value
        elif id(value.series) not in seen:
            seen[id(value.series)] = value.series
            yield value.series.side(value.side)


def _encoded(
    value: NDArray[np.floating[Any]] | Window, vocabulary: Statistics
) -> NDArray[np.float32] | SlicedRows:
    if not isinstance(value, Window):
        _check_dimension(value, vocabulary.size)
        return vocabulary.normalize(value)
    _check_dimension(value.series.side(value.side), vocabulary.size)
    return value.encoded(vocabulary)


def _check_dimension(
    value: NDArray[Any], dimension: int, given_by: str = "the training data"
) -> None:
    if value.shape[1] != dimension:
        raise InvalidArgument(
            "vectors",
            wanted=f"vectors of {dimension} numbers, as in {given_by}",
            got=str(value.shape[1]),
            remedy="Give vectors of one dimension.",
        )


def _holds_numbers(vectors: Sequence[Any]) -> bool:
    """Whether all of these are lists of numbers: NumPy would also read the number of a text."""
    return all(
        isinstance(vector, list)
        and all(each is None or isinstance(each, int | float) for each in vector)
        for vector in vectors
    )


def _array_of_content(name: str, content: bytes, dimension: int | None) -> NDArray[Any]:
    """The array of a .npy file that is sent:
    what it claims is checked before numbers are converted.
    """
    array = array_of_content(f"file of {name}", content)
    if array.size > MOST_NUMBERS:
        raise InvalidArgument(
            name,
            wanted=f"at most {MOST_NUMBERS:,} numbers",
            got=f"{array.size:,}",
            remedy="Send a part of it.",
        )
    if dimension is not None and array.ndim == 2:
        _check_dimension(array, dimension)
    return array


def _shortest(number: np.float32) -> float | None:
    return None if np.isnan(number) else float(str(number))


def _json_array(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _as_numbers(value: Any) -> NDArray[np.float64]:
    """An array of float64; without an axis if these are no numbers."""
    nothing = np.zeros((), dtype=np.float64)
    try:
        if hasattr(value, "detach"):
            # A tensor, perhaps on another device, and perhaps of bfloat16,
            # which NumPy does not have.
            value = value.detach().cpu().double().numpy()
        found = np.asarray(value)
        if found.dtype.kind in "USmMcV":
            return nothing
        # An array of objects may be a list with nulls, which become NaN.
        return found.astype(np.float64)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return nothing


def _described(value: Any) -> str:
    """An array by its type and shape, anything else as it is written."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype} of shape {tuple(value.shape)}"
    return one_line(repr(value))[:60]


def array_text(array: NDArray[Any], decimals: Sequence[int] | None = None) -> str:
    """An array (length, dimension) as JSON, with null where a number is missing;
    and NaN or infinite ones as well.

    decimals   of each number of a vector; None: all that it has
    """
    numbers = np.asarray(array, dtype=np.float64)
    if decimals is not None:
        columns = [np.round(numbers[:, i], places) for i, places in enumerate(decimals)]
        numbers = np.stack(columns, axis=1) + 0.0
    is_finite = np.isfinite(numbers)
    rows = numbers.tolist()
    for position, number in zip(*np.nonzero(~is_finite), strict=True):
        rows[position][number] = None
    return json.dumps(rows)


def read_array_text(text: str) -> NDArray[np.float64]:
    """The array of a text that `array_text` wrote; NaN where a number is missing."""
    return VectorsField(missing="mask").array_of(text)
