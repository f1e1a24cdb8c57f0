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
from regard.core.sequence import FeatureGrids, MultiSource, Tokens
from regard.data.config import HALVES, FieldConfig
from regard.data.image_store import Member
from regard.data.images import ImageInput, image_token_cost, load_image, normalize

Indices = NDArray[np.int64]
Ids = NDArray[Any]  # uint16, or uint32 for a vocabulary that needs it
WORKERS = min(4, os.cpu_count() or 1)  # threads that read images
CHUNK = 64  # images held in memory while they are written


@dataclass(frozen=True)
class TextColumn:
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
        return self.ids[self.ends[i - 1] if i else 0 : self.ends[i]]

    def gather(self, indices: Indices) -> Tokens:
        return _padded(self.ids, self.starts(indices), self.lengths(indices))


@dataclass(frozen=True)
class RunningTextColumn:
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


@dataclass(frozen=True)
class LabelColumn:
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
class ImageColumn:
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
class FeatureColumn:
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


Column = TextColumn | RunningTextColumn | LabelColumn | ImageColumn | FeatureColumn


@dataclass(frozen=True)
class MultiSourceColumn:
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


SourceColumn = Column | MultiSourceColumn


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
        self.ids = self.array("ids", np.uint16 if vocabulary <= 1 << 16 else np.uint32)
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


class ImageWriter(ColumnWriter):
    """Writes images, read by a few threads and written in order."""

    def __init__(self, stem: Path, field: FieldConfig) -> None:
        super().__init__(stem)
        self.field, size = field, field.image_size
        self.known: dict[Path | Member, int] = {}  # files that several examples may use
        self.pixels, self.which = (
            self.array("pixels", np.uint8, (size, size, 3)),
            self.array("which", np.int64),
        )

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
                loaded = pool.map(lambda image: load_image(image, *self.field.resizing), chunk)
                self.pixels.add(np.stack(list(loaded)))
        self.which.add(np.array(which, dtype=np.int64))


def open_column(stem: Path, context_length: int | None) -> Column:
    """The column that a writer stored under this name."""
    if (labels := _file(stem, "labels")).exists():
        return LabelColumn(memory_map(labels))
    if (which := _file(stem, "which")).exists():
        return ImageColumn(memory_map(_file(stem, "pixels")), memory_map(which))
    ids = memory_map(_file(stem, "ids"))
    if context_length is not None:
        return RunningTextColumn(ids, context_length)
    ends = memory_map(_file(stem, "ends"))
    if (int(ends[-1]) if len(ends) else 0) != len(ids):
        raise damaged(stem, f"{len(ids):,} tokens where the last text ends at {int(ends[-1]):,}")
    return TextColumn(ids, ends)


def _file(stem: Path, array: str) -> Path:
    return stem.with_name(f"{stem.name}.{array}.npy")


def damaged(path: Path, got: str) -> InvalidData:
    remedy = f"Delete {path.parent} and prepare again."
    return InvalidData(path, wanted="a whole prepared corpus", got=got, remedy=remedy)


class _GrowingArray:
    """A .npy file whose length is known only at the end; NumPy's header has space for it."""

    def __init__(self, path: Path, dtype: np.dtype[Any], each: tuple[int, ...] = ()) -> None:
        self.path, self.dtype, self.each, self.count = path, dtype, each, 0
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
