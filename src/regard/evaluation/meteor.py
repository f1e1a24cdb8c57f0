"""METEOR: how well the words of a caption can be laid upon those of a reference (https://aclanthology.org/W14-3348).

Words match if they are the same, have the same stem or, where WordNet is there, a meaning in common. The parameters are
those of METEOR 1.5 for English. What that tool has beyond this is a table of paraphrases, so its figures are a little
higher; and its list of function words, which count less than others, is another than ours.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from regard.evaluation.ptb_tokenizer import tokens
from regard.evaluation.statistics import Array, References, SumStatistics
from regard.evaluation.stemmer import stem
from regard.evaluation.wordnet import synonyms

ALPHA, BETA, GAMMA, DELTA = 0.85, 0.2, 0.6, 0.75
EXACT, STEM, SYNONYM = 1.0, 0.6, 0.8
BEAM = 40  # alignments that are followed at once
# Words of which any text is full, one in a thousand and more.
FUNCTION_WORDS = """
    a an the this that these those and or but so if than as of to in on at by for with from into over about after
    between up out i you he she it we they them her my your his its our their who which what when where is
    are was were be been do did has have had will would can could may should not no there all any some such other
    more most one two also only new first last year years people time said ' s
"""
LIGHT = frozenset(FUNCTION_WORDS.split())
PART = re.compile(r"\w+(?:[.,]\w+)*\.?|[^\w\s-]")
COLUMNS = (
    "output_length", "reference_length", "output_matches", "reference_matches",  # weighed
    "matches", "chunks", "output_tokens", "reference_tokens",
)  # fmt: skip


class MeteorAlignment(NamedTuple):
    """An output's words laid upon those of a reference, word by word. Of two alignments the lesser is the better."""

    left: int = 0  # words of the output that match nothing
    chunks: int = 0  # pieces that it falls into
    loss: float = 0.0  # how far matches are from the same word
    distance: int = 0  # by how much they moved
    last: int = -2  # the place that the word before was laid upon; -2: none
    taken: int = 0  # a bit for each place of the reference
    pairs: tuple[tuple[int, int, float], ...] = ()  # output's place, reference's place, weight

    def extended(self, i: int, j: int, weight: float) -> "MeteorAlignment":
        left, chunks, loss, distance, last, taken, pairs = self
        chunks += last != j - 1
        return MeteorAlignment(
            left, chunks, loss + 1 - weight, distance + abs(i - j), j, taken | 1 << j, (*pairs, (i, j, weight))
        )

    def skipped(self) -> "MeteorAlignment":
        return self._replace(left=self.left + 1, last=-2)


def meteor() -> SumStatistics:
    """Of all captions together, each beside the reference it fits best."""

    def measure(outputs: Sequence[str], references: References) -> list[Array]:
        return [_best(_words(output), found) for output, found in zip(outputs, references, strict=True)]

    def sign() -> str:
        means = "+synonym" if synonyms() else ""
        return f"METEOR 1.5 en, exact+stem{means}, no paraphrases|tok:ptb|a:{ALPHA}|b:{BETA}|g:{GAMMA}|d:{DELTA}"

    return SumStatistics(COLUMNS, measure, figure, sign)


def figure(sums: Array) -> Array:
    """Of sums (R, 8) of the columns."""
    lengths, matches = sums[:, 0:2], sums[:, 2:4]
    precision, recall = (matches / np.where(lengths > 0, lengths, 1.0)).T
    weighed = ALPHA * precision + (1 - ALPHA) * recall
    mean = precision * recall / np.where(weighed > 0, weighed, 1.0)
    matched, chunks, words = sums[:, 4], sums[:, 5], sums[:, 6:8]
    whole = (chunks == 1) & (words == matched[:, None]).all(1)
    pieces = np.where(whole, 0.0, chunks / np.maximum(matched, 1))
    found: Array = mean * (1 - GAMMA * pieces**BETA)
    return found


def _best(output: Sequence[str], references: Sequence[str]) -> Array:
    rows = np.stack([_row(output, _words(reference)) for reference in references])
    found: Array = rows[figure(rows).argmax()]
    return found


def _words(caption: str) -> list[str]:
    """The tokens of a caption; compounds and contractions in their parts."""
    return [part for token in tokens(caption) for part in PART.findall(token)]


def _row(output: Sequence[str], reference: Sequence[str]) -> Array:
    found = align(output, reference)
    given = sum(_weight(output[i]) * weight for i, _, weight in found.pairs)
    wanted = sum(_weight(reference[j]) * weight for _, j, weight in found.pairs)
    lengths = sum(map(_weight, output)), sum(map(_weight, reference))
    return np.array([*lengths, given, wanted, len(found.pairs), found.chunks, len(output), len(reference)], np.float64)


def _weight(word: str) -> float:
    return 1 - DELTA if word in LIGHT else DELTA


def align(output: Sequence[str], reference: Sequence[str]) -> MeteorAlignment:
    """The best alignment that a beam finds.

    >>> align("a dog runs".split(), "the dogs run".split()).pairs
    ((1, 1, 0.6), (2, 2, 0.6))
    """
    choices = list(_matches(output, reference))
    wanted = np.zeros(len(reference))
    for found in choices:
        wanted[list(found)] += 1
    beam = [MeteorAlignment()]
    for i, found in enumerate(choices):
        contested = all(wanted[j] > 1 for j in found)  # only then is it worth leaving the word out
        best: dict[tuple[int, int], MeteorAlignment] = {}
        for each in beam:
            following = [each.extended(i, j, weight) for j, weight in found.items() if not each.taken >> j & 1]
            for one in [*following, each.skipped()] if contested or not following else following:
                key = one.taken, one.last
                best[key] = min(best.get(key, one), one)
        beam = sorted(best.values())[:BEAM]
    return beam[0]


def _matches(output: Sequence[str], reference: Sequence[str]) -> Iterator[dict[int, float]]:
    """For each word of the output the places of the reference that it matches, and how well."""
    known = synonyms()
    stems = [stem(word) for word in reference]
    meanings = [known.of(word) if known else frozenset() for word in reference]
    for word in output:
        mine, means = stem(word), known.of(word) if known else frozenset()
        found = {}
        for j, other in enumerate(reference):
            if word == other:
                found[j] = EXACT
            elif means & meanings[j]:
                found[j] = SYNONYM
            elif mine == stems[j]:
                found[j] = STEM
        yield found
