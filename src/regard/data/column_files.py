"""Columns of a corpus in files: writers of .npy files in chunks,
and columns memory-mapped from them.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.columns import (
    ImageColumn,
    LabelColumn,
    LabelSetColumn,
    NumberColumn,
    RunningTextColumn,
    SlicedRows,
    TextColumn,
    VectorColumn,
    WindowColumn,
)
from regard.data.image_store import Member
from regard.data.images import ImageInput, ResizeFilter, load_image
from regard.data.mapped_arrays import GrowingArray, damaged, memory_map

WORKERS = min(4, os.cpu_count() or 1)  # threads that read images
CHUNK = 64  # images held in memory while they are written


class ColumnWriter(ABC):
    """Writes a column to .npy files, in chunks."""

    def __init__(self, stem: Path) -> None:
        self.stem = stem
        self.arrays: list[GrowingArray] = []

    def array(self, name: str, dtype: type[np.generic], each: tuple[int, ...] = ()) -> GrowingArray:
        """A new file of the column, of items of one shape."""
        self.arrays.append(GrowingArray(_file(self.stem, name), np.dtype(dtype), each))
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
        self.begins: GrowingArray | None = None
        # Where each array starts of which windows are written; the array is kept,
        # so that its id stays its own.
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


def open_text(stem: Path, context_length: int | None) -> TextColumn | RunningTextColumn:
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


def open_numbers(stem: Path) -> NumberColumn:
    """The numbers that a `NumberWriter` stored under this name."""
    return NumberColumn(memory_map(_file(stem, "numbers")))


def open_label_sets(stem: Path, labels: int) -> LabelSetColumn:
    """The labels that a `TextWriter` stored under this name, several for each example."""
    ids = memory_map(_file(stem, "ids"))
    return LabelSetColumn(ids, _open_ends(stem, len(ids)), labels)


def open_vectors(stem: Path) -> VectorColumn:
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
