"""Log-mel features: audio as a sequence of vectors,
the logarithm of its power in bands of the mel scale.

Equal to `numpy.log(numpy.maximum(librosa.feature.melspectrogram(…), 1e-10))` with Slaney's mel
scale and norm, a Hann window in the middle of each frame's Fourier transform, and silence before
and after the sound.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from regard.core.config import Config, Count, Range, doc
from regard.core.errors import Problem
from regard.core.shapes import Float, Tensor
from regard.data.resampling import Reader, resample_part, resampled_length

SMALLEST_POWER = 1e-10
FRAMES = 4096  # whose spectra are in memory at once
# Slaney's scale: linear up to 1,000 Hz, logarithmic beyond.
LINEAR_HZ = 200 / 3  # in a mel
BREAK_HZ = 1000.0
BREAK_MEL = BREAK_HZ / LINEAR_HZ
LOG_STEP = np.log(6.4) / 27

SampleRate = Annotated[int, Range(1000.0, 192_000.0)]
Milliseconds = Annotated[float, Range(1.0, 1000.0)]
Hertz = Annotated[float, Range(0.0, 96_000.0)]
Seconds = Annotated[float, Range(0.1, 86_400.0)]


@dataclass(frozen=True)
class LogMelConfig(Config):
    """How audio becomes vectors: [data.source.features]."""

    kind: Literal["log-mel"] = doc(
        "log-mel", "the logarithm of the power in bands of the mel scale"
    )
    sample_rate: SampleRate = doc(
        16_000, "samples per second, to which audio of other rates is resampled"
    )
    mels: Count = doc(80, "bands: the numbers of each vector")
    window: Milliseconds = doc(25.0, "milliseconds of audio that a vector is computed from")
    hop: Milliseconds = doc(10.0, "milliseconds from one vector to the next")
    fmin: Hertz = doc(0.0, "the lowest frequency of the bands, in hertz")
    fmax: Hertz | None = doc(
        None, "the highest frequency of the bands, in hertz; by default half of sample_rate"
    )
    max_seconds: Seconds = doc(3600.0, "longer recordings are refused")

    def conflicts(self) -> Iterator[Problem]:
        nyquist = self.sample_rate / 2
        if not self.fmin < self.highest <= nyquist:
            wanted = f"above fmin = {self.fmin:g} and at most {nyquist:g}, half of sample_rate"
            yield Problem("fmax", wanted, f"{self.highest:g}", "Change it, or leave it out.")
            return
        if self.hop > self.window:
            wanted = f"at most window = {self.window:g}, so that all of the audio is read"
            yield Problem("hop", wanted, f"{self.hop:g}", "Lower it, or raise window.")
        if self.mels > self.bins:
            wanted = f"at most {self.bins}, the frequencies of a window"
            yield Problem("mels", wanted, str(self.mels), "Lower it, or raise window.")
            return
        empty = int((mel_filters(self).sum(1) == 0).sum())
        if empty:
            got = f"{self.mels}, of which {empty} lie between two frequencies of a window"
            remedy = "Lower it, raise window, or raise fmin."
            yield Problem("mels", "bands that have a frequency each", got, remedy)

    @property
    def highest(self) -> float:
        """The highest frequency of the bands."""
        return self.sample_rate / 2 if self.fmax is None else self.fmax

    @property
    def window_samples(self) -> int:
        return max(2, round(self.window * self.sample_rate / 1000))

    @property
    def hop_samples(self) -> int:
        return max(1, round(self.hop * self.sample_rate / 1000))

    @property
    def fft_size(self) -> int:
        """The power of two from the length of the window on."""
        return int(2 ** (self.window_samples - 1).bit_length())

    @property
    def bins(self) -> int:
        """Frequencies of a Fourier transform."""
        return self.fft_size // 2 + 1

    def frames(self, samples: int) -> int:
        """The vectors of so many samples of the rate `sample_rate`."""
        return 1 + samples // self.hop_samples


@dataclass(frozen=True)
class Recording:
    """Audio of any rate, of which parts are read as vectors.

    read     (first, last) -> these samples
    length   in samples
    rate     samples per second
    """

    read: Reader
    length: int
    rate: int

    @staticmethod
    def of(samples: NDArray[np.floating], rate: int) -> "Recording":
        """Audio in memory."""
        wide = np.asarray(samples, np.float32)
        return Recording(lambda first, last: wide[first:last], len(wide), rate)

    def frames(self, config: LogMelConfig) -> int:
        """The number of its vectors."""
        return config.frames(resampled_length(self.length, self.rate, config.sample_rate))

    def log_mel(
        self, config: LogMelConfig, first: int = 0, last: int | None = None
    ) -> NDArray[np.float32]:
        """The vectors (n, mels) from number `first` to number `last`; by default all."""
        count = self.frames(config)
        last = count if last is None else min(last, count)
        result = np.empty((max(0, last - first), config.mels), np.float32)
        for begin in range(first, last, FRAMES):
            end = min(begin + FRAMES, last)
            result[begin - first : end - first] = self._frames(config, begin, end)
        return result

    def _frames(self, config: LogMelConfig, first: int, last: int) -> NDArray[np.float32]:
        """A few vectors: frame i is around sample i · hop."""
        half = config.fft_size // 2
        low = first * config.hop_samples - half
        high = (last - 1) * config.hop_samples + half
        total = resampled_length(self.length, self.rate, config.sample_rate)
        begin = max(0, low)
        end = max(begin, min(high, total))
        samples = resample_part(self.read, self.length, self.rate, config.sample_rate, begin, end)
        padded = np.pad(samples, (begin - low, high - end))
        spectra = _power(torch.from_numpy(padded), config)  # (bins, n)
        bands = torch.from_numpy(mel_filters(config)) @ spectra  # (mels, n)
        logs: NDArray[np.float32] = bands.clamp(min=SMALLEST_POWER).log().T.numpy()
        return logs


def log_mel(samples: NDArray[np.floating], rate: int, config: LogMelConfig) -> NDArray[np.float32]:
    """The vectors (n, mels) of audio in memory."""
    return Recording.of(samples, rate).log_mel(config)


def _power(samples: Float[Tensor, " N"], config: LogMelConfig) -> Float[Tensor, "bins n"]:
    """The power of each frequency in each frame;
    a frame is a Hann window in the middle of zeros.
    """
    window = torch.hann_window(config.window_samples)
    spectra = torch.stft(
        samples,
        config.fft_size,
        hop_length=config.hop_samples,
        win_length=config.window_samples,
        window=window,
        center=False,
        return_complex=True,
    )
    return spectra.abs().square()


def mel_filters(config: LogMelConfig) -> NDArray[np.float32]:
    """The weight of each frequency in each band (mels, bins):
    triangles of equal area (Slaney's Auditory Toolbox).
    """
    return _filters(config.sample_rate, config.fft_size, config.mels, config.fmin, config.highest)


@lru_cache(maxsize=16)
def _filters(
    sample_rate: int, fft_size: int, mels: int, fmin: float, fmax: float
) -> NDArray[np.float32]:
    frequencies = np.linspace(0, sample_rate / 2, fft_size // 2 + 1)
    edges = _hertz_of_mel(np.linspace(_mel_of_hertz(fmin), _mel_of_hertz(fmax), mels + 2))
    widths = np.diff(edges)
    rising = (frequencies - edges[:-2, None]) / widths[:-1, None]  # (mels, bins)
    falling = (edges[2:, None] - frequencies) / widths[1:, None]  # (mels, bins)
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    areas = 2.0 / (edges[2:] - edges[:-2])
    return (triangles * areas[:, None]).astype(np.float32)


def _mel_of_hertz(hertz: float) -> float:
    if hertz < BREAK_HZ:
        return hertz / LINEAR_HZ
    return float(BREAK_MEL + np.log(hertz / BREAK_HZ) / LOG_STEP)


def _hertz_of_mel(mels: NDArray[np.float64]) -> NDArray[np.float64]:
    beyond = BREAK_HZ * np.exp(LOG_STEP * (np.maximum(mels, BREAK_MEL) - BREAK_MEL))
    return np.where(mels < BREAK_MEL, mels * LINEAR_HZ, beyond)
