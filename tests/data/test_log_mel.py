"""Resampling equals torchaudio's, and log-mel features librosa's, whose arrays are stored as fixtures.

The fixtures are of the sounds of `tests.support.audio.sound`. librosa 0.11.0:
numpy.log(numpy.maximum(librosa.feature.melspectrogram(y=sound(rate, 0.4, 3), sr=rate, n_fft, hop_length, win_length,
n_mels, fmin, fmax, center=True, pad_mode="constant", power=2.0), 1e-10)). torchaudio 2.8.0:
torchaudio.functional.resample(sound(rate, 0.1, 5), rate, new_rate, lowpass_filter_width=64,
rolloff=0.9475937167399596, resampling_method="sinc_interp_kaiser", beta=14.769656459379492) in float64.
"""

from pathlib import Path

import numpy as np
import pytest
from tests.support.audio import sound

from regard.core.errors import InvalidRecipe
from regard.data.log_mel import LogMelConfig, Recording, log_mel
from regard.data.resampling import resample, resample_part, resampled_length

FIXTURES = Path(__file__).parents[1] / "fixtures" / "audio"
CONFIGS = {
    "8k": LogMelConfig(sample_rate=8000, mels=40),
    "16k": LogMelConfig(fmin=20.0, fmax=7600.0),
}
RATES = [(44100, 16000), (8000, 16000), (22050, 8000), (11025, 16000)]


@pytest.mark.parametrize("name", CONFIGS)
def test_features_equal_librosa(name):
    config = CONFIGS[name]
    expected = np.load(FIXTURES / "librosa_log_mel.npz")[name]
    found = log_mel(sound(config.sample_rate, 0.4, 3), config.sample_rate, config)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize(("rate", "new_rate"), RATES)
def test_resampling_equals_torchaudio(rate, new_rate):
    expected = np.load(FIXTURES / "torchaudio_resampled.npz")[f"{rate}-{new_rate}"]
    found = resample(sound(rate, 0.1, 5), rate, new_rate)
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize(("rate", "new_rate"), [(44101, 16000), (16000, 44101), (8000, 8001)])
def test_a_tone_keeps_its_frequency_at_rates_without_a_common_divisor(rate, new_rate):
    old = np.sin(2 * np.pi * 1000 * np.arange(rate // 10) / rate + 0.3)
    found = resample(old, rate, new_rate)
    assert len(found) == resampled_length(len(old), rate, new_rate)
    expected = np.sin(2 * np.pi * 1000 * np.arange(len(found)) / new_rate + 0.3)
    # The ends are those of a sound that begins and ends suddenly.
    inside = slice(new_rate // 50, -new_rate // 50)
    np.testing.assert_allclose(found[inside], expected[inside], atol=1e-5)


def test_what_the_lower_rate_cannot_have_is_removed():
    tone = np.sin(2 * np.pi * 6000 * np.arange(4800) / 48000)
    found = resample(tone, 48000, 8000)
    assert np.abs(found[200:-200]).max() < 1e-5


def test_the_same_rate_changes_nothing():
    samples = sound(8000, 0.1, 1)
    np.testing.assert_array_equal(resample(samples, 8000, 8000), samples)


def test_parts_are_those_of_the_whole():
    samples = sound(44100, 0.3, 1)
    whole = resample(samples, 44100, 16000)
    reads = []

    def read(first, last):
        reads.append((first, last))
        return samples[first:last]

    part = resample_part(read, len(samples), 44100, 16000, 1000, 1200)
    np.testing.assert_allclose(part, whole[1000:1200], atol=1e-7)
    ((first, last),) = reads
    assert last - first < 1000


def test_vectors_of_a_part_are_those_of_the_whole(monkeypatch):
    config = CONFIGS["16k"]
    recording = Recording.of(sound(44100, 0.6, 1), 44100)
    whole = recording.log_mel(config)
    assert len(whole) == recording.frames(config) == 61
    np.testing.assert_allclose(recording.log_mel(config, 7, 30), whole[7:30], atol=1e-4)
    monkeypatch.setattr("regard.data.log_mel.FRAMES", 8)
    np.testing.assert_allclose(recording.log_mel(config), whole, atol=1e-4)


def test_silence_and_a_single_sample_have_finite_vectors():
    config = CONFIGS["8k"]
    silent = log_mel(np.zeros(800), 8000, config)
    np.testing.assert_allclose(silent, np.log(1e-10), rtol=1e-6)
    assert log_mel(np.array([0.5]), 8000, config).shape == (1, 40)


@pytest.mark.parametrize(
    ("keys", "key", "got"),
    [
        ({"fmax": 5000.0, "sample_rate": 8000}, "fmax", "5000"),
        ({"fmin": 4000.0, "sample_rate": 8000}, "fmax", "4000"),
        ({"window": 5.0, "mels": 10}, "hop", "10"),
        ({"mels": 300}, "mels", "300"),
        ({"mels": 120, "sample_rate": 8000, "fmax": 1000.0}, "mels", "lie between two frequencies"),
    ],
)
def test_settings_that_make_no_features_are_refused(keys, key, got):
    with pytest.raises(InvalidRecipe) as error:
        LogMelConfig(**keys)
    (problem,) = error.value.problems
    assert problem.key == key
    assert got in problem.got
