"""Metrics of tags: equal to seqeval in both of its modes, with values on resamples, tables and confusions."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from regard.core.errors import InvalidArgument
from regard.data.token_lists import cell_of
from regard.evaluation.bootstrap import bootstrap, confidence_interval, resample_counts
from regard.evaluation.span_metrics import (
    SPAN_METRICS,
    SpanStatistics,
    TokenConfusion,
    macro_average,
    micro_average,
    token_accuracy,
)
from regard.evaluation.statistics import f1, precision, recall

FIXTURE = Path(__file__).parents[1] / "fixtures" / "seqeval.json"
CORPORA = json.loads(FIXTURE.read_text())["corpora"]
METRICS = (precision, recall, f1)


def collected(make, outputs, references, chunk=3) -> SpanStatistics:
    statistics = make()
    texts = [cell_of(tags) for tags in outputs]
    wanted = [[cell_of(tags)] for tags in references]
    for i in range(0, len(texts), chunk):
        statistics.add(texts[i : i + chunk], wanted[i : i + chunk])
    return statistics


def value(make, outputs, references):
    return collected(make, outputs, references).values(np.ones((1, len(outputs))))[0]


def score(make, output: str, reference: str):
    return value(make, [output.split()], [reference.split()])


@pytest.mark.parametrize("mode", ["lenient", "strict"])
def test_scores_are_those_of_seqeval(mode):
    assert len(CORPORA) == 30
    for corpus in CORPORA:
        pair = corpus["outputs"], corpus["references"]
        for metric, micro, macro in zip(
            METRICS, corpus[f"{mode}_micro"], corpus[f"{mode}_macro"], strict=False
        ):
            assert value(partial(micro_average, metric, mode), *pair) == pytest.approx(micro)
            assert value(partial(macro_average, metric, mode), *pair) == pytest.approx(macro)
        table = collected(partial(micro_average, f1, mode), *pair).table()
        keys = ("precision", "recall", "f1", "references")
        for key, column in zip(keys, corpus[f"{mode}_types"], strict=True):
            assert [row[key] for row in table] == pytest.approx(column)
        assert value(token_accuracy, *pair) == pytest.approx(corpus["accuracy"])


@pytest.mark.parametrize("name", SPAN_METRICS)
def test_a_resample_scores_as_its_sentences_would(name):
    make = SPAN_METRICS[name]["statistics"]
    corpus = CORPORA[0]
    outputs = corpus["outputs"]
    references = corpus["references"]
    statistics = collected(make, outputs, references)
    (counts,) = resample_counts(len(outputs), 4)
    for found, row in zip(statistics.values(counts), counts.astype(int), strict=True):
        rows = np.repeat(np.arange(len(outputs)), row)
        again = value(make, [outputs[i] for i in rows], [references[i] for i in rows])
        assert found == pytest.approx(again)
    some = np.array([7, 2, 2, 9])
    weights = np.array([[1.0, 2.0, 0.0, 3.0]])
    rows = [7, 2, 2, 9, 9, 9]
    again = value(make, [outputs[i] for i in rows], [references[i] for i in rows])
    assert statistics.values(weights, some)[0] == pytest.approx(again)


def test_intervals_contain_the_value():
    outputs = [tags for corpus in CORPORA[:15] for tags in corpus["outputs"]]
    references = [tags for corpus in CORPORA[:15] for tags in corpus["references"]]
    make = SPAN_METRICS["span_f1"]["statistics"]
    statistics = collected(make, outputs, references)
    resampled = bootstrap([statistics], np.arange(len(outputs)), 200)
    low, high = confidence_interval(resampled[0])
    assert low < value(make, outputs, references) < high


BY_HAND = [
    ("lenient", "B-X I-X O", "B-X I-X O", 1.0),
    ("lenient", "B-X O O", "B-X I-X O", 0.0),
    ("lenient", "B-Y I-Y O", "B-X I-X O", 0.0),
    ("lenient", "I-X I-X O", "B-X I-X O", 1.0),
    ("strict", "I-X I-X O", "B-X I-X O", 0.0),
    ("strict", "B-X E-X S-X", "B-X E-X O", 2 / 3),
    ("strict", "B-X I-X O", "B-X E-X O", 0.0),
    ("strict", "B-X E-X", "O O", 0.0),
    ("lenient", "O O", "O O", 0.0),
    ("strict", "O O", "O O", 0.0),
    ("lenient", "", "", 0.0),
]


@pytest.mark.parametrize(("mode", "output", "reference", "wanted"), BY_HAND)
def test_f1_by_hand(mode, output, reference, wanted):
    for average in (micro_average, macro_average):
        assert score(partial(average, f1, mode), output, reference) == pytest.approx(wanted)


def test_the_strict_scheme_is_that_of_all_sentences():
    """A sentence whose tags would also be IOB2 is read as BIOES if another has E-."""
    references = [["B-X", "I-X"], ["B-X", "E-X"]]
    statistics = collected(partial(micro_average, f1, "strict"), references, references)
    assert statistics.totals(np.arange(2)) == {"correct": 1, "predicted": 1, "references": 1}
    assert statistics.signature() == "mode:strict|scheme:BIOES"
    assert collected(partial(micro_average, f1), references, references).signature() is None


@pytest.mark.parametrize(
    ("output", "reference", "scheme"),
    [
        ("B-X I-X", "B-X E-X", "BIOES"),
        ("B-X I-X", "I-X E-X", "BIOES"),
        ("B-X", "E-X", "BIOES"),
        ("B-X E-X", "O O", "BIOES"),
        ("O O", "I-X I-X", "IOB2"),
        ("O", "O", "IOB2"),
    ],
)
def test_the_strict_scheme_is_that_of_the_references_if_they_have_one(output, reference, scheme):
    make = partial(micro_average, f1, "strict")
    statistics = collected(make, [output.split()], [reference.split()])
    assert statistics.signature() == f"mode:strict|scheme:{scheme}"


def test_totals_are_sums_over_sentences():
    outputs = [["B-X", "O"], ["B-Y", "B-X"]]
    references = [["B-X", "O"], ["B-Y", "O"]]
    statistics = collected(partial(micro_average, f1), outputs, references)
    assert statistics.totals(np.array([0, 1])) == {"correct": 2, "predicted": 3, "references": 2}
    assert statistics.totals(np.array([1])) == {"correct": 1, "predicted": 2, "references": 1}
    confusion = collected(TokenConfusion, outputs, references)
    assert confusion.totals(np.array([1])) == {"correct": 1, "tokens": 2}


def test_confusions_and_the_table_of_tags():
    outputs = [["N", "V", "N"], ["V", "D"]]
    references = [["N", "N", "D"], ["V", "N"]]
    confusion = collected(TokenConfusion, outputs, references, chunk=1)
    assert confusion.confusions() == [
        {"reference": "D", "output": "N", "count": 1},
        {"reference": "N", "output": "D", "count": 1},
        {"reference": "N", "output": "V", "count": 1},
    ]
    assert len(confusion.confusions(2)) == 2
    rows = {row.pop("label"): row for row in confusion.table()}
    assert list(rows) == ["D", "N", "V"]
    assert rows["N"] == {
        "precision": 1 / 2,
        "recall": 1 / 3,
        "f1": 2 / 5,
        "references": 3,
        "outputs": 2,
    }
    assert rows["V"]["precision"] == 1 / 2
    assert rows["D"]["f1"] == 0.0


def test_tags_with_spaces():
    tags = ["B-work of art", "I-work of art", "O"]
    statistics = collected(partial(micro_average, f1), [tags], [tags])
    assert [row["label"] for row in statistics.table()] == ["work of art"]


@pytest.mark.parametrize(
    ("make", "output", "references", "message"),
    [
        (partial(micro_average, f1), "B-X", ["B-X O"], r"outputs: wanted 2 tags.*got 1"),
        (token_accuracy, "B-X", ["B-X O"], r"outputs: wanted 2 tags.*got 1"),
        (partial(micro_average, f1), "O", ["O", "B-X"], r"wanted one sequence of tags.*got 2"),
        (partial(micro_average, f1), "NOUN", ["O"], r"outputs: wanted tags of spans.*'NOUN'"),
        (partial(micro_average, f1), "O", ["U-X"], r"references: wanted tags of spans.*'U-X'"),
    ],
)
def test_what_cannot_be_compared_is_refused(make, output, references, message):
    with pytest.raises(InvalidArgument, match=message):
        make().add([output], [references])


def test_two_schemes_are_refused_strictly():
    statistics = collected(partial(micro_average, f1, "strict"), [["S-X", "O"]], [["B-X", "I-X"]])
    with pytest.raises(InvalidArgument, match=r"outputs: wanted tags of IOB2.*got 'S-X'"):
        statistics.values(np.ones((1, 1)))
