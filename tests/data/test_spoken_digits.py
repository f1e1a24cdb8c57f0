"""Tables and strings of spoken digits: of the recordings of one set only, and the same each time."""

import csv
import random
import zipfile

import numpy as np
import pytest

from regard.core.errors import InvalidArgument, InvalidData
from regard.data import spoken_digits
from regard.data.public_datasets import public_dataset
from regard.data.spoken_digits import WORDS, join_digits, write_spoken_digits
from regard.data.wav import read_wav, write_wav
from support.command_line import command

SPEAKERS = ("ann", "bob", "cleo")
NUMBERS = (0, 5, 8, 9)  # one is tested, one validates, two train


def level_of(digit, speaker, number):
    """The constant sample of a recording, from which it is known again."""
    return (1 + digit + 10 * NUMBERS.index(number) + 40 * SPEAKERS.index(speaker)) / 256


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Recordings of three speakers: constant samples."""
    (tmp_path / "fsdd").mkdir()
    with zipfile.ZipFile(tmp_path / "fsdd" / "recordings.zip", "w") as archive:
        archive.writestr("README.md", "Recordings.")
        for speaker in SPEAKERS:
            for digit in range(10):
                for number in NUMBERS:
                    samples = np.full(100, level_of(digit, speaker, number))
                    name = f"recordings/{digit}_{speaker}_{number}.wav"
                    archive.writestr(name, write_wav(samples, 8000))
    monkeypatch.setattr(spoken_digits, "STRINGS", {"train": 20, "valid": 5, "test": 8})
    return tmp_path


def rows_of(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def test_the_splits_of_single_digits_share_no_recording(folder):
    list(write_spoken_digits(folder))
    numbers = {"test": {0}, "valid": {5}, "train": {8, 9}}
    for split, expected in numbers.items():
        rows = rows_of(folder / "fsdd" / "digits" / f"{split}.tsv")
        assert {int(row["audio"][:-4].split("_")[2]) for row in rows} == expected
        assert len(rows) == len(expected) * 10 * len(SPEAKERS)
        for row in rows:
            assert row["digit"] == WORDS[int(row["audio"][0])]


def test_every_speaker_is_tested_once_and_validates_once(folder):
    list(write_spoken_digits(folder))
    validating = []
    for tested in SPEAKERS:
        found = {}
        for split in ("train", "valid", "test"):
            rows = rows_of(folder / "fsdd" / "speakers" / tested / f"{split}.tsv")
            found[split] = {row["speaker"] for row in rows}
        assert found["test"] == {tested}
        assert found["test"] | found["valid"] | found["train"] == set(SPEAKERS)
        assert sum(map(len, found.values())) == len(SPEAKERS)
        validating += found["valid"]
    assert sorted(validating) == sorted(SPEAKERS)


def test_strings_are_of_one_speaker_and_one_set_with_pauses(folder):
    list(write_spoken_digits(folder))
    allowed = {"test": (0,), "valid": (5,), "train": (8, 9)}
    with zipfile.ZipFile(folder / "fsdd" / "strings.zip") as archive:
        for split, numbers in allowed.items():
            rows = rows_of(folder / "fsdd" / "strings" / f"{split}.tsv")
            assert len(rows) == spoken_digits.STRINGS[split]
            for row in rows:
                samples, rate = read_wav(archive.read(row["audio"]))
                assert rate == 8000
                assert heard(samples, row["speaker"], numbers) == row["text"].split()


def heard(samples, speaker, numbers):
    """The digits of the recordings that are in a string, in order, from their constant levels."""
    loud = np.concatenate(([0], samples > 3 / 1024, [0]))
    edges = np.flatnonzero(np.diff(loud))
    words = []
    for first, last in zip(edges[::2], edges[1::2], strict=True):
        assert last - first == 100
        level = round(float(samples[first]) * 256)
        known = {
            round(level_of(digit, speaker, number) * 256): digit
            for digit in range(10)
            for number in numbers
        }
        words.append(WORDS[known[level]])
    return words


def test_the_files_are_the_same_each_time(folder):
    first = {path: path.read_bytes() for path in write_spoken_digits(folder)}
    second = {path: path.read_bytes() for path in write_spoken_digits(folder)}
    assert first == second
    other = {path: path.read_bytes() for path in write_spoken_digits(folder, seed=2)}
    assert other[folder / "fsdd" / "strings.zip"] != first[folder / "fsdd" / "strings.zip"]


def test_pauses_are_before_between_and_after():
    sounds = [(np.full(10, 0.5, np.float32), 8000)] * 3
    samples, _ = read_wav(join_digits(sounds, random.Random(0)))
    quiet = np.abs(samples) < 0.01
    assert quiet[:400].all()
    assert quiet[-400:].all()
    assert (~quiet).sum() == 30
    assert 4 * 0.05 * 8000 <= quiet.sum() <= 4 * 0.4 * 8000


def test_an_archive_that_lacks_recordings_is_refused(folder):
    archive = folder / "fsdd" / "recordings.zip"
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("0_ann_1.wav", write_wav(np.zeros(10), 8000))
    with pytest.raises(InvalidData, match="got 1 recordings of 1 speakers"):
        list(write_spoken_digits(folder))
    archive.write_text("text")
    with pytest.raises(InvalidData, match=r"wanted a \.zip file"):
        list(write_spoken_digits(folder))
    archive.unlink()
    with pytest.raises(InvalidData, match="a file to read"):
        list(write_spoken_digits(folder))


def test_the_command_refuses_to_build_what_has_nothing_to_build(tmp_path):
    assert public_dataset("fsdd").build is not None
    done = command("data", "multi30k", "--build", "--folder", tmp_path)
    assert done.returncode == 2
    assert "--build: wanted nothing for this data set" in done.stderr
    done = command("data", "fsdd", "--build", "--folder", tmp_path)
    assert done.returncode == InvalidArgument.exit_code
    assert "recordings.zip" in done.stderr
