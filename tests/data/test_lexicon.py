"""IBM model 1: the translation probabilities of an implementation with dictionaries; what is likely and frequent."""

from collections import defaultdict

import numpy as np

from regard.data.lexicon import learn_lexicon

PAIRS = [([0, 1], [0, 1]), ([0, 2], [0, 2]), ([0, 1, 2], [2, 1, 0]), ([1], [1]), ([3, 3], [3])]
SOURCES, TARGETS = 5, 4


def plain(iterations: int) -> dict[tuple[int, int], float]:
    """p(target | source) as in the paper, with the empty word as source number 5."""
    p = defaultdict(lambda: 1.0)
    for _ in range(iterations):
        counts, totals = defaultdict(float), defaultdict(float)
        for source, target in PAIRS:
            row = [*source, SOURCES]
            for t in target:
                norm = sum(p[s, t] for s in row)
                for s in row:
                    counts[s, t] += p[s, t] / norm
                    totals[s] += p[s, t] / norm
        p = {key: count / totals[key[0]] for key, count in counts.items()}
    return p


def test_probabilities():
    for iterations in (1, 5):
        lexicon = learn_lexicon(PAIRS, (SOURCES, TARGETS), iterations=iterations)
        found = zip(
            lexicon.source.tolist(),
            lexicon.target.tolist(),
            lexicon.probability.tolist(),
            strict=True,
        )
        known = {(s, t): p for s, t, p in found}
        wanted = plain(iterations)
        assert known.keys() == wanted.keys()
        assert all(abs(known[key] - wanted[key]) < 1e-12 for key in wanted)


def test_likely_and_frequent_tokens():
    lexicon = learn_lexicon(PAIRS, (SOURCES, TARGETS))
    likely = lexicon.likely(SOURCES, 2)
    assert likely[:4, 0].tolist() == [0, 1, 2, 3]
    assert likely[3].tolist() == [3, -1]
    assert likely[4].tolist() == [-1, -1]  # it occurs nowhere
    assert lexicon.frequent(2).tolist() == [0, 1]  # of 0: 3, of 1: 3, of 2: 2, of 3: 1
    assert lexicon.frequent(9).tolist() == [0, 1, 2, 3]


def test_no_examples():
    lexicon = learn_lexicon([], (SOURCES, TARGETS))
    assert (lexicon.likely(SOURCES, 2) == -1).all()
    assert len(lexicon.frequent(3)) == 0
    assert lexicon.probability.dtype == np.float64
