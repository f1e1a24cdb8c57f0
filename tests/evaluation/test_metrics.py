"""Metrics against sacreBLEU and by hand; confidence intervals, p-values, length buckets; memory and speed."""

import random
import time
import tracemalloc
from functools import partial

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.significance import PairedTest

from regard.core.config import read
from regard.core.errors import InvalidArgument
from regard.core.metric_names import HIGHER_IS_BETTER
from regard.core.version import __version__
from regard.evaluation.bootstrap import bootstrap, confidence_interval, p_value, resample_counts
from regard.evaluation.metrics import (
    METRICS,
    Metric,
    check_metrics,
    new_statistics,
    register_metric,
    score,
)
from regard.evaluation.report import collect, length_buckets, report
from regard.evaluation.report_text import MISSING, format_value, report_text
from regard.evaluation.statistics import Statistics, edit_distance, per_example
from regard.training.config import TrainConfig

WORDS = [
    "the",
    "a",
    "small",
    "red",
    "dog",
    "cat",
    "house",
    "sees",
    "near",
    "and",
    "Paris",
    "3.5",
    "it's",
    ",",
    ".",
]
THEIRS = {"bleu": BLEU, "bleu_lower": partial(BLEU, lowercase=True), "chrf": CHRF, "ter": TER}
OF_LABELS = (
    "precision_micro",
    "recall_micro",
    "hamming_loss",
    "average_precision",
    "average_precision_micro",
)
OF_NUMBERS = ("mse", "rmse", "mae", "r2", "pearson", "spearman")
OF_VECTORS = ("normalized_mse", "normalized_mae", "seasonal_naive_mse", "seasonal_naive_mae")
OF_TAGS = (
    "token_accuracy",
    "span_precision",
    "span_recall",
    "span_f1",
    "span_f1_macro",
    "span_f1_strict",
)
OURS = [name for name, metric in METRICS.items() if "text" in metric.tasks and metric.statistics]


def sentences(count: int, seed: int, longest: int = 14) -> list[str]:
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS, k=chance.randint(1, longest))) for _ in range(count)]


def noisy(texts: list[str], share: float, seed: int) -> list[str]:
    """Some words exchanged for others."""
    chance = random.Random(seed)
    return [
        " ".join(chance.choice(WORDS) if chance.random() < share else w for w in t.split())
        for t in texts
    ]


def plain(texts: list[str]) -> list[list[str]]:
    return [[text] for text in texts]


GOLD = sentences(60, 0)
CORPORA = {
    "one reference": (noisy(GOLD, 0.3, 1), plain(GOLD)),
    "two references": (
        noisy(GOLD, 0.3, 1),
        [list(pair) for pair in zip(GOLD, noisy(GOLD, 0.2, 2), strict=True)],
    ),
    "one to three": (noisy(GOLD, 0.3, 1), [[g, *sentences(i % 3, i)] for i, g in enumerate(GOLD)]),
    "nothing shared": (["xyz uvw"] * 3, plain(["the red dog"] * 3)),
    "few long matches": (["the red cat x y z", "a b"], plain(["the red dog sees it", "c d"])),
    "shorter than four words": (["red dog", "a"], plain(["red dog", "b"])),
    "empty outputs": (["", "", "red"], plain(["the dog", "a", "red"])),
    "all empty": ([""], plain([""])),
    "empty references": (["the dog", "a cat"], plain(["", ""])),
    "capitals": (["THE Red dog Sees it"], plain(["the red dog sees it"])),
    "markup and breaks": (
        ["&quot;a&quot; <b>\u2028x", "tab\there 1,000.5"],
        plain(["&quot;a&quot; b x", "tab here 1,000"]),
    ),
}


def theirs(name: str, outputs: list[str], references: list[list[str]]) -> tuple[float, str]:
    metric = THEIRS[name]()
    most = max(map(len, references))
    streams = [[found[i] if i < len(found) else None for found in references] for i in range(most)]
    return metric.corpus_score(outputs, streams).score, str(metric.get_signature())


def collected(name: str, outputs: list[str], references: list[list[str]], chunk: int = 7):
    statistics = new_statistics([name])[name]
    for i in range(0, len(outputs), chunk):
        statistics.add(outputs[i : i + chunk], references[i : i + chunk])
    return statistics


@pytest.mark.parametrize("corpus", CORPORA)
@pytest.mark.parametrize("name", THEIRS)
def test_scores_and_signatures_are_those_of_sacrebleu(name, corpus):
    outputs, references = CORPORA[corpus]
    value, signature = theirs(name, outputs, references)
    assert score(name, outputs, references) == pytest.approx(value, abs=1e-6)
    statistics = collected(name, outputs, references)
    assert statistics.values(np.ones((1, len(outputs))))[0] == pytest.approx(value, abs=1e-6)
    ours, theirs_ = statistics.signature().rpartition("|"), signature.rpartition("|")
    assert ours[0] == theirs_[0]
    assert ours[2] == (
        theirs_[2] if name == "ter" else f"version:regard-{__version__}"
    )  # who counted


@pytest.mark.parametrize("corpus", CORPORA)
@pytest.mark.parametrize("name", THEIRS)
def test_a_resample_scores_as_its_sentences_would(name, corpus):
    outputs, references = CORPORA[corpus]
    (counts,) = resample_counts(len(outputs), 3)
    for value, row in zip(
        collected(name, outputs, references).values(counts), counts.astype(int), strict=True
    ):
        rows = np.repeat(np.arange(len(outputs)), row)
        again = theirs(name, [outputs[i] for i in rows], [references[i] for i in rows])[0]
        assert value == pytest.approx(again, abs=1e-6)


BY_HAND = {
    "exact": ("accuracy", ["a b", "c", "d"], [["a b"], ["x"], ["d"]], 2 / 3),
    "one of several": ("accuracy", ["a b", "c"], [["x", "a b"], ["y", "z"]], 1 / 2),
    "spaces count": ("accuracy", ["a  b"], [["a b"]], 0.0),
    "words": ("error_rate", ["a x c", "d"], [["a b c"], ["d e"]], 2 / 5),
    "corpus, not mean": ("error_rate", ["x", "a b c d e f g h i"], [["a"], ["a b c d e f g h i"]], 1 / 10),
    "nearest reference": ("error_rate", ["K AE T"], [["D AO G Z", "K AE T S"]], 1 / 4),
    "nearest by edits": ("error_rate", ["a"], [["a b c d", "b"]], 1 / 1),
    "equally near, the longer": ("error_rate", ["a b"], [["a", "a b c"]], 1 / 3),
    "nothing said": ("error_rate", [""], [["a b"]], 1.0),
    "nothing to say": ("error_rate", ["a b"], [[""]], 2.0),
    "characters": ("character_error_rate", ["kitten"], [["sitting"]], 3 / 7),
    "spaces are characters": ("character_error_rate", ["ab"], [["a b"]], 1 / 3),
    # x: right 2, given 3, wanted 2; y: right 1, given 1, wanted 3; z: given 1, wanted 0
    "precision": ("precision", list("xxxyz"), [[g] for g in "xxyyy"], (2 / 3 + 1 + 0) / 3),
    "recall": ("recall", list("xxxyz"), [[g] for g in "xxyyy"], (1 + 1 / 3 + 0) / 3),
    "f1": ("f1", list("xxxyz"), [[g] for g in "xxyyy"], (4 / 5 + 2 / 4 + 0) / 3),
    "f1 of all": ("f1_micro", list("xxxyz"), [[g] for g in "xxyyy"], 3 / 5),
    "never given": ("precision", ["x", "x"], [["x"], ["y"]], (1 / 2 + 0) / 2),
}  # fmt: skip


@pytest.mark.parametrize("case", BY_HAND)
def test_by_hand(case):
    name, outputs, references, value = BY_HAND[case]
    assert score(name, outputs, references) == pytest.approx(value)


def test_classes_of_a_resample_are_those_that_are_there():
    statistics = collected("f1", list("xxxyz"), [[g] for g in "xxyyy"], chunk=2)
    only_x = np.array(
        [[1.0, 2.0, 0.0, 0.0, 0.0]]
    )  # z and y are not drawn, and do not count as failures
    assert statistics.values(only_x)[0] == 1.0
    assert statistics.values(np.ones((1, 2)), indices=np.array([3, 4]))[0] == pytest.approx(
        (2 / 3 + 0) / 2
    )


def test_the_class_table_lists_every_class():
    rows = collected("recall", list("xxxyz"), [[g] for g in "xxyyy"], chunk=2).table()
    assert [row["label"] for row in rows] == ["x", "y", "z"]
    assert rows[0] == {
        "label": "x",
        "precision": 2 / 3,
        "recall": 1.0,
        "f1": 4 / 5,
        "references": 2,
        "outputs": 3,
    }
    assert rows[1]["recall"] == pytest.approx(1 / 3)
    assert rows[2]["outputs"] == 1


def test_labels_with_several_references_are_refused():
    with pytest.raises(InvalidArgument, match=r"one label an example.*got 2 for one of them"):
        score("f1", ["x", "y"], [["x"], ["x", "y"]])


def plain_edit_distance(a, b) -> int:
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        diagonal, row[0] = row[0], i
        for j, y in enumerate(b, start=1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (x != y))
    return row[-1]


def test_edit_distance_equals_the_dynamic_program():
    chance = random.Random(1)
    for longest in [4] * 500 + [12] * 500 + [150] * 5:
        a, b = (["ab", "c", "d"][: chance.randint(1, 3)] for _ in range(2))
        a, b = (chance.choices(letters, k=chance.randint(0, longest)) for letters in (a, b))
        assert edit_distance(a, b) == plain_edit_distance(a, b), (a, b)


# --- intervals and tests -----------------------------------------------------


def test_intervals_are_seeded_and_near_sacrebleus():
    gold = sentences(300, 3)
    outputs = noisy(gold, 0.3, 4)
    everything = np.arange(len(gold))
    for name in ("bleu", "chrf", "ter"):
        statistics = collected(name, outputs, plain(gold))
        low, high = confidence_interval(bootstrap([statistics], everything)[0])
        assert (low, high) == confidence_interval(bootstrap([statistics], everything)[0])
        assert (low, high) != confidence_interval(bootstrap([statistics], everything, seed=2)[0])
        score_ = THEIRS[name]().corpus_score(outputs, [gold], n_bootstrap=1000)
        assert (high - low) / 2 == pytest.approx(score_._ci, rel=0.1)
        assert low < score_.score < high


def test_an_interval_of_accuracy_is_the_binomials():
    outputs = ["a"] * 300 + ["b"] * 100
    low, high = confidence_interval(
        bootstrap([collected("accuracy", outputs, [["a"]] * 400)], np.arange(400), 4000)[0]
    )
    half = 1.96 * (0.75 * 0.25 / 400) ** 0.5
    assert (low, high) == pytest.approx((0.75 - half, 0.75 + half), abs=0.005)


def test_draws_are_with_replacement_and_each_as_likely():
    counts = np.concatenate(list(resample_counts(50, 4000)))
    assert counts.shape == (4000, 50)
    assert (counts.sum(1) == 50).all()
    assert counts.mean(0) == pytest.approx(np.ones(50), abs=0.1)
    assert counts.var() == pytest.approx(1 - 1 / 50, rel=0.03)


PAIRS = {
    "far apart": (0.3, 0.4, True),
    "alike": (0.30, 0.302, False),
    "the better first": (0.4, 0.3, True),
}


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("name", ["bleu", "chrf", "ter"])
def test_p_values_agree_with_sacrebleus(name, pair):
    first, second, apart = PAIRS[pair]
    gold = sentences(250, 5)
    outputs = [noisy(gold, first, 6), noisy(gold, second, 7)]
    found = report(
        [
            collect(f"{i}", (((g, [g]), o) for g, o in zip(gold, said, strict=True)), [name])
            for i, said in enumerate(outputs)
        ]
    )
    ours = found.systems[1].metrics[name]
    for kind in ("bs", "ar"):
        test = PairedTest(
            [("a", outputs[0]), ("b", outputs[1])], {name: THEIRS[name]()}, [gold], kind, 1000
        )
        scores = test()[1]
        p = next(result[1].p_value for key, result in scores.items() if key != "System")
        assert (ours.p < 0.05) == (p < 0.05) == apart, (ours.p, p)
        if (
            apart or kind == "ar"
        ):  # their bootstrap is one-sided, about the mean of absolute differences
            assert ours.p == pytest.approx(p, abs=0.01 if apart else 0.1)
    assert ours.difference == pytest.approx(
        score(name, outputs[1], plain(gold)) - score(name, outputs[0], plain(gold))
    )
    assert found.systems[0].metrics[name].p is None


def test_a_system_beside_itself_differs_by_chance():
    assert p_value(0.0, np.zeros(1000), 50) == 1.0


# How many examples there are, how many of them the second system alone gets right, and p.
FEW = {
    "one": (1, 1, 1.0),
    "two": (2, 2, 0.5),
    "one of two": (2, 1, 0.5),
    "two of three": (3, 2, 0.25),
    "five": (5, 5, 1 / 16),
    "six": (6, 6, 1 / 32),
    "many, all alike": (100, 100, 1 / 1001),
    "many, most": (100, 60, 1 / 1001),
    "more than halves can tell": (3000, 3000, 1 / 1001),
    "none of one": (1, 0, 1.0),
    "none of many": (100, 0, 1.0),
}


@pytest.mark.parametrize("name", ["accuracy", "bleu", "error_rate"])
@pytest.mark.parametrize("case", FEW)
def test_p_values_of_few_examples_are_bounded(case, name):
    """By hand: n fair coins fall alike, either way, in 2 of 2ⁿ cases."""
    examples, right, p = FEW[case]
    gold, wrong = "the red dog sees it", "no word at all here"
    said = [[wrong] * examples, [gold] * right + [wrong] * (examples - right)]
    found = report(
        [
            collect(f"{i}", (((gold, [gold]), o) for o in each), [name])
            for i, each in enumerate(said)
        ]
    )
    assert found.systems[1].metrics[name].p == pytest.approx(p)


def test_p_values_are_even_where_there_is_no_difference():
    """Of systems that are equally good, one in twenty seems to differ at 0.05."""
    chance, found = np.random.default_rng(0), []
    for _ in range(200):
        statistics = [
            collected("accuracy", chance.choice(["a", "b"], 200).tolist(), [["a"]] * 200, 200)
            for _ in range(2)
        ]
        drawn = bootstrap(statistics, np.arange(200), 200)
        values = [statistics.values(np.ones((1, 200)))[0] for statistics in statistics]
        found.append(p_value(values[1] - values[0], drawn[1] - drawn[0], 200))
    assert 0.01 <= np.mean(np.array(found) < 0.05) <= 0.1
    assert 0.4 < np.mean(found) < 0.6


def test_a_thousand_resamples_of_a_thousand_sentences_take_a_second():
    gold = sentences(1000, 8)
    names = [
        name for name in (*OURS, "f1") if name != "meteor"
    ]  # which keeps sums as BLEU does, and takes long to count
    statistics = [collected(name, noisy(gold, 0.3, 9), plain(gold), 1000) for name in names]
    began = time.process_time()
    bootstrap(statistics, np.arange(1000))
    assert time.process_time() - began < 1.0  # of all metrics together


# --- lengths -----------------------------------------------------------------


def test_groups_by_length_hold_everything_once():
    lengths = [len(text.split()) for text in sentences(500, 10, 40)]
    for groups, count in (("4", 4), ("10,20", 3), ("1", 1), ("100", 40), ("50,60", 1)):
        found = length_buckets(lengths, groups)
        assert len(found) == count
        assert sorted(row for span in found for row in span.indices) == list(range(500))
        for span in found:
            assert all(span.first <= lengths[row] <= span.last for row in span.indices)
    sizes = [len(span.indices) for span in length_buckets(lengths, "4")]
    assert max(sizes) - min(sizes) < 30


@pytest.mark.parametrize("groups", ["0", "x", "", "-1", "5,x"])
def test_invalid_length_buckets_are_refused(groups):
    with pytest.raises(InvalidArgument, match=r"a number of groups \(4\), or their ends"):
        length_buckets([1, 2], groups)


@pytest.mark.parametrize(
    "name", [*(name for name in OURS if name != "cider"), "f1"]
)  # rare is what is so in all
def test_a_group_scores_as_it_would_alone(name):
    gold = sentences(80, 11)
    outputs = noisy(gold, 0.3, 12)
    both = [
        collect(which, (((g, [g]), o) for g, o in zip(gold, said, strict=True)), [name])
        for which, said in {"a": outputs, "b": gold}.items()
    ]
    found = report(both, by_length="3,8", resamples=50)
    groups = found.systems[0].lengths
    assert [group.last for group in groups] == [3, 8, 14]
    for group, perfect in zip(groups, found.systems[1].lengths, strict=True):
        rows = [i for i, text in enumerate(gold) if group.first <= len(text.split()) <= group.last]
        alone = score(name, [outputs[i] for i in rows], [[gold[i]] for i in rows])
        assert group.examples == len(rows)
        assert group.metrics[name].value == pytest.approx(alone)
        assert perfect.metrics[name].difference == pytest.approx(
            score(name, [gold[i] for i in rows], [[gold[i]] for i in rows]) - alone
        )


# --- the whole ---------------------------------------------------------------


def test_memory_grows_by_the_statistics_only():
    def stream(count):
        chance = random.Random(0)
        for _ in range(count):
            text = f"{chance.getrandbits(64):020} {chance.getrandbits(64):020} {chance.getrandbits(64):020}"
            yield (text, [text]), text.replace("7", "1")

    names = ["bleu", "chrf", "accuracy", "error_rate"]
    collect("warm", stream(10), names)

    def peak(count):
        tracemalloc.start()
        collect("a system", stream(count), names)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    few, many = (
        min(peak(count) for _ in range(3)) for count in (256, 768)
    )  # other threads may hold something, too
    grown = (many - few) / 512
    numbers = 8 * (10 + 18 + 2 + 2) + 4
    assert grown < 1.2 * numbers, (
        f"{grown:.0f} bytes an example; its numbers are {numbers}, its texts 300 and more"
    )


def test_different_examples_are_not_compared():
    one = collect("one", [(("s", ["a"]), "a")], ["accuracy"])
    for other in ((("s", ["b"]), "a"), (("t", ["a"]), "a"), (("s", ["a", "b"]), "a")):
        with pytest.raises(
            InvalidArgument, match="other: wanted the same sources and references as one"
        ):
            report([one, collect("other", [other], ["accuracy"])])


def test_a_report_as_text():
    gold = ["x", "y", "x", "y"]
    systems = {"old": ["x", "x", "x", "x"], "new": gold}
    judged = [
        collect(
            name,
            (((g, [g]), o) for g, o in zip(gold, said, strict=True)),
            ["accuracy", "f1"],
            model_metrics={"loss": 0.5},
        )
        for name, said in systems.items()
    ]
    lines = report_text(report(judged, resamples=100)).splitlines()
    assert lines[0].split() == ["metric", "system", "value", "95%", "interval", "difference", "p"]
    assert lines[1].split() == ["loss", "↓", "old", "0.5000", "–", "–", "–"]
    assert lines[3].split()[:4] == ["accuracy", "↑", "old", "50.00%"]
    assert lines[4].split()[2:7] == ["new", "100.00%", "100.00%", "to", "100.00%"]
    assert lines[4].split()[7] == "+50.00%"
    assert "new, class by class" in lines
    assert "4 examples; bootstrap of 100 resamples, seed 1" in lines
    alone = report_text(report(judged[:1], resamples=100)).splitlines()
    assert alone[0].split() == ["metric", "value", "95%", "interval"]
    assert not any("paired" in line for line in alone)


# --- which metric for what ---------------------------------------------------


@pytest.mark.parametrize("task", ["text", "label", "tags", "language", None])
def test_a_metric_that_does_not_fit_is_refused(task):
    for name, metric in METRICS.items():
        if metric.statistics is None if task is None else task not in metric.tasks:
            with pytest.raises(InvalidArgument, match="metric: wanted one of"):
                check_metrics([name], task)
        else:
            check_metrics([name], task)


def test_an_unknown_metric_names_the_nearest():
    with pytest.raises(InvalidArgument, match=r"got 'blue'. Did you mean 'bleu'\?"):
        check_metrics(["accuracy", "blue"], "text")


def test_the_metrics_are_those_of_the_table_that_training_reads():
    assert {name: metric.higher_is_better for name, metric in METRICS.items()} == {
        name: HIGHER_IS_BETTER[name] for name in HIGHER_IS_BETTER
    }


def test_how_each_metric_is_shown():
    """Fractions in percent; losses and metrics of captions, which are small, with four decimals."""
    hundredths = ("perplexity", "bleu", "bleu_lower", "chrf", "ter")
    percentages = (
        "accuracy", "error_rate", "character_error_rate", "f1", "f1_micro", "precision", "recall",
        *OF_TAGS, *OF_LABELS,
    )  # fmt: skip
    shown = {name: format_value(name, 0.256781) for name in METRICS}
    wanted = (
        dict.fromkeys(METRICS, "0.2568")
        | dict.fromkeys(hundredths, "0.26")
        | dict.fromkeys(percentages, "25.68%")
    )
    assert shown == wanted
    assert [format_value("bleu", value, "+") for value in (1.0, -1.0, None)] == [
        "+1.00",
        "-1.00",
        MISSING,
    ]


@pytest.mark.parametrize(
    ("task", "others"),
    {
        "text": {"f1", "f1_micro", "precision", "recall", *OF_TAGS, *OF_NUMBERS, *OF_LABELS, *OF_VECTORS},
        "labels": METRICS.keys()
        - {"loss", "accuracy", "f1", "f1_micro", "precision", "recall", *OF_LABELS},
        "tags": METRICS.keys() - {"loss", "accuracy", *OF_TAGS},
        "number": METRICS.keys() - {"loss", *OF_NUMBERS},
        "label": {
            *OF_TAGS, *OF_NUMBERS, *OF_LABELS, *OF_VECTORS,
            "perplexity", "bleu", "bleu_lower", "chrf", "ter", "bleu1", "bleu2", "bleu3", "bleu4", "rouge_l", "meteor",
            "cider", "error_rate", "character_error_rate",
        },
        "language": METRICS.keys() - {"loss", "perplexity"},
    }.items(),
)  # fmt: skip
def test_the_metrics_of_each_task(task, others):
    assert {name for name, metric in METRICS.items() if task not in metric.tasks} == others


def test_as_many_outputs_as_references():
    with pytest.raises(InvalidArgument, match="got 2 and 1"):
        score("bleu", ["a", "b"], [["a"]])
    with pytest.raises(InvalidArgument, match="got 0 and 0"):
        score("bleu", [], [])


def test_a_registered_metric_is_evaluated_and_can_be_monitored(monkeypatch):
    def wordy() -> Statistics:
        return per_example(
            ("words",), lambda output, own: [float(len(output.split()))], lambda sums: sums[:, 0]
        )

    assert isinstance(read(TrainConfig, {"monitor": "words"}, "train"), list)  # problems
    monkeypatch.setattr("regard.evaluation.metrics.METRICS", dict(METRICS))
    register_metric("words", Metric("words of the outputs", wordy, higher_is_better=False))
    try:
        assert score("words", ["a b", "c"], [["x"], ["y"]]) == 3
        assert read(TrainConfig, {"monitor": "words"}, "train").monitor == "words"
        assert HIGHER_IS_BETTER["words"] is False
        with pytest.raises(InvalidArgument, match="a metric name that is not taken; got 'words'"):
            register_metric("words", Metric("again", wordy))
    finally:
        HIGHER_IS_BETTER.unregister("words")


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, metric in METRICS.items()
        # Average precision is of probabilities, which texts do not have.
        if metric.statistics is not None and not name.startswith("average_precision")
    ],
)
def test_the_direction_of_each_metric_is_that_of_better_outputs(name):
    if name == "ter":
        pytest.importorskip("sacrebleu", reason="needs the extra `ter`")
    if "text" in METRICS[name].tasks:
        references = [["the cat sat on the red mat"], ["a dog ran over the green hill today"]]
        right, wrong = (
            [one for (one,) in references],
            ["a mat", "some birds sing in a high tree at night and day"],
        )
    elif "tags" in METRICS[name].tasks:
        references = [["B-X I-X O"], ["O B-Y"]]
        right = ["B-X I-X O", "O B-Y"]
        wrong = ["B-X O O", "B-Y O"]
    elif "number" in METRICS[name].tasks:
        references = [["1"], ["2"], ["3.5"]]
        right = ["1.1", "2", "3.4"]
        wrong = ["3", "2", "1"]
    elif "vectors" in METRICS[name].tasks:
        references = [["[[1, 2], [3, 4]]"], ["[[0, 5]]"]]
        right = ["[[1.1, 2], [3, 4]]", "[[0, 5.1]]"]
        wrong = ["[[2, 2], [1, 4]]", "[[5, 0]]"]
    else:
        references, right, wrong = (
            [["good"], ["bad"], ["good"]],
            ["good", "bad", "good"],
            ["bad", "good", "bad"],
        )
    better, worse = score(name, right, references), score(name, wrong, references)
    assert better != worse
    assert (better > worse) is METRICS[name].higher_is_better is HIGHER_IS_BETTER[name]


def test_lower_losses_are_better():
    assert [HIGHER_IS_BETTER[name] for name in ("loss", "perplexity")] == [False, False]
