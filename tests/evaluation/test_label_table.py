"""Tables of labels equal scikit-learn's, and their text is a terminal's."""

import numpy as np
import pytest

from regard.core.errors import InvalidArgument
from regard.evaluation.label_table import (
    Confusion,
    LabelPairs,
    average_rows,
    confusion_matrix_text,
    confusions_text,
    label_table_text,
)
from support.sklearn_metrics import assert_equal_values, cases

REFERENCES = ["cat", "cat", "dog", "cat", "bird", "dog"]
PREDICTED = ["cat", "dog", "dog", "dog", "cat", "dog"]


def test_tables_and_matrices_equal_scikit_learn():
    for i, case in enumerate(cases("single_labels")):
        names = [f"label {k}" for k in range(case["labels"])]
        pairs = LabelPairs.of_ids(names, np.array(case["references"]), np.array(case["predicted"]))
        table = pairs.table()
        for column in ("precision", "recall", "f1"):
            assert_equal_values([row[column] for row in table], case[column], i)
        assert [row["references"] for row in table] == case["support"]
        assert pairs.confusion_matrix().tolist() == case["matrix"]
        mean, weighted = average_rows(table)
        columns = ("precision", "recall", "f1")
        assert_equal_values([weighted[name] for name in columns], case["weighted"], i)
        assert_equal_values([mean[name] for name in columns], [np.mean(case[c]) for c in columns])


def test_names_are_counted_like_ids():
    pairs = LabelPairs.of_names(REFERENCES, PREDICTED, ["dog", "cat", "fish"])
    assert pairs.labels == ("dog", "cat", "fish", "bird")
    assert pairs.confusion_matrix().tolist() == [
        [2, 0, 0, 0],
        [2, 1, 0, 0],
        [0, 0, 0, 0],
        [0, 1, 0, 0],
    ]
    assert [row["label"] for row in pairs.table()] == ["bird", "cat", "dog", "fish"]
    assert pairs.table()[1] == {
        "label": "cat",
        "precision": 0.5,
        "recall": pytest.approx(1 / 3),
        "f1": pytest.approx(0.4),
        "references": 3,
        "outputs": 2,
    }


def test_confusions_are_the_most_frequent_errors():
    pairs = LabelPairs.of_names(REFERENCES, PREDICTED)
    assert pairs.confusions() == [Confusion("cat", "dog", 2), Confusion("bird", "cat", 1)]
    assert pairs.confusions(1) == [Confusion("cat", "dog", 2)]
    assert LabelPairs.of_names(["a"], ["a"]).confusions() == []


def test_confusions_are_sorted_by_count_and_then_by_name():
    pairs = LabelPairs.of_names(list("zzyyx"), list("yxxxy"))
    assert [(one.reference, one.output, one.count) for one in pairs.confusions()] == [
        ("y", "x", 2),
        ("x", "y", 1),
        ("z", "x", 1),
        ("z", "y", 1),
    ]


def test_confusions_equal_the_matrix_outside_its_diagonal():
    for case in cases("single_labels"):
        names = [str(k) for k in range(case["labels"])]
        pairs = LabelPairs.of_ids(names, np.array(case["references"]), np.array(case["predicted"]))
        matrix = np.array(case["matrix"])
        for one in pairs.confusions():
            assert matrix[int(one.reference), int(one.output)] == one.count
            matrix[int(one.reference), int(one.output)] = 0
        assert (matrix == np.diag(np.diag(matrix))).all()


def test_confusions_of_many_labels_need_no_matrix():
    labels = [str(i) for i in range(200_000)]
    ids = np.arange(1000)
    pairs = LabelPairs.of_ids(labels, ids, ids + 199_000)
    assert len(pairs.confusions()) == 1000
    assert len(pairs.table()) == 200_000
    with pytest.raises(InvalidArgument, match="List the most frequent confusions"):
        pairs.confusion_matrix()


def test_texts():
    pairs = LabelPairs.of_names(REFERENCES, PREDICTED)
    assert label_table_text(pairs.table(), averages=True).splitlines() == [
        "label            precision    recall       f1   references   outputs",
        "bird                 0.00%     0.00%    0.00%            1         0",
        "cat                 50.00%    33.33%   40.00%            3         2",
        "dog                 50.00%   100.00%   66.67%            2         4",
        "mean of labels      33.33%    44.44%   35.56%            6         6",
        "weighted mean       41.67%    50.00%   42.22%            6         6",
    ]
    assert confusion_matrix_text(pairs).splitlines() == [
        "reference \\ output   cat   dog   bird",
        "cat                    1     2      0",
        "dog                    0     2      0",
        "bird                   1     0      0",
    ]
    assert confusions_text(pairs.confusions()).splitlines() == [
        "reference   output   count",
        "cat         dog          2",
        "bird        cat          1",
    ]


def test_a_column_of_average_precision_is_shown_where_there_is_one():
    row = {"label": "a", "precision": 1.0, "recall": 0.5, "f1": 2 / 3, "average_precision": 0.75}
    lines = label_table_text([row | {"references": 4, "outputs": 2}]).splitlines()
    assert lines[0].split("   ")[-3:] == ["average precision", "references", "outputs"]
    assert lines[1].split() == ["a", "100.00%", "50.00%", "66.67%", "75.00%", "4", "2"]


def test_control_characters_of_labels_are_not_printed():
    pairs = LabelPairs.of_names(["a\x1b[31m"], ["b\n"])
    rows = pairs.table()
    for text in (
        label_table_text(rows),
        confusion_matrix_text(pairs),
        confusions_text(pairs.confusions()),
    ):
        assert "\x1b" not in text
        assert "a\ufffd[31m" in text
        assert "b\ufffd" in text


def test_no_examples_have_a_table_of_zeros():
    pairs = LabelPairs.of_names([], [], ["a", "b"])
    assert [row["f1"] for row in pairs.table()] == [0.0, 0.0]
    assert average_rows(pairs.table())[1]["f1"] == 0.0
    assert pairs.confusion_matrix().tolist() == [[0, 0], [0, 0]]
    assert label_table_text([]) == ""


def test_unusable_labels_are_refused():
    with pytest.raises(InvalidArgument, match="an index from 0 to 1; got 2"):
        LabelPairs.of_ids(["a", "b"], np.array([0, 2]), np.array([0, 1]))
    with pytest.raises(InvalidArgument, match="an index from 0 to 1; got -1"):
        LabelPairs.of_ids(["a", "b"], np.array([0, 1]), np.array([0, -1]))
    with pytest.raises(InvalidArgument, match="one label for each reference"):
        LabelPairs.of_ids(["a", "b"], np.array([0, 1]), np.array([0]))
    with pytest.raises(InvalidArgument, match="as many as there are references, 1; got 2"):
        LabelPairs.of_names(["a"], ["a", "b"])
