"""WAV files: PCM of 8, 16, 24 and 32 bits and floating point of 32 and 64 bits,
any number of channels as their mean.

A header says how many bytes of samples follow. Nothing is allocated on its word: what it says is
first compared with the bytes that there are and with a limit. Long files are read piece by piece
(`WavFile.samples`).
"""

import io
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from regard.core.errors import InvalidData
from regard.data.text import open_regular, readable

PCM = 1
FLOAT = 3
EXTENSIBLE = 0xFFFE
# The last 14 bytes of the sub-format of WAVE_FORMAT_EXTENSIBLE, after the number of the format.
SUBFORMAT_END = bytes.fromhex("000000001000800000aa00389b71")
UNKNOWN_SIZE = 0xFFFFFFFF  # of a file that was written to a pipe: its samples end with the file
RATES = range(1000, 768_001)
MOST_CHANNELS = 256
MOST_CHUNKS = 1000  # before the samples
MOST_FORMAT_BYTES = 4096
MOST_SECONDS = 24 * 3600.0
BLOCK = 1 << 16  # numbers that are decoded at once
SAMPLE_FORMATS = {("integer", bits): bits // 8 for bits in (8, 16, 24, 32)} | {
    ("float", bits): bits // 8 for bits in (32, 64)
}
READABLE = "PCM of 8, 16, 24 or 32 bits, or floating point of 32 or 64 bits"
CONVERT = "Convert it to WAV of 16 bits."

Samples = NDArray[np.float32]  # (N,), of one channel, PCM scaled to -1 ... 1
BinaryFile = io.BufferedReader | io.BytesIO


@dataclass(frozen=True)
class WavFormat:
    """What the header of a WAV file says.

    rate       samples of a channel per second
    kind       of the numbers
    bits       of a number
    frames     samples of each channel
    begin      the byte at which the samples begin
    """

    rate: int
    channels: int
    kind: Literal["integer", "float"]
    bits: int
    frames: int
    begin: int

    @property
    def frame_bytes(self) -> int:
        return self.channels * self.bits // 8

    @property
    def seconds(self) -> float:
        return self.frames / self.rate


@dataclass(frozen=True)
class WavFile:
    """An open WAV file."""

    name: str
    file: BinaryFile
    format: WavFormat

    @property
    def rate(self) -> int:
        return self.format.rate

    def __len__(self) -> int:
        """Samples of each channel."""
        return self.format.frames

    def samples(self, first: int = 0, last: int | None = None) -> Samples:
        """The mean of all channels from sample `first` to sample `last`; by default all."""
        last = len(self) if last is None else min(last, len(self))
        mixed = np.empty(max(0, last - first), np.float32)
        step = max(1, BLOCK // self.format.channels)
        self.file.seek(self.format.begin + first * self.format.frame_bytes)
        for begin in range(first, last, step):
            count = min(step, last - begin)
            block = self.file.read(count * self.format.frame_bytes)
            if len(block) < count * self.format.frame_bytes:
                raise self._changed()
            means = mixed_samples(block, self.format, self.name, begin)
            mixed[begin - first : begin - first + count] = means
        return mixed

    def _changed(self) -> InvalidData:
        return InvalidData(
            self.name,
            wanted="a file that does not change while it is read",
            got="one that became shorter",
            remedy="Begin again when it is complete.",
        )


@contextmanager
def open_wav(
    source: str | Path | bytes, name: str | None = None, *, most_seconds: float = MOST_SECONDS
) -> Iterator[WavFile]:
    """A WAV file, or the bytes of one, whose header has been checked.

    name           for messages; by default the path
    most_seconds   a longer one is refused
    """
    if isinstance(source, bytes):
        shown = name or "audio"
        with io.BytesIO(source) as file:
            yield WavFile(shown, file, read_format(file, shown, most_seconds))
        return
    shown = name or str(source)
    with readable(source), open_regular(source) as file:
        yield WavFile(shown, file, read_format(file, shown, most_seconds))


def read_wav(
    source: str | Path | bytes, name: str | None = None, *, most_seconds: float = MOST_SECONDS
) -> tuple[Samples, int]:
    """All samples of a WAV file, the mean of its channels, and their rate."""
    with open_wav(source, name, most_seconds=most_seconds) as wav:
        return wav.samples(), wav.rate


def read_format(file: BinaryFile, name: str, most_seconds: float = MOST_SECONDS) -> WavFormat:
    """The header of a WAV file, of which `name` is shown in messages."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    check_riff(file.read(12), name, "an empty file")
    found: tuple[int, int, Literal["integer", "float"], int] | None = None
    for _ in range(MOST_CHUNKS):
        header = file.read(8)
        if len(header) < 8:
            break
        chunk, length = struct.unpack("<4sI", header)
        begin = file.tell()
        if chunk == b"data":
            if found is None:
                raise damaged(name, "samples before the chunk 'fmt '")
            return _with_samples(name, found, begin, length, size, most_seconds)
        if begin + length > size:
            raise damaged(name, f"a chunk {_chunk_name(chunk)} of {length:,} bytes in {size:,}")
        if chunk == b"fmt ":
            found = sample_format(name, file.read(min(length, MOST_FORMAT_BYTES)))
        # A chunk of an odd number of bytes is followed by one byte of padding.
        file.seek(begin + length + length % 2)
    raise damaged(name, "no samples (no chunk 'data')")


def check_riff(start: bytes, name: str, empty: str) -> None:
    """Refuse what does not begin as a WAV file; `empty` says what one without any byte is."""
    if not start:
        raise InvalidData(name, wanted="a WAV file", got=empty, remedy="Leave it out.")
    if start[:4] == b"RIFF" and start[8:] == b"WAVE":
        return
    got = f"a file that begins with {start[:4]!r}"
    if start[:4] in (b"RF64", b"RIFX"):
        got = f"one of the form {start[:4].decode()}"
    raise InvalidData(name, wanted="a WAV file (RIFF)", got=got, remedy=CONVERT)


def mixed_samples(block: bytes, of: WavFormat, name: str, first: int) -> Samples:
    """The mean of all channels of some samples, the first of which is number `first` of those of `name`, from 0."""
    numbers = decoded(block, of).reshape(-1, of.channels)  # (n, channels)
    means = numbers.mean(1)
    if not np.isfinite(means).all():
        place = first + int(np.flatnonzero(~np.isfinite(means))[0])
        raise InvalidData(
            name,
            wanted="finite samples",
            got=f"one that is not finite, sample {place + 1:,}",
            remedy="Repair the recording, or leave it out.",
        )
    mixed: Samples = means.astype(np.float32)
    return mixed


def decoded(block: bytes, of: WavFormat) -> NDArray[np.float64]:
    """Numbers of a file as floating point; integers are scaled to -1 ... 1."""
    if of.kind == "float":
        # Samples that are no numbers are found after the channels were mixed.
        with np.errstate(invalid="ignore", over="ignore"):
            samples: NDArray[np.float64] = np.frombuffer(block, f"<f{of.bits // 8}").astype(
                np.float64
            )
            return samples
    if of.bits == 8:
        return (np.frombuffer(block, np.uint8).astype(np.float64) - 128) / 128
    if of.bits == 24:
        # Numbers of three bytes, in the upper bytes of numbers of four.
        wide = np.zeros((len(block) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(block, np.uint8).reshape(-1, 3)
        numbers: NDArray[np.float64] = wide.view("<i4")[:, 0].astype(np.float64)
        return numbers / 2**31
    integers: NDArray[np.float64] = np.frombuffer(block, f"<i{of.bits // 8}").astype(np.float64)
    return integers / float(2 ** (of.bits - 1))


def write_wav(samples: NDArray[np.floating], rate: int) -> bytes:
    """One channel as a WAV file of 16 bits; samples beyond -1 ... 1 are cut off."""
    scaled = np.rint(np.asarray(samples, np.float64) * 2**15)
    data = scaled.clip(-(2**15), 2**15 - 1).astype("<i2").tobytes()
    header = struct.pack("<4sIHHIIHH", b"fmt ", 16, PCM, 1, rate, 2 * rate, 2, 16)
    chunks = header + struct.pack("<4sI", b"data", len(data)) + data
    return struct.pack("<4sI4s", b"RIFF", 4 + len(chunks), b"WAVE") + chunks


def sample_format(name: str, chunk: bytes) -> tuple[int, int, Literal["integer", "float"], int]:
    """The rate, the channels, and the kind and bits of the numbers, as the chunk 'fmt ' gives them."""
    if len(chunk) < 16:
        raise damaged(name, f"a chunk 'fmt ' of {len(chunk)} bytes")
    code, channels, rate, _, frame_bytes, bits = struct.unpack("<HHIIHH", chunk[:16])
    if code == EXTENSIBLE:
        if len(chunk) < 40:
            raise damaged(name, f"an extensible format of {len(chunk)} bytes")
        if chunk[26:40] != SUBFORMAT_END:
            got = f"the sub-format {chunk[24:40].hex()}"
            raise InvalidData(name, wanted=READABLE, got=got, remedy=CONVERT)
        code = struct.unpack("<H", chunk[24:26])[0]
    kinds: dict[int, Literal["integer", "float"]] = {PCM: "integer", FLOAT: "float"}
    kind = kinds.get(code)
    if kind is None or (kind, bits) not in SAMPLE_FORMATS:
        got = f"{bits} bits of the format {code:#06x}"
        raise InvalidData(name, wanted=READABLE, got=got, remedy=CONVERT)
    if rate not in RATES:
        wanted = f"{RATES[0]:,} to {RATES[-1]:,} samples per second"
        raise InvalidData(name, wanted=wanted, got=f"{rate:,}", remedy=CONVERT)
    if not 1 <= channels <= MOST_CHANNELS:
        wanted = f"1 to {MOST_CHANNELS} channels"
        raise InvalidData(name, wanted=wanted, got=f"{channels:,}", remedy=CONVERT)
    if frame_bytes != channels * bits // 8:
        raise damaged(name, f"{frame_bytes} bytes for {channels} channels of {bits} bits")
    return rate, channels, kind, bits


def _with_samples(
    name: str,
    of: tuple[int, int, Literal["integer", "float"], int],
    begin: int,
    length: int,
    size: int,
    most_seconds: float,
) -> WavFormat:
    rate, channels, kind, bits = of
    frame_bytes = channels * bits // 8
    if length == UNKNOWN_SIZE:
        length = (size - begin) // frame_bytes * frame_bytes
    if begin + length > size:
        raise InvalidData(
            name,
            wanted=f"{length:,} bytes of samples, as its header says",
            got=f"{size - begin:,}: the file is cut off, or its header is wrong",
            remedy="Record or copy it again.",
        )
    if length % frame_bytes:
        raise damaged(name, f"{length:,} bytes of samples, {frame_bytes} for all channels")
    frames = length // frame_bytes
    if not frames:
        raise InvalidData(
            name, wanted="at least one sample", got="none", remedy="Leave the recording out."
        )
    found = WavFormat(rate, channels, kind, bits, frames, begin)
    if found.seconds > most_seconds:
        raise InvalidData(
            name,
            wanted=f"at most {most_seconds:g} seconds",
            got=f"{found.seconds:,.1f}",
            remedy="Split the recording, or raise the limit.",
        )
    return found


def _chunk_name(chunk: bytes) -> str:
    return repr(chunk.decode("latin-1"))


def damaged(name: str, got: str) -> InvalidData:
    return InvalidData(name, wanted="a WAV file that is whole", got=got, remedy=CONVERT)
