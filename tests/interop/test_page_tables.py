"""Tables and lists that a page reads as sequences of vectors, in Node.js: the rows are those that Python reads."""

import json
from typing import Any

import numpy as np
import pytest

from regard.data.series import last_windows
from regard.data.series_config import SeriesConfig
from support.node import SHARED, node

READ = """import { readVectors } from './read_vectors.js';
    console.log(JSON.stringify(given.map(([text, layout, group]) => {
        try {
            return readVectors(text, layout, group);
        } catch (error) {
            return { error: error.message };
        }
    })));"""
PLAIN = {"size": 2, "missing": False, "window": None, "series": None}
HOURS = [f"2024-01-{1 + i // 24:02} {i % 24:02}:00:00" for i in range(60)]


def read(*cases: tuple[str, dict[str, Any], str | None]) -> list[dict[str, Any]]:
    return node(READ, [list(each) for each in cases], folder=SHARED)


def table(config: SeriesConfig) -> dict[str, Any]:
    names = ("time", "group", "columns", "targets", "calendar", "gaps")
    return {name: getattr(config, name) for name in names}


def weather(*, station: bool = True, skipped: range = range(0), separator: str = ",") -> str:
    """Two stations by the hour; of one, some rows are missing."""
    rows = [["time", "station", "rain", "wind", "note"]]
    for name, off in (("north", range(0)), ("south", skipped)):
        for i, hour in enumerate(HOURS):
            if i not in off:
                rows.append([hour, name, str(i / 8), str(-i), "1"])
    kept = rows if station else [row for row in rows if row[1] != "south"]
    places = range(5) if station else (0, 2, 3, 4)
    return "\n".join(separator.join(row[place] for place in places) for row in kept)


WINDOWS = {
    "all columns": (SeriesConfig(window=7, horizon=2, time="time", group="station"), {}),
    "some columns, targets first": (
        SeriesConfig(
            window=7,
            horizon=2,
            time="time",
            group="station",
            columns=("rain", "wind"),
            targets=("wind",),
        ),
        {},
    ),
    "calendar": (
        SeriesConfig(
            window=30,
            horizon=2,
            time="time",
            group="station",
            columns=("rain",),
            calendar=("minute", "hour", "weekday", "day", "month"),
        ),
        {},
    ),
    "rows after the last gap": (
        SeriesConfig(window=7, horizon=2, time="time", group="station", gaps="split"),
        {"skipped": range(20, 25)},
    ),
    "gaps are filled": (
        SeriesConfig(
            window=50,
            horizon=2,
            time="time",
            group="station",
            columns=("wind",),
            gaps="fill",
            calendar=("hour",),
        ),
        {"skipped": range(20, 25)},
    ),
    "gaps are ignored": (
        SeriesConfig(window=50, horizon=2, time="time", group="station", gaps="ignore"),
        {"skipped": range(20, 25)},
    ),
    "one series": (SeriesConfig(window=9, horizon=2, time="time"), {"station": False}),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_a_table_is_read_as_by_predict(name, tmp_path):
    config, options = WINDOWS[name]
    written = weather(**options)
    (tmp_path / "x.csv").write_text(written + "\n")
    refuses = config.gaps != "fill"
    wanted = [
        np.asarray(each)
        for each in last_windows(config, str(tmp_path / "x.csv"), "strict", refuse_missing=refuses)
    ]
    size = wanted[0].shape[1]
    layout = {
        "size": size,
        "missing": not refuses,
        "window": config.window,
        "series": table(config),
    }
    groups = ["north", "south"] if len(wanted) == 2 else [None]
    found = read(*((written, layout, group) for group in groups))
    for ours, theirs, group in zip(found, wanted, groups, strict=True):
        vectors = np.array(ours["vectors"], dtype=float)
        np.testing.assert_allclose(vectors, theirs, atol=1e-12)
        assert ours["groups"] == (["north", "south"] if group else [])
        assert ours["group"] == group


SAME = {
    "commas": "1,2.5\n-3e1,4\n",
    "names of columns": "a, b\n1,2.5\n\n-30,4",
    "tabs": "1\t2.5\r\n-30\t4\r\n",
    "semicolons": '"a";"b"\n1;2.5\n-30;4',
    "spaces": "  1   2.5\n-30 4 ",
    "a list": "[[1, 2.5], [-30, 4]]",
}


def test_lists_and_tables_of_all_forms_are_the_same_vectors():
    found = read(*((text, PLAIN, None) for text in SAME.values()))
    assert [each.get("vectors") for each in found] == [[[1, 2.5], [-30, 4]]] * len(SAME)


def test_numbers_alone_are_vectors_of_one_number_and_missing_ones_are_kept_where_they_may_be():
    one = PLAIN | {"size": 1}
    masked = PLAIN | {"missing": True}
    last = PLAIN | {"window": 2}
    found = read(
        ("[1, 2]", one, None),
        ("1\n2", one, None),
        ("1,NaN\n,4\nnull,n/a", masked, None),
        ("[[1, null]]", masked, None),
        ("1,2\n3,4\n5,6", last, None),
    )
    assert [each["vectors"] for each in found] == [
        [[1], [2]],
        [[1], [2]],
        [[1, None], [None, 4], [None, None]],
        [[1, None]],
        [[3, 4], [5, 6]],
    ]


SERIES = {"time": "time", "group": None, "columns": ["a", "b"], "targets": None, "calendar": None}
HOURLY = PLAIN | {"series": SERIES | {"gaps": "refuse"}}
WITH_HOUR = PLAIN | {"size": 4, "series": SERIES | {"gaps": "refuse", "calendar": ["hour"]}}
REFUSED = {
    "nothing": ("", PLAIN, "wanted at least one vector; got none"),
    "no vectors": ("[]", PLAIN, "wanted at least one vector; got none"),
    "too many columns": ("1,2,3\n4,5,6", PLAIN, "wanted 2 numbers in vector 1"),
    "unequal lines": ("1,2\n3", PLAIN, "wanted 2 numbers in vector 2, as in the training data; got 1"),
    "unequal lines below names": ("a,b\n1,2\n3", PLAIN, "wanted 2 cells in line 3"),
    "other columns": ("x,y,z\n1,2,3", PLAIN, "wanted 2 columns of numbers"),
    "a word": ("a,b\n1,2\n3,four", PLAIN, 'a number in line 3, column "b"; got "four"'),
    "an infinite number": ("1,inf\n1,2", PLAIN, 'a number in line 1; got "inf"'),
    "a number beyond float32": ("1,1e39\n1,2", PLAIN, "got 1e+39"),
    "a missing number": ("a,b\n1,2\n3,", PLAIN, 'a number in line 3, column "b"; got none: it is missing'),
    "a null": ("[[1, 2], [null, 4]]", PLAIN, "as number 1 of vector 2; got none: it is missing"),
    "a text in a list": ('[[1, "2"]]', PLAIN, 'as number 2 of vector 1; got "2"'),
    "a list that does not end": ("[[1, 2]", PLAIN, "a text that is no JSON"),
    "a list of objects": ('[{"a": 1}]', PLAIN, "wanted 2 numbers in vector 1"),
    "an absent column": ("time,a\n1,2\n2,3", HOURLY, 'wanted a column "b"; got time, a'),
    "a gap": ("time,a,b\n1,2,3\n2,3,4\n5,4,5", HOURLY, "wanted a row every 1 of time; got 3 of time from 2 to 5"),
    "times that fall": ("time,a,b\n2,2,3\n1,3,4", HOURLY, "in line 3 a time after 2; got"),
    "no time": ("time,a,b\nnoon,2,3\n2024-01-01,3,4", HOURLY, "wanted a time of ISO 8601 in line 2"),
    "no times for the calendar": ("a,b\n2,3\n3,4", WITH_HOUR, 'wanted a column "time" of times'),
    "numbers for the calendar": ("time,a,b\n1,2,3\n2,3,4", WITH_HOUR, 'wanted dates and times in "time"; got numbers'),
}  # fmt: skip


def test_what_is_no_series_of_the_model_is_refused_with_the_place():
    found = read(*((text, layout, None) for text, layout, _ in REFUSED.values()))
    for (name, (_, _, message)), each in zip(REFUSED.items(), found, strict=True):
        assert message in each.get("error", json.dumps(each)), name
        assert each["error"].startswith("numbers: wanted ")
        assert each["error"].endswith("."), name
