"""BLEU, ROUGE-L and CIDEr as captioners report them, equal to the figures of the COCO evaluation.

All are of Penn Treebank tokens (`treebank`), and all take any number of references to a picture.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import fmean

import numpy as np

from regard.evaluation.ptb_tokenizer import tokens
from regard.evaluation.statistics import Array, References, StatisticRows, Statistics, SumStatistics

ORDERS = 4  # of n-grams
SMALL, TINY = 1e-9, 1e-15  # with which the COCO evaluation keeps its fractions from dividing by nothing
BETA = 1.2  # how much recall counts in ROUGE-L
SIGMA = 6.0  # words by which lengths may differ in CIDEr-D, more or less

CaptionTokens = tuple[str, ...]
Gram = tuple[str, ...]


def bleu(order: int) -> SumStatistics:
    """Of n-grams up to this order: of all captions together, the reference of the nearest length, no smoothing."""

    def row(output: str, references: Sequence[str]) -> list[int]:
        said, wanted = tokens(output), [tokens(reference) for reference in references]
        nearest = min((len(each) for each in wanted), key=lambda length: (abs(length - len(said)), length))
        given, most = Counter(_grams(said, order)), Counter[Gram]()
        for each in wanted:
            most |= Counter(_grams(each, order))
        right = [0] * order
        for gram, count in (given & most).items():
            right[len(gram) - 1] += count
        return [len(said), nearest, *right, *(max(0, len(said) - n) for n in range(order))]

    def measure(outputs: Sequence[str], references: References) -> list[list[int]]:
        return [row(output, found) for output, found in zip(outputs, references, strict=True)]

    def figure(sums: Array) -> Array:
        right, given = sums[:, 2 : 2 + order], sums[:, 2 + order :]
        ratio = (sums[:, 0] + TINY) / (sums[:, 1] + SMALL)
        precision = ((right + TINY) / (given + SMALL)).prod(1) ** (1 / order)
        found: Array = precision * np.exp(np.minimum(0.0, 1 - 1 / ratio))
        return found

    grams = [f"{what}_{n}" for what in ("right", "given") for n in range(1, order + 1)]
    return SumStatistics(
        ["output_tokens", "reference_tokens", *grams], measure, figure, lambda: f"COCO BLEU-{order}|tok:ptb"
    )


def rouge_l() -> SumStatistics:
    """The mean over pictures: longest common subsequences, their best precision and recall over the references."""

    def one(output: str, references: Sequence[str]) -> float:
        said, wanted = tokens(output) or ("",), [tokens(reference) or ("",) for reference in references]
        shared = [common(said, each) for each in wanted]
        precision = max(shared) / len(said)
        recall = max(count / len(each) for count, each in zip(shared, wanted, strict=True))
        return (1 + BETA**2) * precision * recall / (recall + BETA**2 * precision) if precision else 0.0

    def measure(outputs: Sequence[str], references: References) -> list[tuple[float, float]]:
        return [(one(output, found), 1.0) for output, found in zip(outputs, references, strict=True)]

    return SumStatistics(
        ("score", "examples"), measure, lambda sums: sums[:, 0] / sums[:, 1], lambda: "COCO ROUGE-L|tok:ptb"
    )


class DocumentFrequency:
    """How many pictures have an n-gram in their references; what most have says little of one."""

    def __init__(self) -> None:
        self.pictures, self.total = Counter[Gram](), 0

    def add(self, references: Iterable[CaptionTokens]) -> None:
        """One more picture."""
        self.pictures.update({gram for each in references for gram in _grams(each, ORDERS)})
        self.total += 1

    def weigh(self, words: CaptionTokens) -> "TfIdfVector":
        """A caption's n-grams, each weighed by how often it is there and how rare it is elsewhere."""
        everything = log(self.total)
        weights = {
            gram: count * (everything - log(max(1, self.pictures[gram])))
            for gram, count in Counter(_grams(words, ORDERS)).items()
        }
        norms = [0.0] * ORDERS
        for gram, weight in weights.items():
            norms[len(gram) - 1] += weight**2
        return TfIdfVector(weights, tuple(map(sqrt, norms)), max(0, len(words) - 1))


@dataclass(frozen=True)
class TfIdfVector:
    """A caption as CIDEr sees it."""

    weights: Mapping[Gram, float]
    norms: tuple[float, ...]  # of each order
    pairs: int  # of words that stand side by side: what counts as its length

    def likeness(self, reference: "TfIdfVector") -> float:
        """0 to 10: the cosine of each order, weights clipped at the reference's, less for a different length."""
        shared = [0.0] * ORDERS
        for gram, weight in self.weights.items():
            theirs = reference.weights.get(gram, 0.0)
            shared[len(gram) - 1] += min(weight, theirs) * theirs
        cosine = sum(s / (a * b) for s, a, b in zip(shared, self.norms, reference.norms, strict=True) if a and b)
        return 10 * exp(-((self.pairs - reference.pairs) ** 2) / (2 * SIGMA**2)) * cosine / ORDERS


class Cider(Statistics):
    """CIDEr-D: n-grams that a caption shares with each reference, the rarer the heavier (arXiv:1411.5726).

    How rare an n-gram is, the references of the whole set say, however few of its examples a figure is of. So all
    captions are kept until the end, as words, and each different n-gram of the references once: memory grows with both.
    """

    def __init__(self) -> None:
        self.rarity = DocumentFrequency()
        self.captions: list[
            tuple[CaptionTokens, list[CaptionTokens]]
        ] = []  # of each picture the output, and the references
        self.known: dict[str, str] = {}  # every word once
        self.scores: list[float] = []

    def add(self, outputs: Sequence[str], references: References) -> None:
        for output, found in zip(outputs, references, strict=True):
            wanted = [self._words(reference) for reference in found]
            self.rarity.add(wanted)
            self.captions.append((self._words(output), wanted))

    def values(self, counts: Array, among: StatisticRows | None = None) -> Array:
        scores = self._scores()
        found: Array = counts @ (scores if among is None else scores[among]) / counts.sum(1)
        return found

    def totals(self, among: StatisticRows) -> dict[str, float]:
        return {"score": float(self._scores()[among].sum()), "examples": float(len(among))}

    def signature(self) -> str:
        return f"CIDEr-D|tok:ptb|n:{ORDERS}|sigma:{SIGMA:g}|df:{len(self.captions)} pictures"

    def _words(self, caption: str) -> CaptionTokens:
        return tuple(self.known.setdefault(word, word) for word in tokens(caption))

    def _scores(self) -> Array:
        """Of every picture, computed once for all that were added."""
        if len(self.scores) < len(self.captions):
            weigh = self.rarity.weigh
            self.scores = [consensus(weigh(output), map(weigh, wanted)) for output, wanted in self.captions]
        return np.array(self.scores)


def consensus(output: TfIdfVector, references: Iterable[TfIdfVector]) -> float:
    """CIDEr-D of one caption."""
    return fmean(map(output.likeness, references))


def common(one: Sequence[str], other: Sequence[str]) -> int:
    """How many tokens their longest common subsequence has. A bit stands for each token of one.

    >>> common("a b c d".split(), "b x d".split())
    2
    """
    places: dict[str, int] = {}
    for i, token in enumerate(one):
        places[token] = places.get(token, 0) | 1 << i
    every = (1 << len(one)) - 1
    row = every
    for token in other:
        same = row & places.get(token, 0)
        row = (row + same | row - same) & every
    return len(one) - row.bit_count()


def _grams(words: CaptionTokens, most: int) -> Iterator[Gram]:
    """All runs of one word up to so many."""
    return (words[i : i + n] for n in range(1, most + 1) for i in range(len(words) - n + 1))
