"""Columns of a corpus: the values of one field of all examples of a split, as arrays."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from regard.core.joined_tokens import JoinedTokens
from regard.core.sequence import FeatureGrids, MultiSource, Tokens, Vectors
from regard.data.images import HALVES, image_token_cost, normalize

Indices = NDArray[np.int64]
Ids = NDArray[Any]  # uint16, or uint32 for a vocabulary that needs it


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
    """One long text in contexts.

    Each begins with the last token of the one before, so each token is predicted once.
    """

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
    """Features of images.

    They count as their images in a batch's size, so that batches are the same.
    """

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


def _padded(ids: Ids, starts: Indices, lengths: Indices) -> Tokens:
    positions = np.arange(int(lengths.max()))
    mask = positions < lengths[:, None]  # (B, S)
    padded = np.zeros(mask.shape, dtype=np.int64)
    padded[mask] = ids[(starts[:, None] + positions)[mask]]
    return Tokens(torch.from_numpy(padded), torch.from_numpy(lengths))
