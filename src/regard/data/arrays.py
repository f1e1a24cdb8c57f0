"""Columns of a corpus as arrays, memory-mapped from disk: concatenated texts, running text, labels, images."""

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from regard.core.errors import InvalidArgument, InvalidData
from regard.core.sequence import FeatureGrids, MultiSource, Tokens
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
        _check(i, len(self))
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
        _check(i, len(self))
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
        _check(i, len(self))
        return int(self.labels[i])

    def gather(self, indices: Indices) -> torch.Tensor:
        return torch.from_numpy(self.labels[indices].astype(np.int64))


@dataclass(frozen=True)
class ImageColumn:
    """Images, each stored once however many examples use it."""

    pixels: NDArray[np.uint8]  # (P, Y, X, 3)
    which: NDArray[np.int64]  # the image of each example

    def __len__(self) -> int:
        return len(self.which)

    def lengths(self, indices: Indices) -> Indices:
        """In tokens of a batch's size."""
        return np.full(len(indices), image_token_cost(self.pixels.shape[1]), dtype=np.int64)

    def row(self, i: int) -> NDArray[np.uint8]:
        _check(i, len(self))
        return np.array(self.pixels[self.which[i]])

    def gather(self, indices: Indices) -> torch.Tensor:
        return normalize(self.pixels[self.which[indices]])


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


def text_column(rows: Sequence[Sequence[int]], vocabulary: int) -> TextColumn:
    """A column of texts in memory."""
    ends = np.cumsum([len(row) for row in rows], dtype=np.int64)
    return TextColumn(_flat(rows, _dtype(vocabulary)), ends)


class TextWriter:
    """Writes texts to files, in chunks."""

    def __init__(self, stem: Path, vocabulary: int) -> None:
        self.ids = _GrowingArray(stem.with_name(f"{stem.name}.ids.npy"), _dtype(vocabulary))
        self.ends = _GrowingArray(stem.with_name(f"{stem.name}.ends.npy"), np.dtype(np.int64))

    def add(self, rows: Sequence[Sequence[int]]) -> None:
        self.ends.add(self.ids.count + np.cumsum([len(row) for row in rows], dtype=np.int64))
        self.ids.add(_flat(rows, self.ids.dtype))

    def close(self) -> None:
        self.ids.close()
        self.ends.close()


class RunningTextWriter:
    """Writes running text to a file, in chunks."""

    def __init__(self, stem: Path, vocabulary: int) -> None:
        self.ids = _GrowingArray(stem.with_name(f"{stem.name}.ids.npy"), _dtype(vocabulary))

    def add(self, rows: Sequence[Sequence[int]]) -> None:
        self.ids.add(_flat(rows, self.ids.dtype))

    def close(self) -> None:
        self.ids.close()


class LabelWriter:
    """Writes label ids to a file, in chunks."""

    def __init__(self, stem: Path) -> None:
        self.labels = _GrowingArray(stem.with_name(f"{stem.name}.labels.npy"), np.dtype(np.uint32))

    def add(self, labels: Iterable[int]) -> None:
        self.labels.add(np.fromiter(labels, dtype=np.uint32))

    def close(self) -> None:
        self.labels.close()


class ImageWriter:
    """Writes images to files, read by a few threads and written in order."""

    def __init__(self, stem: Path, size: int) -> None:
        self.size = size
        self.known: dict[Path | Member, int] = {}  # files that several examples may use
        self.pixels = _GrowingArray(stem.with_name(f"{stem.name}.pixels.npy"), np.dtype(np.uint8), (size, size, 3))
        self.which = _GrowingArray(stem.with_name(f"{stem.name}.which.npy"), np.dtype(np.int64))

    def add(self, images: Sequence[ImageInput]) -> None:
        which: list[int] = []
        new: list[ImageInput] = []
        for image in images:
            number = self.pixels.count + len(new)
            if isinstance(image, Path | Member):
                number = self.known.setdefault(image, number)
            if number == self.pixels.count + len(new):
                new.append(image)
            which.append(number)
        with ThreadPoolExecutor(WORKERS) as pool:
            for first in range(0, len(new), CHUNK):
                chunk = new[first : first + CHUNK]
                self.pixels.add(np.stack(list(pool.map(load_image, chunk, [self.size] * len(chunk)))))
        self.which.add(np.array(which, dtype=np.int64))

    def close(self) -> None:
        self.pixels.close()
        self.which.close()


Writer = TextWriter | RunningTextWriter | LabelWriter | ImageWriter


def open_column(stem: Path, context_length: int | None) -> Column:
    """The column that a writer stored under this name."""
    labels = stem.with_name(f"{stem.name}.labels.npy")
    if labels.exists():
        return LabelColumn(memory_map(labels))
    which = stem.with_name(f"{stem.name}.which.npy")
    if which.exists():
        return ImageColumn(memory_map(stem.with_name(f"{stem.name}.pixels.npy")), memory_map(which))
    ids = memory_map(stem.with_name(f"{stem.name}.ids.npy"))
    if context_length is not None:
        return RunningTextColumn(ids, context_length)
    ends = memory_map(stem.with_name(f"{stem.name}.ends.npy"))
    if (int(ends[-1]) if len(ends) else 0) != len(ids):
        raise damaged(stem, f"{len(ids):,} tokens where the last text ends at {int(ends[-1]):,}")
    return TextColumn(ids, ends)


def damaged(path: Path, got: str) -> InvalidData:
    return InvalidData(
        path, wanted="a whole prepared corpus", got=got, remedy=f"Delete {path.parent} and prepare again."
    )


class _GrowingArray:
    """A .npy file whose length is known only at the end; NumPy's header has space for it."""

    def __init__(self, path: Path, dtype: np.dtype[Any], each: tuple[int, ...] = ()) -> None:
        self.path, self.dtype, self.each, self.count = path, dtype, each, 0
        path.touch()
        self._write_header()

    def add(self, values: NDArray[Any]) -> None:
        with self.path.open("ab") as file:
            file.write(values.astype(self.dtype, copy=False).tobytes())
        self.count += len(values)

    def close(self) -> None:
        self._write_header()

    def _write_header(self) -> None:
        header = {"descr": self.dtype.str, "fortran_order": False, "shape": (self.count, *self.each)}
        with self.path.open("r+b") as file:
            np.lib.format.write_array_header_1_0(file, header)
            file.flush()
            os.fsync(file.fileno())


def memory_map(path: Path) -> NDArray[Any]:
    try:
        return cast(NDArray[Any], np.load(path, mmap_mode="r", allow_pickle=False))
    except (OSError, ValueError, EOFError) as error:
        raise damaged(path, str(error)) from None


def _padded(ids: Ids, starts: Indices, lengths: Indices) -> Tokens:
    positions = np.arange(int(lengths.max()))
    mask = positions < lengths[:, None]  # (B, S)
    padded = np.zeros(mask.shape, dtype=np.int64)
    padded[mask] = ids[(starts[:, None] + positions)[mask]]
    return Tokens(torch.from_numpy(padded), torch.from_numpy(lengths))


def _flat(rows: Sequence[Sequence[int]], dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.fromiter(chain.from_iterable(rows), dtype=dtype, count=sum(map(len, rows)))


def _dtype(vocabulary: int) -> np.dtype[Any]:
    return np.dtype(np.uint16 if vocabulary <= 1 << 16 else np.uint32)


def _check(i: int, length: int) -> None:
    if not 0 <= i < length:
        raise InvalidArgument("i", wanted=f"an example from 0 to {length - 1}", got=str(i), remedy="Count from 0.")
