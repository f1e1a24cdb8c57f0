"""METEOR with the matchers exact, stem and, if WordNet is installed, synonym (https://aclanthology.org/W14-3348).

It has the parameters of METEOR 1.5 for English. Two things differ from that tool: there is no paraphrase matcher (its
table is large), so scores are lower than its default; and the list of function words is our own. The label and the
signature therefore name the matchers in use.
"""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import snowballstemmer

from regard.evaluation import wordnet as wordnet_files
from regard.evaluation.ptb_tokenizer import tokenize
from regard.evaluation.statistics import Array, SumStatistics, per_example
from regard.evaluation.wordnet import wordnet

ALPHA = 0.85
BETA = 0.2
GAMMA = 0.6
DELTA = 0.75
# Weights of the matchers. A pair of words gets the weight of the first that matches, in this order.
EXACT = 1.0
STEM = 0.6
SYNONYM = 0.8
BEAM_SIZE = 40
# Words that make up more than one in a thousand words of any text.
_FUNCTION_WORDS = """
    a an the this that these those and or but so if than as of to in on at by for with from into over about after
    between up out i you he she it we they them her my your his its our their who which what when where is
    are was were be been do did has have had will would can could may should not no there all any some such other
    more most one two also only new first last year years people time said ' s
"""
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())
WORD_PART = re.compile(r"\w+(?:[.,]\w+)*\.?|[^\w\s-]")
COLUMNS = (
    "output_length", "reference_length", "output_matches", "reference_matches",  # weighted
    "matches", "chunks", "output_tokens", "reference_tokens",
)  # fmt: skip


class MeteorAlignment(NamedTuple):
    """A partial alignment of output words to reference words. Smaller tuples are better."""

    unmatched: int = 0  # output words without a match
    chunks: int = 0  # runs of matches that are contiguous on both sides
    loss: float = 0.0  # sum of 1 - weight over the matches
    distance: int = 0  # sum of |i - j| over the matches
    last: int = -2  # reference position of the previous output word; -2: unmatched
    used: int = 0  # bit set of matched reference positions
    pairs: tuple[tuple[int, int, float], ...] = ()  # output position, reference position, weight

    def match(self, i: int, j: int, weight: float) -> "MeteorAlignment":
        starts_chunk = self.last != j - 1
        return MeteorAlignment(
            unmatched=self.unmatched,
            chunks=self.chunks + starts_chunk,
            loss=self.loss + 1 - weight,
            distance=self.distance + abs(i - j),
            last=j,
            used=self.used | 1 << j,
            pairs=(*self.pairs, (i, j, weight)),
        )

    def skip(self) -> "MeteorAlignment":
        return self._replace(unmatched=self.unmatched + 1, last=-2)


def matchers() -> str:
    """The matchers in use on this machine: "exact, stem" or "exact, stem, synonym"."""
    if wordnet_files.folder() is None:
        return "exact, stem"
    return "exact, stem, synonym"


def meteor() -> SumStatistics:
    """Corpus METEOR; each output counts with the reference of its highest score."""

    def best(output: str, references: Sequence[str]) -> Array:
        words = _words(output)
        rows = np.stack([_row(words, _words(reference)) for reference in references])
        row: Array = rows[aggregate(rows).argmax()]
        return row

    def describe() -> str:
        parameters = f"a:{ALPHA}|b:{BETA}|g:{GAMMA}|d:{DELTA}"
        return f"METEOR ({matchers()}), no paraphrases, own function words|tok:ptb|{parameters}"

    return per_example(COLUMNS, best, aggregate, describe)


def aggregate(sums: Array) -> Array:
    """The score (R,) of sums (R, 8) of the columns."""
    lengths = sums[:, 0:2]
    matches = sums[:, 2:4]
    precision, recall = (matches / np.where(lengths > 0, lengths, 1.0)).T
    weighted = ALPHA * precision + (1 - ALPHA) * recall
    mean = precision * recall / np.where(weighted > 0, weighted, 1.0)
    matched = sums[:, 4]
    chunks = sums[:, 5]
    words = sums[:, 6:8]
    identical = (chunks == 1) & (words == matched[:, None]).all(1)
    fragmentation = np.where(identical, 0.0, chunks / np.maximum(matched, 1))
    score: Array = mean * (1 - GAMMA * fragmentation**BETA)
    return score


@lru_cache(1 << 16)
def stem(word: str) -> str:
    """The stem of a lower-case English word by Snowball's English (Porter2) stemmer.

    >>> [stem(word) for word in ("running", "dogs", "flies", "happily", "played")]
    ['run', 'dog', 'fli', 'happili', 'play']
    """
    return str(snowballstemmer.EnglishStemmer().stemWord(word))


def _words(caption: str) -> list[str]:
    """The tokens of a caption, with compounds and contractions split."""
    return [part for token in tokenize(caption) for part in WORD_PART.findall(token)]


def _row(output: Sequence[str], reference: Sequence[str]) -> Array:
    """The values of COLUMNS for an output and a reference."""
    alignment = align(output, reference)
    output_matches = sum(_weight(output[i]) * weight for i, _, weight in alignment.pairs)
    reference_matches = sum(_weight(reference[j]) * weight for _, j, weight in alignment.pairs)
    values = [
        sum(map(_weight, output)),
        sum(map(_weight, reference)),
        output_matches,
        reference_matches,
        len(alignment.pairs),
        alignment.chunks,
        len(output),
        len(reference),
    ]
    return np.array(values, np.float64)


def _weight(word: str) -> float:
    if word in FUNCTION_WORDS:
        return 1 - DELTA
    return DELTA


def align(output: Sequence[str], reference: Sequence[str]) -> MeteorAlignment:
    """The best alignment found by a beam search over the output's words.

    >>> align("a dog runs".split(), "the dogs run".split()).pairs
    ((1, 1, 0.6), (2, 2, 0.6))
    """
    choices = list(_matches(output, reference))
    candidates = np.zeros(len(reference))  # output words that could match each reference word
    for matches in choices:
        candidates[list(matches)] += 1
    beam = [MeteorAlignment()]
    for i, matches in enumerate(choices):
        # Skipping the word can pay off only if other words want all of its matches as well.
        contested = all(candidates[j] > 1 for j in matches)
        best: dict[tuple[int, int], MeteorAlignment] = {}
        for alignment in beam:
            free = [j for j in matches if not alignment.used >> j & 1]
            extended = [alignment.match(i, j, matches[j]) for j in free]
            if contested or not extended:
                extended.append(alignment.skip())
            # Of alignments that can be continued in the same ways, the best one is kept.
            for one in extended:
                key = (one.used, one.last)
                best[key] = min(best.get(key, one), one)
        beam = sorted(best.values())[:BEAM_SIZE]
    return beam[0]


def _synsets(word: str) -> frozenset[str]:
    """The synsets of a word; none if WordNet is not installed."""
    database = wordnet()
    if database is None:
        return frozenset()
    return database.synsets(word)


def _matches(output: Sequence[str], reference: Sequence[str]) -> Iterator[dict[int, float]]:
    """For each output word: the reference positions it matches, with the weight of the first matcher that matches."""
    stems = [stem(word) for word in reference]
    synsets = [_synsets(word) for word in reference]
    for word in output:
        own_stem = stem(word)
        own_synsets = _synsets(word)
        matches = {}
        for j, other in enumerate(reference):
            if word == other:
                matches[j] = EXACT
            elif own_stem == stems[j]:
                matches[j] = STEM
            elif own_synsets & synsets[j]:
                matches[j] = SYNONYM
        yield matches
