"""Recordings of any length are transcribed in windows as they are at once, in bounded memory."""

import io

import numpy as np
import pytest
import torch

import regard
from regard.core.errors import InvalidArgument, InvalidData
from regard.data.resampling import resample, source_begin, source_end
from regard.data.wav import write_wav
from regard.inference import transcript_stream
from regard.inference.transcript_stream import SampleBuffer, TranscriptStream
from support.command_line import command
from support.tasks import TRAIN

FEATURES = {"kind": "log-mel", "sample_rate": 8000, "mels": 10}
SOURCE = {"kind": "vectors", "column": "audio", "features": FEATURES}
TARGET = {"kind": "text", "tokenizer": "words", "column": "text"}
# Its states depend on a few vectors around their position.
ENCODER = {
    "kind": "conv",
    "dim": 16,
    "kernel_size": 3,
    "dilations": [1],
    "input": {"kind": "vectors", "kernel": 4, "stride": 2, "layers": 2},
}
RATE = 11025


def noises(seconds, seed, rate=RATE):
    """Noise whose colour changes several times a second."""
    drawn = np.random.default_rng(seed)
    parts = []
    for _ in range(int(seconds * 5)):
        noise = drawn.normal(0, 0.1, rate // 5)
        kernel = drawn.normal(0, 1, drawn.integers(1, 12))
        parts.append(np.convolve(noise, kernel / np.abs(kernel).sum(), "same"))
    return np.concatenate(parts).astype(np.float32)


@pytest.fixture(scope="module")
def recognizer(tmp_path_factory):
    """A model that gives different tokens at different noises, and its run."""
    folder = tmp_path_factory.mktemp("noises")
    rows = ["audio\ttext"]
    for number in range(8):
        (folder / f"{number}.wav").write_bytes(write_wav(noises(1, number), RATE))
        rows.append(f"{number}.wav\tone two three four")
    (folder / "train.tsv").write_text("\n".join(rows) + "\n")
    recipe = {
        "data": {"train": str(folder / "train.tsv"), "source": SOURCE, "target": TARGET},
        "model": {"encoder": ENCODER, "head": "ctc"},
        "train": {**TRAIN, "max_steps": 1, "validate_every": 1, "warmup_steps": 0},
        "decode": {"max_source_length": 100_000},
    }
    model = regard.train(recipe, folder / "run", cache=folder / "cache")
    with torch.no_grad():
        projection = model.model.head.proj
        projection.weight.copy_(torch.randn(projection.weight.shape) * 3)
        projection.bias.zero_()
    return model, folder / "run"


def text_of(words):
    return " ".join(word.text for word in words)


@pytest.mark.parametrize("window", [2.0, 3.3, 30.0])
def test_windows_give_the_text_of_the_whole(recognizer, window):
    model, _ = recognizer
    content = write_wav(noises(11, 50), RATE)
    whole = model.predict([content])[0]
    assert len(whole.split()) > 30
    words = list(regard.transcribe(model, content, window=window, overlap=0.8))
    assert text_of(words) == whole
    times = [word.seconds for word in words]
    assert times == sorted(times)
    assert 0 <= times[0] < times[-1] < 11


class Microphone:
    """A pipe in which no more audio is than what was read from it."""

    def __init__(self, content):
        self.content = io.BytesIO(content)
        self.bytes = 0

    def read(self, size):
        self.bytes += size
        return self.content.read(size)


def test_a_stream_gives_the_words_of_its_file_while_it_arrives(recognizer):
    model, _ = recognizer
    content = write_wav(noises(11, 50), RATE)
    options = {"window": 2.0, "overlap": 0.8}
    expected = list(regard.transcribe(model, content, **options))
    # The header of a program that writes to a pipe has no size.
    live = Microphone(content[:40] + b"\xff\xff\xff\xff" + content[44:])
    words = regard.transcribe(model, live, **options)
    first = next(words)
    # One window, the block that completes it, and what the features of its last vector reach.
    assert live.bytes < 44 + 4 * RATE * 2
    assert [first, *words] == expected
    raw = Microphone(content[44:])
    found = regard.transcribe(model, raw, raw="s16le", rate=RATE, **options)
    assert list(found) == expected
    stereo = np.frombuffer(content[44:], "<i2").repeat(2).tobytes()
    found = regard.transcribe(model, stereo, raw="s16le", rate=RATE, channels=2, **options)
    assert list(found) == expected


@pytest.mark.parametrize("options", [{"rate": 8000}, {"channels": 2}])
def test_a_rate_beside_a_header_is_refused(recognizer, options):
    model, _ = recognizer
    with pytest.raises(InvalidArgument, match="raw: wanted the format of samples"):
        list(regard.transcribe(model, write_wav(noises(1, 3), RATE), **options))


def test_windows_without_overlap_differ(recognizer):
    """What the overlap is for."""
    model, _ = recognizer
    content = write_wav(noises(11, 50), RATE)
    words = list(regard.transcribe(model, content, window=1.0, overlap=0.0))
    assert text_of(words) != model.predict([content])[0]


def test_memory_depends_on_the_window_alone(recognizer, monkeypatch):
    model, _ = recognizer
    kept = []
    longest = []
    forget = SampleBuffer.forget

    def observed(self, before):
        kept.append(len(self.kept))
        forget(self, before)
        longest.append(len(self.kept))

    monkeypatch.setattr(transcript_stream.SampleBuffer, "forget", observed)

    def endless():
        for number in range(60):
            yield noises(1, number)

    stream = TranscriptStream(model, RATE, window=2.0, overlap=0.5)
    found = stream.tokens(endless())
    first = next(found)
    assert first.seconds < 2.0
    assert sum(1 for _ in found) > 100
    assert max(kept) < 4.5 * RATE
    assert len(kept) > 30
    assert max(longest) < max(kept)


@pytest.mark.parametrize("seconds", [0.01, 0.5])
def test_recordings_shorter_than_a_window_are_read_at_once(recognizer, seconds):
    model, _ = recognizer
    content = write_wav(noises(1, 3)[: int(seconds * RATE)], RATE)
    assert text_of(regard.transcribe(model, content)) == model.predict([content])[0]


@pytest.mark.parametrize(("rate", "new_rate"), [(44100, 8000), (8000, 16000), (8000, 8000)])
def test_what_a_part_depends_on_is_known(rate, new_rate):
    samples = np.random.default_rng(0).normal(0, 0.1, 4000).astype(np.float32)
    whole = resample(samples, rate, new_rate)
    first = len(whole) // 3
    last = len(whole) // 2
    low = max(0, source_begin(rate, new_rate, first))
    high = source_end(rate, new_rate, last)
    changed = samples.copy()
    changed[:low] += 1.0
    changed[high:] -= 1.0
    part = resample(changed, rate, new_rate)[first:last]
    np.testing.assert_allclose(part, whole[first:last], atol=1e-7)


@pytest.mark.parametrize(("window", "overlap"), [(1.0, 1.0), (1.0, -0.5), (4000.0, 1.0)])
def test_windows_that_make_no_sense_are_refused(recognizer, window, overlap):
    model, _ = recognizer
    content = write_wav(noises(1, 3), RATE)
    with pytest.raises(InvalidArgument, match="window: wanted at most 3600"):
        list(regard.transcribe(model, content, window=window, overlap=overlap))


def test_other_models_are_refused(tmp_path):
    rows = [([[0.0], [1.0]], "a"), ([[1.0], [0.0]], "b")] * 4
    recipe = {
        "data": {"source": {"kind": "vectors"}, "target": {"kind": "label"}},
        "model": {"encoder": {**ENCODER, "input": {"kind": "vectors"}}, "pool": {"kind": "mean"}},
        "train": {**TRAIN, "max_steps": 1, "validate_every": 1, "warmup_steps": 0},
    }
    model = regard.train(recipe, tmp_path / "run", data={"train": rows})
    with pytest.raises(InvalidArgument, match="kind = 'ctc' that reads recordings"):
        list(regard.transcribe(model, b""))


def test_a_recording_that_cannot_be_read_is_refused(recognizer, tmp_path):
    model, _ = recognizer
    with pytest.raises(InvalidData, match="an empty file"):
        list(regard.transcribe(model, b""))
    with pytest.raises(InvalidData, match="a file to read"):
        list(regard.transcribe(model, tmp_path / "none.wav"))


def test_the_command_line_reads_standard_input(recognizer, tmp_path):
    _, run = recognizer
    content = write_wav(noises(2, 4), RATE)
    (expected,) = regard.load(run).predict([content])
    assert command("transcribe", run, "-", text=content).stdout == f"{expected}\n"
    raw = tmp_path / "x.raw"
    raw.write_bytes(content[44:])
    options = ("--raw", "s16le", "--rate", str(RATE))
    # The file, and the same on standard input.
    done = command("transcribe", run, raw, "-", *options, text=content[44:])
    assert (done.stdout, done.stderr) == (f"{expected}\n{expected}\n", "")


def test_wrong_audio_on_standard_input_is_told(recognizer):
    _, run = recognizer
    done = command("transcribe", run, "-", text="hello, world, this is no audio")
    assert (done.returncode, done.stdout) == (1, "")
    assert "standard input: wanted a WAV file" in done.stderr
    content = write_wav(noises(2, 4), RATE)
    (expected,) = regard.load(run).predict([write_wav(noises(2, 4)[:-1000], RATE)])
    done = command("transcribe", run, "-", text=content[:-2000])
    # The text of what there is comes first.
    assert done.stdout == f"{expected}\n"
    assert done.returncode == 1
    assert "as its header says" in done.stderr
    done = command("transcribe", run, "-", "--raw", "s16le", text=content)
    assert (done.returncode, "rate: wanted 1,000" in done.stderr) == (2, True)
    done = command("transcribe", run, "-", "-", text=content)
    assert "wanted - once" in done.stderr


def test_the_command_line_prints_a_line_for_each_recording(recognizer, tmp_path):
    _, run = recognizer
    for number in range(2):
        (tmp_path / f"{number}.wav").write_bytes(write_wav(noises(1, number), RATE))
    (tmp_path / "bad.wav").write_text("no recording")
    files = [tmp_path / "0.wav", tmp_path / "bad.wav", tmp_path / "1.wav"]
    done = command("transcribe", run, *files)
    assert done.returncode == 1
    loaded = regard.load(run)
    expected = loaded.predict([tmp_path / "0.wav", tmp_path / "1.wav"])
    assert done.stdout.splitlines() == expected
    assert "bad.wav: wanted a WAV file" in done.stderr
    assert "1 recording could not be transcribed" in done.stderr
