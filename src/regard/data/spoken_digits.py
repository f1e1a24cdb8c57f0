"""Spoken digits: tables of the recordings of FSDD, and strings of several digits made from them.

The recordings of `fsdd/recordings.zip` have names as 7_jackson_32.wav: digit, speaker and number.
Those with the numbers 0 to 4 are the customary test set; we validate on 5 to 7. A string has
recordings of one speaker, with pauses between them, all of one of these sets: those of the test
strings are in no training string.
"""

import csv
import io
import random
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from regard.core.atomic_io import atomic_file
from regard.core.errors import InvalidData
from regard.data.text import readable
from regard.data.wav import Samples, read_wav, write_wav

FOLDER = "fsdd"
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
NAME = re.compile(r"(\d)_([a-z]+)_(\d+)\.wav", re.IGNORECASE)
SETS = {"test": range(5), "valid": range(5, 8), "train": range(8, 1_000_000)}
STRINGS = {"train": 4000, "valid": 300, "test": 600}
LENGTHS = range(1, 8)  # digits of a string
PAUSES = (0.05, 0.4)  # seconds, before, between and after the digits
NOISE = 3e-4  # of the pauses, as a share of the largest amplitude
SEED = 1
ZIP_TIME = (1980, 1, 1, 0, 0, 0)  # of every entry, so that the file is the same each time


@dataclass(frozen=True)
class SpokenDigit:
    """One recording."""

    digit: int
    speaker: str
    number: int
    member: str  # its name in the .zip file

    @property
    def file(self) -> str:
        return PurePosixPath(self.member).name

    @property
    def split(self) -> str:
        return next(name for name, numbers in SETS.items() if self.number in numbers)


def write_spoken_digits(folder: Path, seed: int = SEED) -> Iterator[Path]:
    """Write tables of single digits and of strings, and the recordings of the strings;
    gives the files it has written.

    folder   holds fsdd/recordings.zip
    """
    archive = folder / FOLDER / "recordings.zip"
    with readable(archive):
        if not zipfile.is_zipfile(archive):
            archive.stat()
            raise InvalidData(
                archive, wanted="a .zip file", got="another file", remedy="Fetch it again."
            )
        with zipfile.ZipFile(archive) as opened:
            digits = _digits_of(opened.namelist())
            _check_complete(archive, digits)
            for split in SETS:
                chosen = [each for each in digits if each.split == split]
                yield _table(folder, f"digits/{split}.tsv", chosen)
            speakers = sorted({each.speaker for each in digits})
            for tested in speakers:
                for split, taken in _rotation(speakers, tested).items():
                    chosen = [each for each in digits if each.speaker in taken]
                    yield _table(folder, f"speakers/{tested}/{split}.tsv", chosen)
            yield from _write_strings(folder, opened, digits, seed)


def _digits_of(names: Sequence[str]) -> list[SpokenDigit]:
    """The recordings of a .zip file, in the order of their names."""
    found = []
    for name in sorted(names):
        match = NAME.fullmatch(PurePosixPath(name).name)
        if match is not None:
            digit, speaker, number = match.groups()
            found.append(SpokenDigit(int(digit), speaker.lower(), int(number), name))
    return found


def _check_complete(archive: Path, digits: Sequence[SpokenDigit]) -> None:
    """Refuse an archive in which a speaker lacks a digit in one of the sets."""
    speakers = sorted({each.speaker for each in digits})
    there = {(each.split, each.speaker, each.digit) for each in digits}
    wanted = {
        (split, speaker, digit) for split in SETS for speaker in speakers for digit in range(10)
    }
    if len(speakers) < 3 or there < wanted:
        raise InvalidData(
            archive,
            wanted="the recordings of FSDD: ten digits of several speakers, as 7_jackson_32.wav",
            got=f"{len(digits):,} recordings of {len(speakers)} speakers",
            remedy="Fetch it from its page: regard data fsdd.",
        )


def _rotation(speakers: Sequence[str], tested: str) -> Mapping[str, tuple[str, ...]]:
    """The speakers of each split: one is tested, the next validates, the others train."""
    place = speakers.index(tested)
    validates = speakers[(place + 1) % len(speakers)]
    others = tuple(each for each in speakers if each not in (tested, validates))
    return {"train": others, "valid": (validates,), "test": (tested,)}


def _table(folder: Path, name: str, digits: Sequence[SpokenDigit]) -> Path:
    rows = [(each.file, WORDS[each.digit], each.speaker) for each in digits]
    return _write_table(folder / FOLDER / name, ("audio", "digit", "speaker"), rows)


def _write_table(path: Path, header: Sequence[str], rows: Sequence[Sequence[str]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    writer = csv.writer(text, delimiter="\t", lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    with atomic_file(path) as file:
        file.write(text.getvalue().encode())
    return path


def _write_strings(
    folder: Path, archive: zipfile.ZipFile, digits: Sequence[SpokenDigit], seed: int
) -> Iterator[Path]:
    """The strings of all splits: a .zip file of their recordings, and a table of each split."""
    sounds: dict[str, tuple[Samples, int]] = {}
    for each in digits:
        sounds[each.member] = read_wav(archive.read(each.member), each.member)
    tables: dict[str, list[tuple[str, str, str]]] = {}
    path = folder / FOLDER / "strings.zip"
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file, zipfile.ZipFile(file, "w") as strings:
        for split, count in STRINGS.items():
            rows = []
            chosen = [each for each in digits if each.split == split]
            drawn = random.Random(f"{seed} {split}")
            for number in range(count):
                parts = _draw_string(chosen, drawn)
                name = f"{split}-{number:05}.wav"
                recording = join_digits([sounds[each.member] for each in parts], drawn)
                entry = zipfile.ZipInfo(name, ZIP_TIME)
                strings.writestr(entry, recording, zipfile.ZIP_DEFLATED)
                text = " ".join(WORDS[each.digit] for each in parts)
                rows.append((name, text, parts[0].speaker))
            tables[split] = rows
    yield path
    for split, rows in tables.items():
        table = folder / FOLDER / "strings" / f"{split}.tsv"
        yield _write_table(table, ("audio", "text", "speaker"), rows)


def _draw_string(digits: Sequence[SpokenDigit], drawn: random.Random) -> list[SpokenDigit]:
    """Recordings of one speaker, each digit as likely as any other."""
    speaker = drawn.choice(sorted({each.speaker for each in digits}))
    own = [each for each in digits if each.speaker == speaker]
    wanted = [drawn.randrange(10) for _ in range(drawn.choice(LENGTHS))]
    return [drawn.choice([each for each in own if each.digit == digit]) for digit in wanted]


def join_digits(sounds: Sequence[tuple[Samples, int]], drawn: random.Random) -> bytes:
    """Recordings one after the other, with pauses of quiet noise, as a WAV file."""
    rate = sounds[0][1]
    noise = np.random.default_rng(drawn.randrange(2**32))

    def pause() -> Samples:
        count = round(drawn.uniform(*PAUSES) * rate)
        return noise.normal(0.0, NOISE, count).astype(np.float32)

    parts = [pause()]
    for samples, own_rate in sounds:
        assert own_rate == rate, (own_rate, rate)
        parts += [samples, pause()]
    return write_wav(np.concatenate(parts), rate)
