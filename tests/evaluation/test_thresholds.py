"""Thresholds reach the highest F1 that any threshold reaches, by brute force."""

import numpy as np
import pytest

from regard.core.errors import InvalidArgument
from regard.evaluation.thresholds import (
    best_label_thresholds,
    best_macro_threshold,
    best_micro_threshold,
)


def f1(predicted, gold):
    return 2 * (predicted & gold).sum() / max(1, predicted.sum() + gold.sum())


def macro(predicted, gold):
    return np.mean([f1(predicted[:, k], gold[:, k]) for k in range(gold.shape[1])])


def highest(metric, scores, gold):
    return max(metric(scores >= threshold, gold) for threshold in (*np.unique(scores), 1.1))


def random_case(seed):
    random = np.random.default_rng(seed)
    examples = random.integers(1, 15)
    labels = random.integers(1, 5)
    gold = random.random((examples, labels)) < random.choice([0.1, 0.4, 0.9])
    scores = np.clip(0.3 * gold + 0.7 * random.random(gold.shape), 0, 1)
    if seed % 2:
        scores = np.round(scores, 1)
    if seed % 7 == 0:
        scores[:] = scores[0, 0]
    return scores, gold


def test_thresholds_for_all_labels_are_the_best():
    for seed in range(150):
        scores, gold = random_case(seed)
        for find, metric in ((best_micro_threshold, f1), (best_macro_threshold, macro)):
            threshold, reached = find(scores, gold)
            assert reached == pytest.approx(highest(metric, scores, gold), abs=1e-9), seed
            assert reached == pytest.approx(metric(scores >= threshold, gold), abs=1e-9), seed
            assert 0 <= threshold <= 1


def test_thresholds_of_each_label_are_the_best():
    for seed in range(150):
        scores, gold = random_case(seed)
        thresholds, reached = best_label_thresholds(scores, gold)
        predicted = scores >= thresholds
        for k in range(gold.shape[1]):
            wanted = highest(f1, scores[:, k], gold[:, k])
            assert reached[k] == pytest.approx(wanted, abs=1e-9), seed
            assert f1(predicted[:, k], gold[:, k]) == pytest.approx(wanted, abs=1e-9), seed


def test_a_threshold_lies_halfway_between_probabilities():
    scores = np.array([[0.9], [0.7], [0.2], [0.1]])
    assert best_micro_threshold(scores, scores > 0.5) == (pytest.approx(0.45), 1.0)
    assert best_micro_threshold(scores, scores > 0.0) == (pytest.approx(0.05), 1.0)


def test_among_equal_thresholds_the_one_nearest_to_one_half_is_chosen():
    # The first cut is right once of once, the second twice of four times: both have an F1 of 2/3.
    scores = np.array([[0.95], [0.9], [0.65], [0.6], [0.1]])
    gold = np.array([[1], [0], [0], [1], [0]])
    assert best_micro_threshold(scores, gold) == (pytest.approx(0.35), pytest.approx(2 / 3))


def test_a_label_without_references_keeps_one_half():
    scores = np.array([[0.9, 0.8], [0.1, 0.3]])
    gold = np.array([[1, 0], [0, 0]])
    thresholds, reached = best_label_thresholds(scores, gold)
    assert thresholds.tolist() == [0.5, 0.5]
    assert reached.tolist() == [1.0, 0.0]
    assert best_micro_threshold(scores, np.zeros((2, 2))) == (0.5, 0.0)
    assert best_macro_threshold(scores, np.zeros((2, 2))) == (0.5, 0.0)


def test_neighbouring_numbers_are_told_apart():
    low = 0.3
    for _ in range(4):  # the mean of two neighbours is rounded up and down in turns
        high = np.nextafter(low, 1.0)
        scores = np.array([[high], [low]])
        threshold, reached = best_micro_threshold(scores, np.array([[1], [0]]))
        assert reached == 1.0
        assert (scores >= threshold).tolist() == [[True], [False]]
        low = high


@pytest.mark.parametrize(
    "find", [best_micro_threshold, best_macro_threshold, best_label_thresholds]
)
def test_unusable_arrays_are_refused(find):
    gold = np.array([[1], [0]])
    with pytest.raises(InvalidArgument, match=r"numbers from 0 to 1; got 1\.5"):
        find(np.array([[1.5], [0.5]]), gold)
    with pytest.raises(InvalidArgument, match="got nan"):
        find(np.array([[np.nan], [0.5]]), gold)
    with pytest.raises(InvalidArgument, match=r"arrays of \(2, 2\) and \(2, 1\)"):
        find(np.zeros((2, 2)), gold)
    with pytest.raises(InvalidArgument, match="at least one example"):
        find(np.zeros((0, 2)), np.zeros((0, 2)))
    with pytest.raises(InvalidArgument, match=r"0 or 1 for each label; got 2\.0"):
        find(np.zeros((2, 1)), 2 * gold)
