"""A source of vectors in a look: its numbers as the model read them, and the times of the encoder's positions."""

import base64
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.time_axis import TimeAxis
from regard.interpret.tokens_to_words import CLS_TOKEN

MOST_LINES = (
    16  # numbers of a vector that are drawn as a line each; more are a picture, as of a spectrogram
)
COLUMNS = 1024  # points of time in JSON: of a longer series, each stands for several vectors
ROWS = 128  # rows of a picture in JSON
LEVELS = 65534  # of a number in JSON
MISSING = 65535  # what a number in JSON is that is not known


@dataclass(frozen=True)
class Series:
    """A sequence of vectors, and the positions that an encoder makes of it.

    values   (length, dimension), in the units of the data
    axis     the times of the vectors
    stride   vectors from one position of the encoder to the next
    units    learned states before the positions
    names    of the numbers of a vector, where these have any
    skipped  vectors before the first, which were given and the model does not read
    separate how many channels, the first ones, are read apart, with an attention each; 0: none
    channel  of these, the one whose attention is shown, from 0
    """

    values: NDArray[np.float32]
    axis: TimeAxis = field(default_factory=TimeAxis)
    stride: int = 1
    units: int = 0
    names: tuple[str, ...] = ()
    skipped: int = 0
    separate: int = 0
    channel: int = 0

    def read_by(self, stride: int, units: int) -> "Series":
        """The same series as an encoder reads it."""
        return replace(self, stride=stride, units=units)

    @property
    def positions(self) -> int:
        """The number of positions, without learned states."""
        return -(-len(self.values) // self.stride)

    @cached_property
    def tokens(self) -> tuple[str, ...]:
        """Names of the encoder's states: of each, the time of the first vector that it stands for."""
        times = self.axis.names(range(0, len(self.values), self.stride))
        return (*(CLS_TOKEN,) * self.units, *times)

    @property
    def title(self) -> str:
        """How many vectors are read, if not all, and which channel's attention is shown, if they have several."""
        parts = []
        if self.skipped:
            count = len(self.values)
            parts.append(f"the last {count} of {count + self.skipped} vectors")
        if self.separate:
            parts.append(f"attention of channel {self.channels[self.channel]}")
        return ", ".join(parts)

    @property
    def is_picture(self) -> bool:
        """Whether a vector has so many numbers that they are drawn as a picture."""
        return bool(self.values.shape[1] > MOST_LINES)

    @property
    def channels(self) -> tuple[str, ...]:
        """The names of the numbers of a vector, or their numbers from 1."""
        count = self.values.shape[1]
        if len(self.names) == count:
            return self.names
        return tuple(str(number) for number in range(1, count + 1))

    def extremes(self, columns: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """The least and the largest number of each channel, (dimension, columns), in spans of equal time."""
        starts = span_starts(len(self.values), columns)
        # Missing numbers, which are NaN, are left out where others are known.
        least = np.fmin.reduceat(self.values, starts, axis=0)  # (columns, dimension)
        most = np.fmax.reduceat(self.values, starts, axis=0)
        return least.T, most.T

    def means(self, columns: int, rows: int) -> NDArray[np.float32]:
        """Mean numbers (rows, columns), of spans of equal time and of neighbouring channels."""
        across = span_means(self.values, columns)  # (columns, dimension)
        return span_means(across.T, rows)

    def as_dict(self) -> dict[str, Any]:
        """For pages: the numbers at most of `COLUMNS` points of time, as 16 bits between the least and the most."""
        length, dimension = self.values.shape
        columns = min(length, COLUMNS)
        if self.is_picture:
            numbers = self.means(columns, min(dimension, ROWS))[None]  # (1, rows, columns)
        else:
            numbers = np.stack(self.extremes(columns))  # (2, channels, columns)
        # The range of each channel is its own; all rows of a picture have one.
        axes = None if self.is_picture else (0, 2)
        known = np.isfinite(numbers)
        least = np.min(numbers, axis=axes, keepdims=True, where=known, initial=np.inf)
        most = np.max(numbers, axis=axes, keepdims=True, where=known, initial=-np.inf)
        # Of a channel of which no number is known.
        nothing = least > most
        least = np.where(nothing, 0.0, least)
        most = np.where(nothing, 0.0, most)
        shares = (numbers - least) / np.where(most > least, most - least, 1.0)
        data = np.where(known, np.rint(shares * LEVELS), MISSING).astype("<u2")
        return {
            "kind": "series",
            "tokens": self.tokens,
            "units": self.units,
            "stride": self.stride,
            "length": length,
            "channels": self.channels,
            "skipped": self.skipped,
            "separate": self.separate,
            "channel": self.channel + 1 if self.separate else None,
            "picture": self.is_picture,
            "least": least.reshape(-1).tolist(),
            "most": most.reshape(-1).tolist(),
            "shape": list(data.shape),
            "data": base64.b64encode(data.tobytes()).decode(),
        }


def span_starts(length: int, count: int) -> NDArray[np.int64]:
    """Where each of `count` spans of nearly equal length begins."""
    starts: NDArray[np.int64] = np.arange(count) * length // count
    return starts


def span_means(values: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """The mean over each of `count` spans of the first axis; NaN where no number of a span is known."""
    if count >= len(values):
        return values
    starts = span_starts(len(values), count)
    known = np.isfinite(values)
    sums = np.add.reduceat(np.where(known, values, 0.0).astype(np.float64), starts, axis=0)
    counts = np.add.reduceat(known.astype(np.int64), starts, axis=0)
    means = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    found: NDArray[np.float32] = means.astype(np.float32)
    return found
