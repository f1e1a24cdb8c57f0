"""Columns of a corpus as arrays, memory-mapped from disk: concatenated texts, running text, labels, images."""

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from regard.core.errors import InvalidData
from regard.core.joined_tokens import JoinedTokens
from regard.core.sequence import FeatureGrids, MultiSource, Tokens, Vectors
from regard.data.image_store import Member
from regard.data.images import (
    HALVES,
    ImageInput,
    ResizeFilter,
    image_token_cost,
    load_image,
    normalize,
)

Indices = NDArray[np.int64]
Ids = NDArray[Any]  # uint16, or uint32 for a vocabulary that needs it
WORKERS = min(4, os.cpu_count() or 1)  # threads that read images
CHUNK = 64  # images held in memory while they are written


class Column(ABC):
    """One field of the examples of a split."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of examples."""

    @abstractmethod
    def lengths(self, indices: Indices) -> Indices:
        """How many tokens these examples count for in a batch."""

    def read_lengths(self, indices: Indices) -> Indices:
        """How many positions a decoder reads of these targets: all tokens but the last."""
        return self.lengths(indices) - 1

    @abstractmethod
    def row(self, i: int) -> Any:
        """The value of one example."""

    @abstractmethod
    def gather(self, indices: Indices) -> Any:
        """A batch of these examples."""

    def predictions(self, indices: Indices) -> int:
        """How many predictions a model makes of these targets."""
        return len(indices)


@dataclass(frozen=True)
class TextColumn(Column):
    """Concatenated texts; `ends` holds the end of each."""

    ids: Ids
    ends: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ends)

    def starts(self, indices: Indices) -> Indices:
        return np.where(indices > 0, self.ends[indices - 1], 0)  # index -1 is not used

    def lengths(self, indices: Indices) -> Indices:
        return self.ends[indices] - self.starts(indices)

    def row(self, i: int) -> Ids:
        start = self.ends[i - 1] if i else 0
        return self.ids[start : self.ends[i]]

    def gather(self, indices: Indices) -> Tokens:
        return _padded(self.ids, self.starts(indices), self.lengths(indices))

    def predictions(self, indices: Indices) -> int:
        # The first token of each is given.
        return int(self.lengths(indices).sum()) - len(indices)


@dataclass(frozen=True)
class RunningTextColumn(Column):
    """One long text in contexts. Each begins with the last token of the one before, so each token is predicted once."""

    ids: Ids
    context_length: int

    def __len__(self) -> int:
        return -(-(len(self.ids) - 1) // self.context_length)

    def starts(self, indices: Indices) -> Indices:
        return indices * self.context_length

    def lengths(self, indices: Indices) -> Indices:
        return np.minimum(self.context_length + 1, len(self.ids) - self.starts(indices))

    def row(self, i: int) -> Ids:
        return self.ids[i * self.context_length : (i + 1) * self.context_length + 1]

    def gather(self, indices: Indices) -> Tokens:
        return _padded(self.ids, self.starts(indices), self.lengths(indices))

    def predictions(self, indices: Indices) -> int:
        # The first token of each is given.
        return int(self.lengths(indices).sum()) - len(indices)


@dataclass(frozen=True)
class LabelColumn(Column):
    """The label id of each example."""

    labels: NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self.labels)

    def lengths(self, indices: Indices) -> Indices:
        return np.ones(len(indices), dtype=np.int64)

    def row(self, i: int) -> int:
        return int(self.labels[i])

    def gather(self, indices: Indices) -> torch.Tensor:
        return torch.from_numpy(self.labels[indices].astype(np.int64))


@dataclass(frozen=True)
class ImageColumn(Column):
    """Images, each stored once however many examples use it."""

    pixels: NDArray[np.uint8]  # (P, Y, X, 3)
    which: NDArray[np.int64]  # the image of each example
    mean: tuple[float, ...] = HALVES
    std: tuple[float, ...] = HALVES

    def __len__(self) -> int:
        return len(self.which)

    def lengths(self, indices: Indices) -> Indices:
        """In tokens of a batch's size."""
        return np.full(len(indices), image_token_cost(self.pixels.shape[1]), dtype=np.int64)

    def row(self, i: int) -> NDArray[np.uint8]:
        return np.array(self.pixels[self.which[i]])

    def gather(self, indices: Indices) -> torch.Tensor:
        return normalize(self.pixels[self.which[indices]], self.mean, self.std)


@dataclass(frozen=True)
class FeatureColumn(Column):
    """Features of images. They count as their images in a batch's size, so that batches are the same."""

    images: ImageColumn
    grids: NDArray[np.float16]  # (P, y, x, C)

    def __len__(self) -> int:
        return len(self.images)

    def lengths(self, indices: Indices) -> Indices:
        return self.images.lengths(indices)

    def row(self, i: int) -> NDArray[np.uint8]:
        return self.images.row(i)

    def gather(self, indices: Indices) -> FeatureGrids:
        return FeatureGrids(torch.from_numpy(self.grids[self.images.which[indices]]))


@dataclass(frozen=True)
class NumberColumn(Column):
    """The numbers of each example, as many for each."""

    numbers: NDArray[np.float32]  # (N, numbers)

    def __len__(self) -> int:
        return len(self.numbers)

    def lengths(self, indices: Indices) -> Indices:
        return np.ones(len(indices), dtype=np.int64)

    def row(self, i: int) -> NDArray[np.float32]:
        return np.array(self.numbers[i])

    def gather(self, indices: Indices) -> torch.Tensor:
        return torch.from_numpy(np.array(self.numbers[indices]))

    def predictions(self, indices: Indices) -> int:
        return len(indices) * int(self.numbers.shape[1])


@dataclass(frozen=True)
class LabelSetColumn(Column):
    """The label ids of each example, of which each has any number."""

    ids: Ids
    ends: NDArray[np.int64]
    labels: int  # in all

    def __len__(self) -> int:
        return len(self.ends)

    def lengths(self, indices: Indices) -> Indices:
        return np.ones(len(indices), dtype=np.int64)

    def row(self, i: int) -> Ids:
        start = self.ends[i - 1] if i else 0
        return self.ids[start : self.ends[i]]

    def gather(self, indices: Indices) -> torch.Tensor:
        """A column for each label: 1.0 where an example has it."""
        has = np.zeros((len(indices), self.labels), dtype=np.float32)
        for row, index in enumerate(indices.tolist()):
            has[row, self.row(index)] = 1.0
        return torch.from_numpy(has)

    def predictions(self, indices: Indices) -> int:
        """A decision about each label."""
        return len(indices) * self.labels


@dataclass(frozen=True, eq=False)
class SlicedRows:
    """Some rows of an array, of which many such slices may overlap."""

    whole: NDArray[np.float32]  # (rows, D)
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.whole[self.start : self.stop], dtype=dtype)

    def __getitem__(self, rows: slice) -> NDArray[np.float32]:
        return np.asarray(self)[rows]


@dataclass(frozen=True)
class VectorColumn(Column):
    """Concatenated sequences of vectors; `ends` holds the end of each."""

    vectors: NDArray[np.float32]  # (positions, D)
    ends: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ends)

    def starts(self, indices: Indices) -> Indices:
        return np.where(indices > 0, self.ends[indices - 1], 0)

    def lengths(self, indices: Indices) -> Indices:
        return self.ends[indices] - self.starts(indices)

    def row(self, i: int) -> NDArray[np.float32]:
        (start,) = self.starts(np.array([i]))
        return np.array(self.vectors[start : self.ends[i]])

    def read_lengths(self, indices: Indices) -> Indices:
        # The start, which is none of the vectors, and all of them but the last.
        return self.lengths(indices)

    def gather(self, indices: Indices) -> Vectors:
        lengths = self.lengths(indices)
        longest = int(lengths.max())
        if int(lengths.min()) < longest:
            return Vectors.of([torch.from_numpy(self.row(index)) for index in indices.tolist()])
        cells = self.starts(indices)[:, None] + np.arange(longest)  # (B, S)
        return Vectors(torch.from_numpy(self.vectors[cells]), torch.from_numpy(lengths))

    def predictions(self, indices: Indices) -> int:
        """A number for each that is there."""
        return sum(int((~np.isnan(self.row(index))).sum()) for index in indices.tolist())


@dataclass(frozen=True)
class WindowColumn(VectorColumn):
    """Sequences of vectors that are windows of longer ones, and may overlap."""

    begins: NDArray[np.int64]

    def starts(self, indices: Indices) -> Indices:
        return self.begins[indices]


@dataclass(frozen=True)
class MultiSourceColumn(Column):
    """Several sources of each example, a column for each."""

    columns: tuple[Column, ...]

    def __len__(self) -> int:
        return len(self.columns[0])

    def lengths(self, indices: Indices) -> Indices:
        """Of all sources together."""
        total: Indices = np.stack([column.lengths(indices) for column in self.columns]).sum(0)
        return total

    def row(self, i: int) -> tuple[Ids | int, ...]:
        return tuple(column.row(i) for column in self.columns)

    def gather(self, indices: Indices) -> MultiSource:
        return MultiSource(tuple(column.gather(indices) for column in self.columns))


@dataclass(frozen=True)
class JoinedColumn(MultiSourceColumn):
    """Several texts of each example, which are read as one sequence."""

    def gather(self, indices: Indices) -> JoinedTokens:  # type: ignore[override]
        return JoinedTokens.join([column.gather(indices) for column in self.columns])


class ColumnWriter(ABC):
    """Writes a column to .npy files, in chunks."""

    def __init__(self, stem: Path) -> None:
        self.stem = stem
        self.arrays: list[_GrowingArray] = []

    def array(
        self, name: str, dtype: type[np.generic], each: tuple[int, ...] = ()
    ) -> "_GrowingArray":
        """A new file of the column, of items of one shape."""
        self.arrays.append(_GrowingArray(_file(self.stem, name), np.dtype(dtype), each))
        return self.arrays[-1]

    @abstractmethod
    def add(self, rows: Sequence[Any]) -> None:
        """Append the values of some examples."""

    def close(self) -> None:
        for array in self.arrays:
            array.write_header()


class TextWriter(ColumnWriter):
    """Writes token ids; of running text without the ends of texts."""

    def __init__(self, stem: Path, vocabulary: int, *, running: bool = False) -> None:
        super().__init__(stem)
        id_type = np.uint16 if vocabulary <= 1 << 16 else np.uint32
        self.ids = self.array("ids", id_type)
        self.ends = None if running else self.array("ends", np.int64)

    def add(self, rows: Sequence[Sequence[int]]) -> None:
        lengths = [len(row) for row in rows]
        if self.ends is not None:
            self.ends.add(self.ids.count + np.cumsum(lengths, dtype=np.int64))
        self.ids.add(
            np.fromiter(chain.from_iterable(rows), dtype=self.ids.dtype, count=sum(lengths))
        )


class LabelWriter(ColumnWriter):
    """Writes label ids."""

    def __init__(self, stem: Path) -> None:
        super().__init__(stem)
        self.labels = self.array("labels", np.uint32)

    def add(self, rows: Sequence[int]) -> None:
        self.labels.add(np.array(rows, dtype=np.uint32))


class NumberWriter(ColumnWriter):
    """Writes numbers, as many for each example."""

    def __init__(self, stem: Path, count: int) -> None:
        super().__init__(stem)
        self.numbers = self.array("numbers", np.float32, (count,))

    def add(self, rows: Sequence[Any]) -> None:
        self.numbers.add(np.asarray(rows, dtype=np.float32).reshape(len(rows), -1))


class VectorWriter(ColumnWriter):
    """Writes sequences of vectors of one dimension."""

    def __init__(self, stem: Path, dimension: int) -> None:
        super().__init__(stem)
        self.vectors = self.array("vectors", np.float32, (dimension,))
        self.ends = self.array("ends", np.int64)
        self.begins: _GrowingArray | None = None
        # Where each array starts of which windows are written; the array is kept, so that its id stays its own.
        self.written: dict[int, tuple[int, Any]] = {}

    def add(self, rows: Sequence[Any]) -> None:
        if rows and isinstance(rows[0], SlicedRows):
            self._add_windows(rows)
            return
        lengths = [len(row) for row in rows]
        self.ends.add(self.vectors.count + np.cumsum(lengths, dtype=np.int64))
        if rows:
            self.vectors.add(np.concatenate(rows))

    def _add_windows(self, rows: Sequence[SlicedRows]) -> None:
        if self.begins is None:
            self.begins = self.array("begins", np.int64)
        begins = []
        for row in rows:
            key = id(row.whole)
            if key not in self.written:
                self.written[key] = (self.vectors.count, row.whole)
                self.vectors.add(row.whole)
            begins.append(self.written[key][0] + row.start)
        starts = np.array(begins, dtype=np.int64)
        self.begins.add(starts)
        self.ends.add(starts + np.array([len(row) for row in rows], dtype=np.int64))


class ImageWriter(ColumnWriter):
    """Writes images, read by a few threads and written in order."""

    def __init__(self, stem: Path, resizing: tuple[int, ResizeFilter, int | None]) -> None:
        super().__init__(stem)
        self.resizing = resizing
        size = resizing[0]
        self.known: dict[Path | Member, int] = {}  # files that several examples may use
        self.pixels = self.array("pixels", np.uint8, (size, size, 3))
        self.which = self.array("which", np.int64)

    def add(self, rows: Sequence[ImageInput]) -> None:
        which: list[int] = []
        new: list[ImageInput] = []
        for image in rows:
            number = self.pixels.count + len(new)
            if isinstance(image, Path | Member):
                number = self.known.setdefault(image, number)
            if number == self.pixels.count + len(new):
                new.append(image)
            which.append(number)
        with ThreadPoolExecutor(WORKERS) as pool:
            for first in range(0, len(new), CHUNK):
                chunk = new[first : first + CHUNK]
                loaded = pool.map(lambda image: load_image(image, *self.resizing), chunk)
                self.pixels.add(np.stack(list(loaded)))
        self.which.add(np.array(which, dtype=np.int64))


def open_text(stem: Path, context_length: int | None) -> "TextColumn | RunningTextColumn":
    """The texts that a `TextWriter` stored under this name; with a context_length, as one text."""
    ids = memory_map(_file(stem, "ids"))
    if context_length is not None:
        return RunningTextColumn(ids, context_length)
    return TextColumn(ids, _open_ends(stem, len(ids)))


def open_labels(stem: Path) -> LabelColumn:
    """The labels that a `LabelWriter` stored under this name."""
    return LabelColumn(memory_map(_file(stem, "labels")))


def open_images(stem: Path, mean: tuple[float, ...], std: tuple[float, ...]) -> ImageColumn:
    """The images that an `ImageWriter` stored under this name."""
    pixels = memory_map(_file(stem, "pixels"))
    return ImageColumn(pixels, memory_map(_file(stem, "which")), mean, std)


def open_numbers(stem: Path) -> "NumberColumn":
    """The numbers that a `NumberWriter` stored under this name."""
    return NumberColumn(memory_map(_file(stem, "numbers")))


def open_label_sets(stem: Path, labels: int) -> "LabelSetColumn":
    """The labels that a `TextWriter` stored under this name, several for each example."""
    ids = memory_map(_file(stem, "ids"))
    return LabelSetColumn(ids, _open_ends(stem, len(ids)), labels)


def open_vectors(stem: Path) -> "VectorColumn":
    """The sequences that a `VectorWriter` stored under this name."""
    values = memory_map(_file(stem, "vectors"))
    if _file(stem, "begins").exists():
        ends = memory_map(_file(stem, "ends"))
        begins = memory_map(_file(stem, "begins"))
        return WindowColumn(values, ends, begins)
    return VectorColumn(values, _open_ends(stem, len(values)))


def _open_ends(stem: Path, count: int) -> NDArray[np.int64]:
    """The ends of sequences that have `count` positions together."""
    ends = memory_map(_file(stem, "ends"))
    last = int(ends[-1]) if len(ends) else 0
    if last != count:
        raise damaged(stem, f"{count:,} positions where the last sequence ends at {last:,}")
    return ends


def _file(stem: Path, array: str) -> Path:
    return stem.with_name(f"{stem.name}.{array}.npy")


def damaged(path: Path, got: str) -> InvalidData:
    remedy = f"Delete {path.parent} and prepare again."
    return InvalidData(path, wanted="a whole prepared corpus", got=got, remedy=remedy)


class _GrowingArray:
    """A .npy file whose length is known only at the end; NumPy's header has space for it."""

    def __init__(self, path: Path, dtype: np.dtype[Any], each: tuple[int, ...] = ()) -> None:
        self.path = path
        self.dtype = dtype
        self.each = each
        self.count = 0
        path.touch()
        self.write_header()

    def add(self, values: NDArray[Any]) -> None:
        with self.path.open("ab") as file:
            file.write(values.astype(self.dtype, copy=False).tobytes())
        self.count += len(values)

    def write_header(self) -> None:
        header = {
            "descr": self.dtype.str,
            "fortran_order": False,
            "shape": (self.count, *self.each),
        }
        with self.path.open("r+b") as file:
            np.lib.format.write_array_header_1_0(file, header)
            file.flush()
            os.fsync(file.fileno())


class MappedArray(np.memmap[Any, Any]):
    """A memory-mapped array that checks its file's size before it is indexed: reading beyond its end is a SIGBUS."""

    bytes_on_disk = 0

    def __array_finalize__(self, obj: object) -> None:
        super().__array_finalize__(obj)
        self.bytes_on_disk = getattr(obj, "bytes_on_disk", 0)

    def __getitem__(self, index: Any) -> Any:
        if self._mmap is not None and (present := self._mmap.size()) < self.bytes_on_disk:  # type: ignore[attr-defined]
            raise damaged(
                Path(str(self.filename)),
                f"{present:,} bytes of {self.bytes_on_disk:,}, cut off while in use",
            )
        items = super().__getitem__(index)
        copied = isinstance(items, MappedArray) and items._mmap is None  # type: ignore[attr-defined]
        return items.view(np.ndarray) if copied else items


def memory_map(path: Path) -> NDArray[Any]:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False).view(MappedArray)
        array.bytes_on_disk = path.stat().st_size
        return cast(NDArray[Any], array)
    except (OSError, ValueError, EOFError) as error:
        raise damaged(path, str(error)) from None


def digest_of(path: Path) -> str:
    """The SHA-256 of a file; of an unchanged one, computed once per process."""
    try:
        stat = path.stat()
        return _digest(path, stat.st_ino, stat.st_size, stat.st_mtime_ns)
    except OSError as error:
        raise damaged(path, error.strerror or str(error)) from None


@cache
def _digest(path: Path, *state: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _padded(ids: Ids, starts: Indices, lengths: Indices) -> Tokens:
    positions = np.arange(int(lengths.max()))
    mask = positions < lengths[:, None]  # (B, S)
    padded = np.zeros(mask.shape, dtype=np.int64)
    padded[mask] = ids[(starts[:, None] + positions)[mask]]
    return Tokens(torch.from_numpy(padded), torch.from_numpy(lengths))
