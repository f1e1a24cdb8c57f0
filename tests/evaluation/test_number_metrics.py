"""Metrics of numbers equal scikit-learn's and SciPy's, also on resamples; undefined ones are told apart."""

from functools import cache

import numpy as np
import pytest

from regard.core.errors import InvalidArgument
from regard.evaluation.bootstrap import bootstrap, resample_counts
from regard.evaluation.number_metrics import (
    NUMBER_METRICS,
    number_statistics,
    number_table,
    read_numbers,
)
from regard.evaluation.undefined import (
    defined_interval,
    defined_p_value,
    value_or_none,
    value_text,
)
from support.sklearn_metrics import assert_equal_values, cases

NAMES = list(NUMBER_METRICS)


@cache
def number_cases():
    return cases("numbers")


def with_numbers(name, predicted, references):
    statistics = number_statistics(name)
    statistics.add_numbers(np.array(predicted), np.array(references))
    return statistics


def value(name, predicted, references):
    return with_numbers(name, predicted, references).values(np.ones((1, len(predicted))))[0]


@pytest.mark.parametrize("name", NAMES)
def test_values_equal_scikit_learn_and_scipy(name):
    for i, case in enumerate(number_cases()):
        statistics = with_numbers(name, case["predicted"], case["references"])
        once = np.ones((1, len(case["predicted"])))
        wanted = case["metrics"]["columns"][name]
        assert_equal_values(statistics.column_values(once)[:, 0], wanted, i)
        if name in case["metrics"]["averages"]:
            average = case["metrics"]["averages"][name]
        else:
            average = None if None in wanted else np.mean(wanted)
        assert_equal_values(statistics.values(once), [average], i)


@pytest.mark.parametrize("name", NAMES)
def test_examples_that_count_several_times_equal_repeated_examples(name):
    for i, case in enumerate(number_cases()):
        statistics = with_numbers(name, case["predicted"], case["references"])
        counts = np.array([case["weights"]], float)
        wanted = case["resampled"]["columns"][name]
        assert_equal_values(statistics.column_values(counts)[:, 0], wanted, i)


@pytest.mark.parametrize("name", NAMES)
def test_several_counts_and_indices_equal_one_computation_each(name):
    random = np.random.default_rng(3)
    references = np.round(random.normal(size=(40, 2)), 1)
    predicted = np.round(references + random.normal(size=(40, 2)), 1)
    statistics = with_numbers(name, predicted[:25], references[:25])
    statistics.add_numbers(predicted[25:], references[25:])
    indices = np.array([3, 1, 38, 17, 20, 9, 30])
    counts = random.integers(1, 4, size=(5, len(indices)))
    values = statistics.values(counts.astype(float), indices)
    for row, found in zip(counts, values, strict=True):
        chosen = indices.repeat(row)
        assert_equal_values(found, value(name, predicted[chosen], references[chosen]))


@pytest.mark.parametrize("name", ["r2", "pearson", "spearman"])
def test_an_outlier_does_not_spoil_the_resamples_without_it(name):
    random = np.random.default_rng(4)
    references = random.normal(size=60)
    predicted = references + 0.3 * random.normal(size=60)
    references[0] = 1e12
    predicted[0] = -1e11
    statistics = with_numbers(name, predicted, references)
    counts = np.ones((2, 60))
    counts[0, 0] = 0
    without, _ = statistics.values(counts)
    assert without == pytest.approx(value(name, predicted[1:], references[1:]), abs=1e-9)


@pytest.mark.parametrize("name", ["r2", "pearson"])
def test_a_resample_of_close_numbers_far_from_the_others_keeps_its_digits(name):
    references = np.array([*np.linspace(0, 1, 9), *(1e6 + np.array([0, 1e-3, 3e-3, 4e-3]))])
    predicted = references + np.array([0.1, -0.1] * 4 + [0.0] + [1e-3, 0, -1e-3, 2e-3])
    counts = np.array([[0.0] * 9 + [1, 2, 1, 1]])
    far = np.array([9, 10, 10, 11, 12])
    found = with_numbers(name, predicted, references).values(counts)[0]
    moved = value(name, predicted[far] - 1e6, references[far] - 1e6)
    assert found == pytest.approx(moved, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "predicted", "references"),
    [
        ("r2", [1.0, 2.0, 3.0], [0.1, 0.1, 0.1]),
        ("r2", [0.1, 0.1, 0.1], [0.1, 0.1, 0.1]),
        ("r2", [1.0], [2.0]),
        ("pearson", [0.1, 0.1, 0.1], [1.0, 2.0, 3.0]),
        ("pearson", [1.0, 2.0, 3.0], [0.1, 0.1, 0.1]),
        ("pearson", [1.0], [2.0]),
        ("spearman", [0.1, 0.1, 0.1], [1.0, 2.0, 3.0]),
        ("spearman", [1.0, 2.0, 3.0], [0.1, 0.1, 0.1]),
        ("spearman", [1.0], [2.0]),
        ("mse", [1.0, 2.0], [np.nan, np.nan]),
        ("spearman", [1.0, 2.0], [np.nan, np.nan]),
    ],
)
def test_metrics_without_a_value_are_undefined(name, predicted, references):
    found = value(name, predicted, references)
    assert np.isnan(found)
    assert value_or_none(found) is None
    assert value_text(found) == "undefined"


def test_constant_predictions_have_an_r2():
    assert value("r2", [2.0, 2.0, 2.0], [1.0, 2.0, 3.0]) == 0.0
    assert value_text(value("r2", [5.0, 5.0, 5.0], [1.0, 2.0, 3.0]), 2) == "-13.50"


@pytest.mark.parametrize("name", ["pearson", "spearman"])
def test_a_resample_that_draws_equal_numbers_is_undefined(name):
    statistics = with_numbers(name, [0.1, 0.3, 0.7, 0.9], [1.1, 1.7, 1.3, 1.9])
    counts = np.array([[0.0, 0, 4, 0], [0, 3, 0, 0], [1, 1, 1, 1]])
    assert np.isnan(statistics.values(counts)).tolist() == [True, True, False]


@pytest.mark.parametrize("name", ["r2", "pearson", "spearman"])
def test_equal_numbers_are_undefined_however_their_mean_is_rounded(name):
    random = np.random.default_rng(8)
    references = np.append(np.full(5, 2.1), random.normal(size=20))
    predicted = random.normal(size=25)
    counts = np.zeros((200, 25))
    counts[:, :5] = random.integers(1, 12, size=(200, 5))
    assert np.isnan(with_numbers(name, predicted, references).values(counts)).all()


def test_examples_may_be_added_after_values_were_asked_for():
    statistics = with_numbers("mae", [1.0], [2.0])
    assert statistics.values(np.ones((1, 1))) == 1.0
    statistics.add_numbers(np.array([5.0]), np.array([8.0]))
    assert statistics.values(np.ones((1, 2))) == 2.0


def test_missing_references_are_left_out_of_their_number_alone():
    random = np.random.default_rng(5)
    references = random.normal(size=(12, 2))
    predicted = random.normal(size=(12, 2))
    references[[1, 4], 0] = np.nan
    known = [i for i in range(12) if i not in (1, 4)]
    for name in NAMES:
        statistics = with_numbers(name, predicted, references)
        first, second = statistics.column_values(np.ones((1, 12)))[:, 0]
        assert_equal_values(first, value(name, predicted[known, 0], references[known, 0]), name)
        assert_equal_values(second, value(name, predicted[:, 1], references[:, 1]), name)


def test_totals_are_the_sums_of_the_metric():
    assert with_numbers("mse", [1.0, 2.0, 9.0], [3.0, 2.0, 0.0]).totals(np.array([0, 1])) == {
        "numbers": 2.0,
        "squared_errors": 4.0,
    }
    statistics = number_statistics("mae", ["width", "height"])
    statistics.add_numbers(np.array([[1.0, 2.0]]), np.array([[1.5, 0.0]]))
    assert statistics.totals(np.array([0])) == {
        "width: numbers": 1.0,
        "width: absolute_errors": 0.5,
        "height: numbers": 1.0,
        "height: absolute_errors": 2.0,
    }


def test_a_table_has_a_row_for_each_number():
    predicted = np.array([[1.0, 5.0], [2.0, 5.0], [4.0, 5.0]])
    references = np.array([[1.0, 4.0], [3.0, 5.0], [4.0, 6.0]])
    assert number_table(["mae", "spearman"], predicted, references, ["width", "height"]) == [
        {"number": "width", "mae": pytest.approx(1 / 3), "spearman": pytest.approx(1.0)},
        {"number": "height", "mae": pytest.approx(2 / 3), "spearman": None},
    ]
    assert [row["number"] for row in number_table(["mae"], predicted, references)] == ["1", "2"]


def test_numbers_are_read_from_texts():
    statistics = number_statistics("mae")
    statistics.add(["1 2.5", "-3e1, 4"], [["1.5 2.5"], ["-30 nan"]])
    assert statistics.column_values(np.ones((1, 2)))[:, 0].tolist() == [0.25, 0.0]


@pytest.mark.parametrize("text", ["", "one", "1;2", "1 two"])
def test_a_text_without_numbers_is_refused(text):
    with pytest.raises(InvalidArgument, match="wanted a number"):
        read_numbers(text)


@pytest.mark.parametrize(
    ("outputs", "references", "message"),
    [
        (["1"], [["1", "2"]], "one reference an example"),
        (["1", "1 2"], [["1"], ["1"]], "got 1 to 2 in outputs and 1 in references"),
        (["1"], [["1 2"]], "got 1 in outputs and 2 in references"),
        (["nan"], [["1"]], "predictions: wanted finite numbers"),
        (["1"], [["inf"]], "references: wanted finite numbers"),
        (["1e200"], [["1"]], "predictions: wanted finite numbers of at most"),
    ],
)
def test_unusable_texts_are_refused(outputs, references, message):
    with pytest.raises(InvalidArgument, match=message):
        number_statistics("mse").add(outputs, references)


def test_unusable_arrays_are_refused():
    statistics = number_statistics("mse", ["width", "height"])
    with pytest.raises(InvalidArgument, match=r"as many as references, \(3, 2\)"):
        statistics.add_numbers(np.zeros((2, 2)), np.zeros((3, 2)))
    with pytest.raises(InvalidArgument, match="2 numbers an example, as before; got 1"):
        statistics.add_numbers(np.zeros(3), np.zeros(3))
    with pytest.raises(InvalidArgument, match="one or two dimensions"):
        statistics.add_numbers(np.zeros((3, 2, 1)), np.zeros((3, 2, 1)))


@pytest.mark.parametrize("name", NAMES)
def test_intervals_contain_the_value_and_equal_those_of_repeated_examples(name):
    random = np.random.default_rng(6)
    references = random.normal(size=50)
    predicted = references + 0.5 * random.normal(size=50)
    statistics = with_numbers(name, predicted, references)
    resampled = bootstrap([statistics], np.arange(50), resamples=200)[0]
    low, high = defined_interval(resampled)
    assert low < value(name, predicted, references) < high
    (counts,) = resample_counts(50, 200)
    drawn = np.arange(50).repeat(counts[7].astype(int))
    assert_equal_values(resampled[7], value(name, predicted[drawn], references[drawn]))


def test_intervals_leave_out_a_few_undefined_resamples_and_no_more():
    values = np.linspace(0.0, 1.0, 101)
    values[50] = np.nan
    low, high = defined_interval(values)
    assert 0.0 < low < 0.05
    assert 0.95 < high < 1.0
    values[:20] = np.nan
    assert defined_interval(values) is None
    assert defined_interval(np.full(3, np.nan)) is None
    assert defined_p_value(0.3, values, 100) is None
    assert defined_p_value(float("nan"), np.zeros(10), 100) is None


def test_p_values_leave_out_undefined_resamples():
    differences = np.random.default_rng(0).normal(1.0, 0.1, size=200)
    with_gap = np.append(differences, np.nan)
    assert defined_p_value(1.0, with_gap, 100) == defined_p_value(1.0, differences, 100) < 0.01


def test_texts_of_values():
    assert value_text(0.51239) == "0.5124"
    assert value_text(0.51239, percent=True) == "51.24%"
    assert value_text(None) == "undefined"
    assert value_or_none(0.0) == 0.0
