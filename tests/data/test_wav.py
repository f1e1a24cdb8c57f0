"""WAV files of every form are read as their samples; files that are none are refused with a reason."""

import struct
import wave
from io import BytesIO

import numpy as np
import pytest
from tests.support.audio import FLOAT, PCM, chunk, sound, wav

from regard.core.errors import InvalidData
from regard.data.wav import open_wav, read_wav, write_wav

RATE = 8000
FORMS = [(PCM, 8), (PCM, 16), (PCM, 24), (PCM, 32), (FLOAT, 32), (FLOAT, 64)]


@pytest.fixture(scope="module")
def stereo():
    left = sound(RATE, 0.05, 1)
    right = sound(RATE, 0.05, 2)
    return np.stack((left, right), 1)


@pytest.mark.parametrize("extensible", [False, True])
@pytest.mark.parametrize(("kind", "bits"), FORMS)
def test_every_form_is_read_as_the_mean_of_its_channels(stereo, kind, bits, extensible):
    samples, rate = read_wav(wav(stereo, RATE, bits, kind, extensible=extensible))
    assert rate == RATE
    assert samples.dtype == np.float32
    step = 2.0 ** (1 - bits) if kind == PCM else 0.0
    np.testing.assert_allclose(samples, stereo.mean(1), atol=2 * step + 1e-7)


def test_the_extreme_numbers_of_pcm_are_exact():
    extremes = {
        8: (np.array([[0], [128], [255]], np.uint8), [-1, 0, 127 / 128]),
        16: (np.array([[-(2**15)], [0], [2**15 - 1]], "<i2"), [-1, 0, 1 - 2**-15]),
        32: (np.array([[-(2**31)], [0], [2**30]], "<i4"), [-1, 0, 0.5]),
    }
    for bits, (numbers, expected) in extremes.items():
        file = wav(np.zeros((3, 1)), RATE, bits)
        content = file[: -3 * bits // 8] + numbers.tobytes()
        assert read_wav(content)[0].tolist() == pytest.approx(expected, abs=0)
    content = wav(np.zeros((2, 1)), RATE, 24)[:-6] + b"\x00\x00\x80" + b"\x00\x00\x40"
    assert read_wav(content)[0].tolist() == [-1.0, 0.5]


def test_sixteen_bits_are_read_as_the_standard_library_reads_them(stereo):
    content = wav(stereo, RATE, 16)
    with wave.open(BytesIO(content)) as file:
        numbers = np.frombuffer(file.readframes(file.getnframes()), "<i2").reshape(-1, 2)
    np.testing.assert_array_equal(read_wav(content)[0], (numbers / 2**15).mean(1).astype("f4"))


def test_a_file_that_is_written_is_read_by_the_standard_library():
    samples = sound(RATE, 0.05, 1)
    content = write_wav(samples, RATE)
    with wave.open(BytesIO(content)) as file:
        assert file.getparams()[:4] == (1, 2, RATE, len(samples))
    np.testing.assert_allclose(read_wav(content)[0], samples, atol=2**-15)


def test_parts_are_those_of_the_whole(stereo, tmp_path):
    path = tmp_path / "a.wav"
    path.write_bytes(wav(stereo, RATE, 24))
    whole, _ = read_wav(path)
    with open_wav(path) as file:
        np.testing.assert_array_equal(file.samples(100, 250), whole[100:250])
        np.testing.assert_array_equal(file.samples(390, 900), whole[390:])
        assert len(file.samples(500, 600)) == 0


def test_other_chunks_are_skipped_also_those_of_odd_length(stereo):
    before = chunk(b"LIST", b"abc") + chunk(b"fact", b"1234")
    content = wav(stereo, RATE, 16, before=before) + chunk(b"id3 ", b"x")
    np.testing.assert_array_equal(read_wav(content)[0], read_wav(wav(stereo, RATE, 16))[0])


def test_samples_of_unknown_size_end_with_the_file(stereo):
    content = wav(stereo, RATE, 16, data_size=0xFFFFFFFF)
    np.testing.assert_array_equal(read_wav(content)[0], read_wav(wav(stereo, RATE, 16))[0])


def damaged_files():
    frames = np.zeros((10, 2))
    good = wav(frames, RATE, 16)
    yield "empty", b"", "an empty file"
    yield "text", b"Call me Ishmael.", "a file that begins with b'Call'"
    yield "rf64", b"RF64" + good[4:], "RF64"
    yield "header only", good[:12], "no samples"
    yield "format cut off", good[:30], "a chunk 'fmt '"
    yield "no samples", wav(np.zeros((0, 2)), RATE, 16), "got none"
    yield "cut off", good[:-3], "37: the file is cut off"
    yield "absurd size", wav(frames, RATE, 16, data_size=0xFFFFFFF0), "the file is cut off"
    yield "part of a frame", wav(frames, RATE, 16, data_size=38), "38 bytes of samples"
    yield "no channels", wav(frames, RATE, 16, channels=0, frame_bytes=0), "1 to 256 channels"
    yield "many channels", wav(frames, RATE, 16, channels=60000), "1 to 256 channels; got 60,000"
    yield "frame bytes", wav(frames, RATE, 16, frame_bytes=3), "3 bytes for 2 channels"
    yield "rate 0", wav(frames, RATE, 16, stated_rate=0), "samples per second; got 0"
    yield "rate 4e9", wav(frames, RATE, 16, stated_rate=4_000_000_000), "got 4,000,000,000"
    yield "mu-law", wav(frames, RATE, 8, kind=7), "8 bits of the format 0x0007"
    yield "12 bits", wav(frames, RATE, 16)[:34] + struct.pack("<H", 12) + good[36:], "12 bits"
    yield "other sub-format", _other_subformat(frames), "the sub-format"
    yield "samples first", _samples_first(good), "samples before the chunk 'fmt '"
    yield "huge chunk", good[:36] + b"LIST" + b"\xf0\xff\xff\xff" + good[36:], "a chunk 'LIST'"
    yield "not a number", wav(np.full((3, 1), np.nan), RATE, 32, FLOAT), "not finite, sample 1"


def _other_subformat(frames):
    content = wav(frames, RATE, 16, extensible=True)
    return content.replace(b"\xaa\x00\x38\x9b\x71", b"\xaa\x00\x38\x9b\x72")


def _samples_first(good):
    return good[:12] + good[36:] + good[12:36]


DAMAGED = list(damaged_files())
CASES = [each[1:] for each in DAMAGED]
NAMES = [each[0] for each in DAMAGED]


@pytest.mark.parametrize(("content", "reason"), CASES, ids=NAMES)
def test_a_damaged_file_is_refused_with_its_name_and_the_reason(content, reason, tmp_path):
    path = tmp_path / "speech.wav"
    path.write_bytes(content)
    with pytest.raises(InvalidData) as error:
        read_wav(path)
    assert str(path) in str(error.value)
    assert reason in str(error.value)


def test_a_long_recording_is_refused_before_its_samples_are_read(stereo):
    with pytest.raises(InvalidData, match=r"at most 0.01 seconds; got 0\.1"):
        read_wav(wav(stereo, RATE, 16), most_seconds=0.01)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InvalidData, match="No such file"):
        read_wav(tmp_path / "none.wav")
