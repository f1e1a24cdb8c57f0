"""Audio from a pipe: every form of WAV and of raw samples gives what its file gives, and errors name what is wrong."""

import io
import struct

import numpy as np
import pytest
from tests.support.audio import FLOAT, PCM, chunk, sound, stored, wav

from regard.core.errors import InvalidArgument, InvalidData
from regard.data.audio_stream import (
    MOST_SKIPPED,
    RAW_FORMATS,
    AudioStream,
    raw_format,
    wav_stream,
)
from regard.data.wav import read_wav

RATE = 8000
FORMS = [(PCM, 8), (PCM, 16), (PCM, 24), (PCM, 32), (FLOAT, 32), (FLOAT, 64)]


class Pipe(io.RawIOBase):
    """A file that cannot be sought."""

    def __init__(self, content):
        self.content = io.BytesIO(content)

    def read(self, size=-1):
        return self.content.read(size)

    def seek(self, *place):
        raise AssertionError("a pipe is read from its beginning to its end")

    tell = seek


@pytest.fixture(scope="module")
def stereo():
    """Two channels of a second and a half."""
    return np.stack((sound(RATE, 1.5, 1), sound(RATE, 1.5, 2)), 1)


def read(content):
    stream = wav_stream(Pipe(content), "x")
    blocks = list(stream.blocks())
    return np.concatenate(blocks), stream.rate


@pytest.mark.parametrize("extensible", [False, True])
@pytest.mark.parametrize(("kind", "bits"), FORMS)
def test_a_stream_has_the_samples_of_its_file(stereo, kind, bits, extensible):
    before = chunk(b"LIST", b"about")  # of an odd number of bytes
    content = wav(stereo, RATE, bits, kind, extensible=extensible, before=before)
    samples, rate = read(content)
    assert rate == RATE
    np.testing.assert_array_equal(samples, read_wav(content)[0])


@pytest.mark.parametrize("size", [0, 0xFFFF_FFFF, 0x7FFF_FFFF, 0x8000_0000, 0x7FFF_F000])
def test_samples_of_unknown_size_end_with_the_stream(stereo, size):
    content = wav(stereo, RATE, 16)
    samples, _ = read(wav(stereo, RATE, 16, data_size=size))
    np.testing.assert_array_equal(samples, read_wav(content)[0])


def test_what_follows_the_samples_is_not_read(stereo):
    content = wav(stereo, RATE, 16) + chunk(b"LIST", b"noise" * 100)
    assert len(read(content)[0]) == len(stereo)


def test_blocks_are_given_as_they_arrive(stereo):
    stream = wav_stream(Pipe(wav(stereo, RATE, 16)), "x")
    blocks = stream.blocks()
    assert len(next(blocks)) == RATE
    # Half a second is not read yet, and the header was.
    assert len(stream.file.content.read()) == RATE // 2 * 4


@pytest.mark.parametrize("name", RAW_FORMATS)
def test_raw_samples_are_those_of_a_file(stereo, name):
    kind, bits = RAW_FORMATS[name]
    code = FLOAT if kind == "float" else PCM
    raw = AudioStream("x", Pipe(stored(stereo, bits, code)), raw_format(name, RATE, 2))
    samples = np.concatenate(list(raw.blocks()))
    np.testing.assert_array_equal(samples, read_wav(wav(stereo, RATE, bits, code))[0])


def header(of=b"fmt ", length=16):
    return b"RIFF\0\0\0\0WAVE" + struct.pack("<4sI", of, length)


BROKEN = {
    "nothing": (b"", "wanted a WAV file; got nothing"),
    "text": (b"hello, world", "a file that begins with b'hell'"),
    "large": (b"RF64\0\0\0\0WAVE", "one of the form RF64"),
    "no samples": (header() + b"\0" * 16, "no samples"),
    "no format": (header(b"data", 4) + b"\0" * 4, "samples before the chunk 'fmt '"),
    "a large chunk": (header(b"LIST", MOST_SKIPPED + 1), "at most 16,777,216 bytes in a chunk"),
    "half a frame announced": (wav(np.zeros((4, 1)), RATE, 16, data_size=7), "7 bytes of samples"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_audio_is_refused(name):
    content, message = BROKEN[name]
    with pytest.raises(InvalidData, match=f"^x: .*{message}"):
        read(content)


def of_stream(content):
    """The number of samples that a stream gives before its error, and the error."""
    count = 0
    try:
        for block in wav_stream(Pipe(content), "x").blocks():
            count += len(block)
    except InvalidData as error:
        return count, str(error)
    raise AssertionError("no error")


def test_a_stream_that_is_cut_off_is_told_after_its_samples(stereo):
    content = wav(stereo, RATE, 16)
    count, message = of_stream(content[:-4000])
    assert count == len(stereo) - 1000
    assert "wanted 12,000 samples, as its header says; got 11,000" in message
    count, message = of_stream(wav(stereo, RATE, 16, data_size=0) + b"\0")
    assert count == len(stereo)
    assert "1 bytes more at the end" in message
    count, message = of_stream(wav(np.zeros((0, 1)), RATE, 16))
    assert (count, "wanted audio; got no sample" in message) == (0, True)


def test_samples_that_are_no_numbers_are_refused_with_their_place():
    samples = np.zeros((RATE + 10, 1))
    samples[RATE + 3] = np.nan
    count, message = of_stream(wav(samples, RATE, 32, FLOAT))
    assert (count, "sample 8,004" in message) == (RATE, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("s16", RATE), "raw: wanted the format of the samples; got 's16'.*s16le"),
        (("s16le", None), "rate: wanted 1,000 to 768,000 samples per second.*got none"),
        (("s16le", 10), "rate: .*got 10"),
        (("s16le", RATE, 0), "channels: wanted 1 to 256; got 0"),
    ],
)
def test_a_raw_format_that_makes_no_sense_is_refused(arguments, message):
    with pytest.raises(InvalidArgument, match=message):
        raw_format(*arguments)
