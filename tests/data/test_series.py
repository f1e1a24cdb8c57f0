"""Windows of long series: what they hold, how they are split, and which tables are refused, with the line."""

from datetime import datetime, timedelta

import numpy as np
import pytest

from regard.core.config import read
from regard.core.errors import InvalidArgument, InvalidData
from regard.data.config import DataConfig
from regard.data.corpus import prepare
from regard.data.series import last_windows
from regard.data.series_config import SeriesConfig
from regard.data.sources import examples
from regard.data.statistics import Statistics

START = datetime(2024, 1, 1)


def hour(number):
    return (START + timedelta(hours=number)).isoformat(sep=" ")


def table(folder, rows, header="date,a,b", name="t.csv"):
    path = folder / name
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return str(path)


def hours(count, skip=(), first=0):
    """Rows of one series: the channel a is the number of the row, and b its square."""
    return [(hour(i), i, i * i) for i in range(first, first + count) if i not in skip]


def config(path, field=None, valid=None, **series):
    keys = {"time": "date", "window": 4, "horizon": 2, **series}
    field = {"kind": "vectors", **(field or {})}
    data = {"train": path, "valid": valid, "source": field, "target": field, "series": keys}
    found = read(DataConfig, data, "data")
    assert isinstance(found, DataConfig), found
    return found


def first_channel(found, split="train"):
    """The channel a of the source and of the target of each window."""
    return [
        (np.asarray(each.source)[:, 0].tolist(), np.asarray(each.target)[:, 0].tolist())
        for each in examples(found, split)
    ]


def test_each_window_is_followed_by_its_target(tmp_path):
    found = first_channel(config(table(tmp_path, hours(8))))
    assert found == [([i, i + 1, i + 2, i + 3], [i + 4, i + 5]) for i in range(3)]
    strided = first_channel(config(table(tmp_path, hours(12)), stride=3))
    assert [source[0] for source, _ in strided] == [0, 3, 6]


@pytest.mark.parametrize("split", [[10, 4, 6], [0.5, 0.2, 0.3]])
def test_splits_are_in_order_of_time_and_look_back(tmp_path, split):
    found = config(table(tmp_path, hours(20)), split=split)
    assert found.splits == ("train", "valid", "test")
    predicted = {
        name: [number for _, target in first_channel(found, name) for number in target]
        for name in found.splits
    }
    # A window may look back into the split before it; what it predicts is of its own split.
    assert {name: (min(each), max(each)) for name, each in predicted.items()} == {
        "train": (4, 9),
        "valid": (10, 13),
        "test": (14, 19),
    }
    assert first_channel(found, "valid")[0][0] == [6, 7, 8, 9]


def test_shares_leave_no_row_out():
    for rows in range(5, 60):
        ends = SeriesConfig(split=(0.7, 0.1, 0.2)).parts(rows)
        assert ends[-1] == rows
        assert ends[0] == int(0.7 * rows + 1e-9)
    assert SeriesConfig(split=(0.5, 0.2)).parts(10) == (5, 7)
    assert SeriesConfig(split=(8.0, 8.0, 8.0)).parts(10) == (8, 10, 10)


def test_statistics_are_of_each_training_row_once(tmp_path):
    path = table(tmp_path, hours(20))
    prepared = prepare(config(path, split=[10, 4, 6]), tmp_path / "cache")
    numbers = np.arange(10.0)
    for learned in (*prepared.sources, prepared.target):
        assert learned.mean == pytest.approx((numbers.mean(), np.square(numbers).mean()))
        assert learned.scale == pytest.approx((numbers.std(), np.square(numbers).std()))
    assert prepared.sources[0].length == 4
    assert prepared.target.length == 2


def test_a_series_is_stored_once_and_windows_are_cut_from_it(tmp_path):
    path = table(tmp_path, hours(40))
    found = config(path, split=[30, 10])
    prepared = prepare(found, tmp_path / "cache")
    assert prepared.train.source.vectors.shape == (30, 2)
    assert prepared.valid.source.vectors.shape == (14, 2)
    for split in ("train", "valid"):
        corpus = getattr(prepared, split)
        every = np.arange(len(corpus))
        sources = corpus.source.gather(every).values.numpy()
        targets = corpus.target.gather(every).values.numpy()
        expected = list(examples(found, split))
        assert len(expected) == len(corpus)
        for i, example in enumerate(expected):
            source = prepared.sources[0].normalize(np.asarray(example.source))
            np.testing.assert_array_equal(sources[i], source)
            np.testing.assert_array_equal(corpus.source.row(i), source)
            target = prepared.target.normalize(np.asarray(example.target))
            np.testing.assert_array_equal(targets[i], target)
        assert corpus.target.predictions(every) == targets.size


def test_groups_are_series_of_their_own_and_short_ones_are_reported(tmp_path, caplog):
    rows = [(*row, "x") for row in hours(7)]
    rows += [(*row, "y") for row in hours(7, first=100)]
    rows += [(*row, "short") for row in hours(5)]
    path = table(tmp_path, [rows[i] for i in np.random.default_rng(0).permutation(7)], "date,a,b,g")
    with pytest.raises(InvalidData, match="Sort the rows"):
        first_channel(config(path, group="g"))
    interleaved = [row for pair in zip(rows[:7], rows[7:14], strict=True) for row in pair]
    path = table(tmp_path, [*interleaved, *rows[14:]], "date,a,b,g")
    found = first_channel(config(path, group="g"))
    assert [source[0] for source, _ in found] == [0, 1, 100, 101]
    assert "series that give no window, 1 with fewer than 6 rows" in caplog.text
    assert "g short" in caplog.text


def test_nothing_but_short_series_is_refused(tmp_path):
    with pytest.raises(InvalidData, match=r"at least 6 rows for the split 'train'.* none among 1"):
        first_channel(config(table(tmp_path, hours(5))))


def test_columns_targets_and_calendar(tmp_path):
    found = config(
        table(tmp_path, hours(30)), columns=("a", "b"), targets=("b",), calendar=("hour",)
    )
    example = next(examples(found, "train"))
    source = np.asarray(example.source)
    np.testing.assert_array_equal(source[:, :2], [(i * i, i) for i in range(4)])
    angles = 2 * np.pi * np.arange(4) / 24
    np.testing.assert_allclose(source[:, 2:], np.stack([np.sin(angles), np.cos(angles)], 1))
    assert np.asarray(example.target).tolist() == [[16.0], [25.0]]


WRONG = {
    "a repeated time": (hours(5) + hours(3, first=4), 7, "wanted a time after 2024-01-01 04:00:00"),
    "an unsorted row": ([*hours(4), *hours(1, first=2)], 6, "Sort the rows"),
    "a gap": (hours(12, skip=(5, 6)), 7, "wanted a row every 3600 seconds; got 10800 seconds"),
    "no number": ([*hours(3), (hour(3), "x", 1)], 5, "wanted a number in 'a'"),
    "infinity": ([*hours(3), (hour(3), "1e39", 1)], 5, "range of float32"),
    "an empty cell": ([*hours(3), (hour(3), 1, "")], 5, "wanted a number in 'b'.*missing"),
    "no time": ([*hours(3), ("soon", 1, 1)], 5, "wanted a time of ISO 8601"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_row_is_refused_with_its_line(tmp_path, wrong):
    rows, line, message = WRONG[wrong]
    with pytest.raises(InvalidData, match=message) as error:
        first_channel(config(table(tmp_path, rows)))
    assert error.value.line == line


def test_gaps_are_split_filled_or_ignored(tmp_path):
    path = table(tmp_path, hours(14, skip=(7,)))
    assert [source[0] for source, _ in first_channel(config(path, gaps="split"))] == [0, 1, 8]
    ignored = first_channel(config(path, gaps="ignore"))
    assert ignored[2] == ([2, 3, 4, 5], [6, 8])
    with pytest.raises(InvalidArgument, match=r"data.series.gaps: wanted 'fill' only with"):
        first_channel(config(path, gaps="fill"))
    filled = first_channel(config(path, {"missing": "mask"}, gaps="fill"))
    assert len(filled) == 9
    np.testing.assert_array_equal(filled[2][1], [6, np.nan])


def test_missing_values_are_masked_where_that_is_asked_for(tmp_path):
    rows = hours(8)
    rows[5] = (hour(5), "", 25)
    found = config(table(tmp_path, rows), {"missing": "mask"})
    prepared = prepare(found, tmp_path / "cache")
    every = np.arange(len(prepared.train))
    assert prepared.train.target.predictions(every) == 3 * 2 * 2 - 2
    assert prepared.train.source.gather(every).mask.sum().item() == 3 * 4 - 1


def test_a_changed_window_prepares_the_data_again(tmp_path):
    path = table(tmp_path, hours(20))
    one, two = (prepare(config(path, window=size), tmp_path / "cache") for size in (4, 5))
    assert one.key != two.key


def test_the_last_window_of_each_series(tmp_path):
    found = config(table(tmp_path, hours(9)))
    (window,) = last_windows(found.series, found.train, "strict", refuse_missing=True)
    assert np.asarray(window)[:, 0].tolist() == [5, 6, 7, 8]
    assert repr(window).endswith("t.csv, 2024-01-01 05:00:00 to 2024-01-01 08:00:00")
    split = config(table(tmp_path, hours(20, skip=(8,))), gaps="split")
    (window,) = last_windows(split.series, split.train, "strict", refuse_missing=True)
    assert np.asarray(window)[:, 0].tolist() == [16, 17, 18, 19]
    short = config(table(tmp_path, hours(3)))
    with pytest.raises(InvalidData, match="at least 4 rows of each series"):
        list(last_windows(short.series, short.train, "strict", refuse_missing=True))


def last(found):
    (window,) = last_windows(found.series, found.train, "strict", refuse_missing=False)
    return window


def test_rows_have_the_time_stamps_of_their_table(tmp_path):
    found = config(table(tmp_path, hours(20)), split=[10, 4, 6])
    first = next(examples(found, "test"))
    # The test split begins with row 15, and its first window looks back to row 11.
    assert first.source.stamps == tuple(hour(i) for i in range(10, 14))
    assert first.target.stamps == (hour(14), hour(15))
    assert repr(first.target).endswith(f"t.csv, {hour(14)} to {hour(15)}")
    field = found.source_fields[0]
    assert field.time_axis(first.source).names([0, 3]) == (hour(10), hour(13))
    assert first.source.stamps_after(2) == (hour(14), hour(15))
    # After the end of the table they follow from the step.
    assert last(found).stamps_after(3) == (hour(20), hour(21), hour(22))


def test_rows_without_times_are_numbered(tmp_path):
    rows = [(i, i) for i in range(6)]
    found = config(table(tmp_path, rows, header="a,b"), time=None)
    window = last(found)
    assert (window.stamps, window.stamps_after(2)) == (None, None)
    assert repr(window).endswith("rows 3 to 6")
    assert found.source_fields[0].time_axis(window).names([0, 3]) == ("3", "6")


@pytest.mark.parametrize(
    ("stamps", "after"),
    [
        (["2024-01-30", "2024-01-31", "2024-02-01", "2024-02-02"], "2024-02-03"),
        ([f"2024-01-01T0{i}:30" for i in range(6, 10)], "2024-01-01T10:30"),
        ([f"2024-01-01 00:00:00.{i}00000" for i in range(4)], "2024-01-01 00:00:00.400000"),
        (["5", "7", "9", "11"], "13"),
        (["0.5", "1", "1.5", "2"], "2.5"),
        ([f"2024-01-01 {i}:00:00+02:00" for i in range(10, 14)], "2024-01-01 14:00:00+02:00"),
    ],
)
def test_time_stamps_after_the_table_are_written_as_in_it(tmp_path, stamps, after):
    rows = [(stamp, 1, 2) for stamp in stamps]
    window = last(config(table(tmp_path, rows)))
    assert window.stamps == tuple(stamps)
    assert window.stamps_after(1) == (after,)


def test_time_stamps_of_gaps(tmp_path):
    path = table(tmp_path, hours(9, skip=(5, 6)))
    mask = {"missing": "mask"}
    filled = config(path, mask, gaps="fill")
    assert last(filled).stamps == tuple(hour(i) for i in range(5, 9))
    split = config(path, mask, gaps="split", window=2, horizon=1)
    assert last(split).stamps == (hour(7), hour(8))
    ignored = config(path, gaps="ignore")
    assert last(ignored).stamps == (hour(3), hour(4), hour(7), hour(8))
    # Steps are unequal: what comes next is not known.
    assert last(ignored).stamps_after(1) is None


def test_a_missing_value_is_refused_with_its_time(tmp_path):
    rows = hours(8)
    rows[5] = (rows[5][0], "", 0)
    with pytest.raises(InvalidData, match=rf"line 7: wanted a number in 'a'.*at {hour(5)}"):
        first_channel(config(table(tmp_path, rows)))


def test_statistics_have_the_names_of_the_columns(tmp_path):
    found = config(table(tmp_path, hours(9)), calendar=["hour"], targets=["b"])
    corpus = prepare(found, tmp_path / "cache")
    names = ("b", "a", "sine of hour", "cosine of hour")
    assert corpus.sources[0].names == names
    assert corpus.target.names == ("b",)
    for each in (corpus.sources[0], corpus.target):
        assert Statistics.from_json(each.to_json()).names == each.names


def test_parquet_columns_of_times_and_missing_values(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    values = [0.0, 1.0, None, 3.0, 4.0, 5.0, 6.0]
    times = [START + timedelta(hours=i) for i in range(7)]
    path = tmp_path / "t.parquet"
    parquet.write_table(pyarrow.table({"date": times, "a": values}), path)
    with pytest.raises(InvalidData, match=r"line 3: wanted a number in 'a'"):
        first_channel(config(str(path)))
    found = first_channel(config(str(path), {"missing": "mask"}))
    np.testing.assert_array_equal(found[0][0], [0, 1, np.nan, 3])


PROBLEMS = {
    "data.source.kind": {"source": {"kind": "text"}},
    "data.target.kind": {"target": {"kind": "number"}},
    "data.source.column": {"source": {"kind": "vectors", "column": "a"}},
    "data.valid": {"valid": 0.1},
    "data.train": {"train": ["a.csv", "b.csv"]},
    "data.series.split": {"series": {"split": [1.0, 0.5]}},
    "data.series.calendar": {"series": {"calendar": ["hour"]}},
    "data.series.season": {"series": {"season": 97}},
    "data.series.targets": {"series": {"columns": ["a"], "targets": ["b"]}},
    "data.series.columns": {"series": {"columns": ["a", "a"]}},
}


@pytest.mark.parametrize("key", PROBLEMS)
def test_what_does_not_go_with_series_is_refused(key):
    field = {"kind": "vectors"}
    table = {"train": "a.csv", "source": field, "target": field, "series": {}} | PROBLEMS[key]
    found = read(DataConfig, table, "data")
    assert isinstance(found, list)
    assert key in [problem.key for problem in found]


def test_files_beside_a_split_are_refused():
    field = {"kind": "vectors"}
    series = {"split": [0.8, 0.2]}
    data = {"train": "a.csv", "valid": "b.csv", "source": field, "target": field, "series": series}
    assert [problem.key for problem in read(DataConfig, data, "data")] == ["data.valid"]
