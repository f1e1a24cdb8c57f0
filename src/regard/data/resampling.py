"""Resampling: the same sound at another rate, by a windowed sinc.

The filter is that of torchaudio.transforms.Resample with `sinc_interp_kaiser` and the settings that
its documentation gives for the "kaiser_best" of librosa. Weights are computed in float64 for every
distance between an output and its inputs; where the rates have a common divisor, distances repeat
and are computed once.
"""

from collections.abc import Callable
from functools import lru_cache
from math import ceil, gcd

import numpy as np
from numpy.typing import NDArray

ZEROS = 64  # zero crossings of the sinc on either side
ROLLOFF = 0.9475937167399596  # the cut-off, as a share of the lower of the two Nyquist frequencies
BETA = 14.769656459379492  # of the Kaiser window
MOST_KEPT = 1 << 20  # weights of all phases that are kept
CHUNK = 1 << 21  # weights that are applied at once

Reader = Callable[[int, int], NDArray[np.float32]]


def resampled_length(length: int, rate: int, new_rate: int) -> int:
    """How many samples at the new rate replace these."""
    return -(-length * new_rate // rate)


def resample(samples: NDArray[np.floating], rate: int, new_rate: int) -> NDArray[np.float32]:
    """Samples (N,) of the rate `rate` at `new_rate`; before the first and after the last,
    there is silence.
    """
    total = resampled_length(len(samples), rate, new_rate)
    wide = np.asarray(samples, dtype=np.float32)
    return resample_part(lambda low, high: wide[low:high], len(wide), rate, new_rate, 0, total)


def resample_part(
    read: Reader, length: int, rate: int, new_rate: int, first: int, last: int
) -> NDArray[np.float32]:
    """The samples from `first` to `last` at the new rate, of a sound that is read in parts.

    read     (low, high) -> the samples from `low` to `high` at the old rate
    length   of the sound at the old rate
    """
    last = min(last, resampled_length(length, rate, new_rate))
    if last <= first:
        return np.zeros(0, np.float32)
    if rate == new_rate:
        return read(first, last)
    common = gcd(rate, new_rate)
    old_step = rate // common
    new_step = new_rate // common
    reach = _reach(old_step, new_step)
    low = first * old_step // new_step - reach
    high = (last - 1) * old_step // new_step + reach + 1
    begin = max(low, 0)
    end = min(high, length)
    inputs = np.pad(read(begin, end), (begin - low, high - end))
    offsets = np.arange(-reach, reach + 1)  # (taps,)
    result = np.empty(last - first, np.float32)
    rows = max(1, CHUNK // len(offsets))
    for row in range(first, last, rows):
        outputs = np.arange(row, min(row + rows, last), dtype=np.int64)  # (n,)
        nearest = outputs * old_step // new_step - low
        phases = outputs * old_step % new_step
        if new_step * len(offsets) <= MOST_KEPT:
            weights = _weights_of_all_phases(old_step, new_step)[phases]  # (n, taps)
        else:
            weights = _weights(old_step, new_step, phases)
        around = inputs[nearest[:, None] + offsets]  # (n, taps)
        result[row - first : row - first + len(outputs)] = (around * weights).sum(1)
    return result


def source_end(rate: int, new_rate: int, last: int) -> int:
    """How many samples at the old rate the samples before number `last` at the
    new rate depend on.
    """
    if rate == new_rate:
        return last
    common = gcd(rate, new_rate)
    old_step = rate // common
    new_step = new_rate // common
    return last * old_step // new_step + _reach(old_step, new_step) + 1


def source_begin(rate: int, new_rate: int, first: int) -> int:
    """The first sample at the old rate on which sample `first` at the new rate depends;
    may be below 0.
    """
    if rate == new_rate:
        return first
    common = gcd(rate, new_rate)
    old_step = rate // common
    new_step = new_rate // common
    return first * old_step // new_step - _reach(old_step, new_step)


def _reach(old_step: int, new_step: int) -> int:
    """Samples on either side that an output depends on."""
    return ceil(ZEROS * old_step / (min(old_step, new_step) * ROLLOFF)) + 1


@lru_cache(maxsize=8)
def _weights_of_all_phases(old_step: int, new_step: int) -> NDArray[np.float32]:
    return _weights(old_step, new_step, np.arange(new_step))


def _weights(old_step: int, new_step: int, phases: NDArray[np.int64]) -> NDArray[np.float32]:
    """The weights (phases, taps) of the inputs around outputs
    that lie `phases` / `new_step` after an input.
    """
    reach = _reach(old_step, new_step)
    offsets = np.arange(-reach, reach + 1)
    cutoff = min(old_step, new_step) * ROLLOFF / old_step  # in cycles per two samples
    distances = (offsets - phases[:, None] / new_step) * cutoff  # in zero crossings
    inside = np.abs(distances) < ZEROS
    window = np.i0(BETA * np.sqrt(np.where(inside, 1 - (distances / ZEROS) ** 2, 0.0)))
    weights = cutoff * np.sinc(distances) * window / np.i0(BETA)
    return np.where(inside, weights, 0.0).astype(np.float32)
