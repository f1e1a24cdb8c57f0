"""Audio of unknown length from a pipe or a file, block by block: WAV, or raw samples of a given format.

Nothing is sought, so that a stream is read once from its beginning, and no more of it is kept than one block.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from regard.core.config import nearest
from regard.core.errors import InvalidArgument, InvalidData
from regard.data.wav import (
    CONVERT,
    MOST_CHANNELS,
    MOST_CHUNKS,
    MOST_FORMAT_BYTES,
    RATES,
    Samples,
    WavFormat,
    check_riff,
    damaged,
    mixed_samples,
    sample_format,
)

BLOCK_SECONDS = 1
MOST_SKIPPED = 1 << 24  # bytes of a chunk before the samples
# Programs that write WAV to a pipe cannot know the size of the samples: they write 0, or about the largest number.
LEAST_UNKNOWN = 0x7FFF_0000
RAW_FORMATS = {  # the names that ffmpeg gives them
    "u8": ("integer", 8),
    "s16le": ("integer", 16),
    "s24le": ("integer", 24),
    "s32le": ("integer", 32),
    "f32le": ("float", 32),
    "f64le": ("float", 64),
}


@runtime_checkable
class ReadableAudio(Protocol):
    """An open binary file, a pipe or a socket: bytes from where it is."""

    def read(self, size: int, /) -> bytes:
        """So many bytes, fewer only at the end."""


@dataclass(frozen=True)
class AudioStream:
    """Audio whose samples begin at the place where `file` is.

    name     for messages
    format   of the samples; `frames` is how many follow, or 0 where that is not known
    """

    name: str
    file: ReadableAudio
    format: WavFormat

    @property
    def rate(self) -> int:
        return self.format.rate

    def blocks(self) -> Iterator[Samples]:
        """The mean of all channels, a second at a time, as soon as it is there."""
        size = self.format.frame_bytes
        announced = self.format.frames
        read = 0
        while not announced or read < announced:
            wanted = BLOCK_SECONDS * self.rate
            if announced:
                wanted = min(wanted, announced - read)
            block = self.file.read(wanted * size)
            count = len(block) // size
            if count:
                yield mixed_samples(block[: count * size], self.format, self.name, read)
            read += count
            if len(block) < wanted * size:
                self._check_end(read, len(block) % size)
                return

    def _check_end(self, read: int, left: int) -> None:
        """Refuse a stream that ended where it should not, after what came before was read."""
        if not read and not left:
            raise InvalidData(
                self.name, wanted="audio", got="no sample", remedy="Look at what writes it."
            )
        if self.format.frames:
            raise InvalidData(
                self.name,
                wanted=f"{self.format.frames:,} samples, as its header says",
                got=f"{read:,}: the audio is cut off",
                remedy="Look at what writes it.",
            )
        if left:
            raise InvalidData(
                self.name,
                wanted=f"samples of {self.format.frame_bytes} bytes for all channels",
                got=f"{left} bytes more at the end",
                remedy="Check the format of the samples and the number of channels.",
            )


def raw_format(name: str, rate: int | None, channels: int = 1) -> WavFormat:
    """The format of raw samples; `name` is one of `RAW_FORMATS`."""
    if name not in RAW_FORMATS:
        remedy = nearest(name, RAW_FORMATS, listed=True)
        raise InvalidArgument(
            "raw", wanted="the format of the samples", got=repr(name), remedy=remedy
        )
    if rate is None or rate not in RATES:
        raise InvalidArgument(
            "rate",
            wanted=f"{RATES[0]:,} to {RATES[-1]:,} samples per second, for raw audio",
            got="none" if rate is None else f"{rate:,}",
            remedy="Give the rate at which the audio was recorded.",
        )
    if not 1 <= channels <= MOST_CHANNELS:
        raise InvalidArgument(
            "channels", wanted=f"1 to {MOST_CHANNELS}", got=str(channels), remedy="Correct it."
        )
    kind, bits = RAW_FORMATS[name]
    return WavFormat(rate, channels, "float" if kind == "float" else "integer", bits, 0, 0)


def wav_stream(file: ReadableAudio, name: str) -> AudioStream:
    """A WAV stream, whose header is read."""
    check_riff(file.read(12), name, "nothing")
    format_chunk = b""
    for _ in range(MOST_CHUNKS):
        header = file.read(8)
        if len(header) < 8:
            break
        chunk, length = struct.unpack("<4sI", header)
        if chunk == b"data":
            if not format_chunk:
                raise damaged(name, "samples before the chunk 'fmt '")
            found = WavFormat(*sample_format(name, format_chunk), 0, 0)
            if not 0 < length < LEAST_UNKNOWN:
                return AudioStream(name, file, found)
            if length % found.frame_bytes:
                got = f"{length:,} bytes of samples, {found.frame_bytes} for all channels"
                raise damaged(name, got)
            return AudioStream(name, file, replace(found, frames=length // found.frame_bytes))
        if length > MOST_SKIPPED:
            raise InvalidData(
                name,
                wanted=f"at most {MOST_SKIPPED:,} bytes in a chunk before the samples",
                got=f"{length:,}",
                remedy=CONVERT,
            )
        # A chunk of an odd number of bytes is followed by one byte of padding.
        content = file.read(length + length % 2)
        if chunk == b"fmt ":
            format_chunk = content[: min(length, MOST_FORMAT_BYTES)]
    raise damaged(name, "no samples (no chunk 'data')")
