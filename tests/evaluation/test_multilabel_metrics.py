"""Metrics of label sets equal scikit-learn's, also on resamples and for labels that never occur."""

from functools import cache

import numpy as np
import pytest

from regard.core.errors import InvalidArgument
from regard.evaluation.bootstrap import bootstrap, confidence_interval
from regard.evaluation.multilabel_metrics import (
    MULTILABEL_METRICS,
    SCORE_METRICS,
    SET_METRICS,
    MultilabelStatistics,
    ScoredLabels,
)
from support.sklearn_metrics import assert_equal_values, cases

NAMES = list(MULTILABEL_METRICS)


@cache
def set_cases():
    return cases("label_sets")


def label_names(count):
    return [f"label {i}" for i in range(count)]


def of_case(name, case, chosen=slice(None)):
    statistics = MULTILABEL_METRICS[name](label_names(len(case["references"][0])))
    references = np.array(case["references"])[chosen]
    if isinstance(statistics, ScoredLabels):
        statistics.add_scores(np.array(case["scores"])[chosen], references)
    else:
        statistics.add_flags(np.array(case["predicted"])[chosen], references)
    return statistics


@pytest.mark.parametrize("name", NAMES)
def test_values_equal_scikit_learn(name):
    for i, case in enumerate(set_cases()):
        counts = np.array([np.ones(len(case["weights"])), case["weights"]])
        wanted = [case["metrics"][name], case["resampled"][name]]
        assert_equal_values(of_case(name, case).values(counts), wanted, i)


@pytest.mark.parametrize("name", NAMES)
def test_a_selection_equals_its_examples_alone(name):
    random = np.random.default_rng(1)
    for case in set_cases()[:20]:
        chosen = random.permutation(len(case["weights"]))[: len(case["weights"]) // 2 + 1]
        once = np.ones((1, len(chosen)))
        alone = of_case(name, case, chosen)
        together = of_case(name, case)
        assert_equal_values(together.values(once, chosen), alone.values(once).tolist())
        assert together.totals(chosen) == alone.totals(np.arange(len(chosen)))


@pytest.mark.parametrize("name", NAMES)
def test_examples_may_be_added_in_parts(name):
    case = max(set_cases(), key=lambda one: len(one["weights"]))
    statistics = of_case(name, case, slice(0, 5))
    rest = of_case(name, case)
    references = np.array(case["references"])[5:]
    if name in SCORE_METRICS:
        statistics.add_scores(np.array(case["scores"])[5:], references)
    else:
        statistics.add_flags(np.array(case["predicted"])[5:], references)
    once = np.ones((1, len(case["weights"])))
    assert_equal_values(statistics.values(once), rest.values(once).tolist())


@pytest.mark.parametrize("name", NAMES)
def test_examples_may_be_added_after_values_were_asked_for(name):
    case = max(set_cases(), key=lambda one: len(one["weights"]))
    statistics = of_case(name, case, slice(0, 5))
    statistics.values(np.ones((1, 5)))
    references = np.array(case["references"])[5:]
    if name in SCORE_METRICS:
        statistics.add_scores(np.array(case["scores"])[5:], references)
    else:
        statistics.add_flags(np.array(case["predicted"])[5:], references)
    once = np.ones((1, len(case["weights"])))
    assert_equal_values(statistics.values(once), of_case(name, case).values(once).tolist())


def test_tables_equal_scikit_learn():
    for i, case in enumerate(set_cases()):
        table = of_case("f1", case).table()
        assert [row["label"] for row in table] == label_names(len(table))
        for column in ("precision", "recall", "f1", "references"):
            assert_equal_values([row[column] for row in table], case["labels"][column], i)
        scores = of_case("average_precision", case).per_label()
        assert_equal_values(list(scores.values()), case["labels"]["average_precision"], i)
        outputs = np.array(case["predicted"]).sum(0)
        assert [row["outputs"] for row in table] == outputs.tolist()


@pytest.mark.parametrize("name", SET_METRICS)
def test_texts_equal_flags(name):
    outputs = ["b a", "", "c", "a a"]
    references = [["a"], [""], ["c b"], ["b"]]
    of_texts = MultilabelStatistics(SET_METRICS[name], ["a", "b", "c", "d"])
    of_texts.add(outputs[:2], references[:2])
    of_texts.add(outputs[2:], references[2:])
    of_flags = MultilabelStatistics(SET_METRICS[name], ["a", "b", "c", "d"])
    predicted = [[1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0], [1, 0, 0, 0]]
    gold = [[1, 0, 0, 0], [0, 0, 0, 0], [0, 1, 1, 0], [0, 1, 0, 0]]
    of_flags.add_flags(np.array(predicted), np.array(gold))
    counts = np.array([[1.0, 1, 1, 1], [0, 2, 0, 1]])
    assert_equal_values(of_texts.values(counts), of_flags.values(counts).tolist())
    assert of_texts.table() == of_flags.table()


def test_labels_of_texts_are_collected_and_split_as_asked():
    statistics = MultilabelStatistics(SET_METRICS["f1"], split=lambda text: text.split("; "))
    statistics.add(["very good; red"], [["red"]])
    assert [row["label"] for row in statistics.table()] == ["red", "very good"]
    assert statistics.values(np.ones((1, 1))).tolist() == [0.5]


def test_labels_that_never_occur_count_as_zero_in_macro_averages_alone():
    flags = np.array([[1, 0], [1, 0]])
    for name, wanted in {"f1": 0.5, "f1_micro": 1.0, "precision": 0.5, "recall": 0.5}.items():
        statistics = MULTILABEL_METRICS[name](["used", "unused"])
        statistics.add_flags(flags, flags)
        assert statistics.values(np.ones((1, 2))).tolist() == [wanted]


def test_no_label_at_all_is_exact_and_has_no_f1():
    empty = np.zeros((3, 2), bool)
    found = {}
    for name in SET_METRICS:
        statistics = MULTILABEL_METRICS[name](["a", "b"])
        statistics.add_flags(empty, empty)
        found[name] = statistics.values(np.ones((1, 3)))[0]
    assert found.pop("accuracy") == 1.0
    assert set(found.values()) == {0.0}


def test_totals():
    statistics = MULTILABEL_METRICS["f1_micro"](["a", "b"])
    statistics.add_flags(np.array([[1, 1], [0, 1]]), np.array([[1, 0], [0, 1]]))
    assert statistics.totals(np.array([0, 1])) == {
        "correct": 2.0,
        "outputs": 3.0,
        "references": 2.0,
        "exact": 1.0,
        "examples": 2.0,
    }


@pytest.mark.parametrize("name", NAMES)
def test_intervals_contain_the_value(name):
    random = np.random.default_rng(2)
    references = random.random((80, 4)) < 0.4
    scores = np.clip(0.3 * references + 0.7 * random.random(references.shape), 0, 1)
    case = {"scores": scores, "predicted": scores >= 0.5, "references": references}
    statistics = of_case(name, case)
    low, high = confidence_interval(bootstrap([statistics], np.arange(80), resamples=100)[0])
    assert low < statistics.values(np.ones((1, 80)))[0] < high


def test_unusable_arrays_are_refused():
    statistics = MULTILABEL_METRICS["f1"](["a", "b"])
    with pytest.raises(InvalidArgument, match="an array of examples and 2 labels"):
        statistics.add_flags(np.zeros((3, 3)), np.zeros((3, 2)))
    with pytest.raises(InvalidArgument, match=r"0 or 1 for each label; got 0\.7"):
        statistics.add_flags(np.full((3, 2), 0.7), np.zeros((3, 2)))
    with pytest.raises(InvalidArgument, match="references, 3; got 2"):
        statistics.add_flags(np.zeros((2, 2)), np.zeros((3, 2)))
    scored = MULTILABEL_METRICS["average_precision"](["a", "b"])
    with pytest.raises(InvalidArgument, match=r"as many as references, \(3, 2\)"):
        scored.add_scores(np.zeros((3, 1)), np.zeros((3, 2)))
    with pytest.raises(InvalidArgument, match="finite numbers; got nan"):
        scored.add_scores(np.full((3, 2), np.nan), np.zeros((3, 2)))


def test_unusable_texts_are_refused():
    with pytest.raises(InvalidArgument, match="computed from probabilities"):
        MULTILABEL_METRICS["average_precision"](["a"]).add(["a"], [["a"]])
    with pytest.raises(InvalidArgument, match="one set of labels an example; got 2"):
        MULTILABEL_METRICS["f1"](["a"]).add(["a"], [["a", "b"]])
