"""Lexical translation probabilities by IBM model 1 (https://aclanthology.org/J93-2003).

How likely a target token is the translation of a source token: learned by expectation maximisation
from pairs of sentences without alignments.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Lexicon:
    """Pairs of tokens that occur in one pair of sentences, by ascending source,
    and their probabilities.

    counts   of each target token in the sentences
    """

    source: Array
    target: Array
    probability: Array  # of the target token, given the source token
    counts: Array

    def likely(self, sources: int, count: int) -> Array:
        """The `count` most likely target tokens for each
        of `sources` source tokens (sources, count); -1: no more.
        """
        order = np.lexsort((self.target, -self.probability, self.source))
        rows = self.source[order]
        rank = np.arange(len(rows)) - np.searchsorted(rows, rows)
        chosen = (rank < count) & (rows < sources)
        table = np.full((sources, count), -1, dtype=np.int32)
        table[rows[chosen], rank[chosen]] = self.target[order][chosen]
        return table

    def frequent(self, count: int) -> Array:
        """The `count` most frequent target tokens, those that occur at all, in ascending order."""
        order = np.argsort(-self.counts, kind="stable")[:count]
        return np.sort(order[self.counts[order] > 0]).astype(np.int32)


def learn_lexicon(
    pairs: Iterable[tuple[Sequence[int], Sequence[int]]],
    sizes: tuple[int, int],
    *,
    iterations: int = 5,
) -> Lexicon:
    """From pairs of source and target tokens of vocabularies of these sizes;
    all pairs of tokens are in memory.

    A target token may also be the translation of no source token: of one more, whose number is the
    number of sources.
    """
    sources, targets = sizes
    keys = list[Array]()
    words = list[Array]()
    counts = np.zeros(targets, dtype=np.int64)
    position = 0
    for source, target in pairs:
        row = np.array([*source, sources], dtype=np.int64)
        column = np.array(target, dtype=np.int64)
        keys.append((row[:, None] * targets + column).ravel())
        words.append(np.tile(np.arange(position, position + len(column)), len(row)))
        np.add.at(counts, column, 1)
        position += len(column)
    known, key = np.unique(np.concatenate(keys or [counts[:0]]), return_inverse=True)
    word = np.concatenate(words or [counts[:0]])
    of_source = known // targets
    probability = np.ones(len(known))
    for _ in range(iterations):
        share = probability[key]  # of each source token in each target token
        share /= np.bincount(word, share, minlength=position)[word]
        expected = np.bincount(key, share, minlength=len(known))
        probability = expected / np.bincount(of_source, expected, minlength=sources + 1)[of_source]
    return Lexicon(of_source, known % targets, probability, counts)
