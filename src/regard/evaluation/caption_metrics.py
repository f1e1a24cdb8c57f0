"""BLEU-1 to 4, ROUGE-L and CIDEr-D of captions, equal to the scores of the COCO evaluation.

All are computed on Penn Treebank tokens (`ptb_tokenizer`) with any number of references per image.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import fmean

import numpy as np

from regard.evaluation.ptb_tokenizer import tokenize
from regard.evaluation.statistics import (
    Array,
    Indices,
    References,
    Statistics,
    SumStatistics,
    per_example,
)
from regard.evaluation.translation_metrics import closest_length

MAX_ORDER = 4  # of n-grams
# The constants with which the COCO evaluation avoids division by zero.
SMALL = 1e-9
TINY = 1e-15
BETA = 1.2  # weight of recall in ROUGE-L
SIGMA = 6.0  # standard deviation of CIDEr-D's length penalty, in words

CaptionTokens = tuple[str, ...]
NGram = tuple[str, ...]


def bleu(order: int) -> SumStatistics:
    """Corpus BLEU of n-grams up to this order: closest reference length, no smoothing."""

    def row(output: str, references: Sequence[str]) -> list[int]:
        tokens = tokenize(output)
        reference_tokens = [tokenize(reference) for reference in references]
        length = closest_length(len(tokens), map(len, reference_tokens))
        clipped = Counter[NGram]()
        for reference in reference_tokens:
            clipped |= Counter(_ngrams(reference, order))
        correct = [0] * order
        matched = Counter(_ngrams(tokens, order)) & clipped
        for ngram, count in matched.items():
            correct[len(ngram) - 1] += count
        totals = [max(0, len(tokens) - n) for n in range(order)]
        return [len(tokens), length, *correct, *totals]

    def aggregate(sums: Array) -> Array:
        correct = sums[:, 2 : 2 + order]
        total = sums[:, 2 + order :]
        ratio = (sums[:, 0] + TINY) / (sums[:, 1] + SMALL)
        precision = ((correct + TINY) / (total + SMALL)).prod(1) ** (1 / order)
        score: Array = precision * np.exp(np.minimum(0.0, 1 - 1 / ratio))
        return score

    ngrams = [f"{what}_{n}" for what in ("correct", "total") for n in range(1, order + 1)]
    columns = ["output_tokens", "reference_tokens", *ngrams]
    return per_example(columns, row, aggregate, lambda: f"COCO BLEU-{order}|tok:ptb")


def rouge_l() -> SumStatistics:
    """Mean ROUGE-L F-score: longest common subsequences, with the best precision and recall over the references."""

    def row(output: str, references: Sequence[str]) -> tuple[float, float]:
        tokens = tokenize(output) or ("",)
        reference_tokens = [tokenize(reference) or ("",) for reference in references]
        shared = [lcs_length(tokens, reference) for reference in reference_tokens]
        lengths = map(len, reference_tokens)
        precision = max(shared) / len(tokens)
        recall = max(count / length for count, length in zip(shared, lengths, strict=True))
        if not precision:
            return 0.0, 1.0
        score = (1 + BETA**2) * precision * recall / (recall + BETA**2 * precision)
        return score, 1.0

    return per_example(
        ("score", "examples"),
        row,
        lambda sums: sums[:, 0] / sums[:, 1],
        lambda: "COCO ROUGE-L|tok:ptb",
    )


class DocumentFrequency:
    """In how many images' references each n-gram occurs."""

    def __init__(self) -> None:
        self.images = Counter[NGram]()
        self.total = 0

    def add(self, references: Iterable[CaptionTokens]) -> None:
        """Add the references of one image."""
        # An n-gram counts once, in however many references of the image it occurs.
        found = {ngram for reference in references for ngram in _ngrams(reference, MAX_ORDER)}
        self.images.update(found)
        self.total += 1

    def weigh(self, tokens: CaptionTokens) -> "TfIdfVector":
        """The TF-IDF weights of a caption's n-grams."""
        log_total = log(self.total)
        weights = {}
        for ngram, count in Counter(_ngrams(tokens, MAX_ORDER)).items():
            inverse_frequency = log_total - log(max(1, self.images[ngram]))
            weights[ngram] = count * inverse_frequency
        norms = [0.0] * MAX_ORDER
        for ngram, weight in weights.items():
            norms[len(ngram) - 1] += weight**2
        return TfIdfVector(weights, tuple(map(sqrt, norms)), max(0, len(tokens) - 1))


@dataclass(frozen=True)
class TfIdfVector:
    """A caption's n-grams with their TF-IDF weights."""

    weights: Mapping[NGram, float]
    norms: tuple[float, ...]  # per order
    bigrams: int  # their number, which CIDEr-D takes for the caption's length

    def similarity(self, reference: "TfIdfVector") -> float:
        """0 to 10: mean cosine over the orders, weights clipped at the reference's, with a Gaussian length penalty."""
        shared = [0.0] * MAX_ORDER
        find = reference.weights.get
        for ngram, weight in self.weights.items():
            if other := find(ngram):
                shared[len(ngram) - 1] += min(weight, other) * other
        orders = zip(shared, self.norms, reference.norms, strict=True)
        # An order without n-grams on one side has no cosine.
        cosine = sum(product / (own * other) for product, own, other in orders if own and other)
        longer = self.bigrams - reference.bigrams
        length_penalty = exp(-(longer**2) / (2 * SIGMA**2))
        return 10 * length_penalty * cosine / MAX_ORDER


class Cider(Statistics):
    """CIDEr-D: TF-IDF weighted n-gram similarity to the references (https://arxiv.org/abs/1411.5726).

    Document frequencies come from all references added, also for a subset or resample. Captions are therefore kept as
    tokens until the end: memory grows with the captions and with the distinct n-grams of the references.
    """

    def __init__(self) -> None:
        self.frequency = DocumentFrequency()
        # For each image, its output and its references.
        self.captions: list[tuple[CaptionTokens, list[CaptionTokens]]] = []
        self.interned: dict[str, str] = {}  # each distinct token once
        self.scores: list[float] = []

    def add(self, outputs: Sequence[str], references: References) -> None:
        for output, own in zip(outputs, references, strict=True):
            reference_tokens = [self._tokenize(reference) for reference in own]
            self.frequency.add(reference_tokens)
            self.captions.append((self._tokenize(output), reference_tokens))

    def values(self, counts: Array, indices: Indices | None = None) -> Array:
        scores = self._scores()
        if indices is not None:
            scores = scores[indices]
        mean: Array = counts @ scores / counts.sum(1)
        return mean

    def totals(self, indices: Indices) -> dict[str, float]:
        return {"score": float(self._scores()[indices].sum()), "examples": float(len(indices))}

    def signature(self) -> str:
        return f"CIDEr-D|tok:ptb|n:{MAX_ORDER}|sigma:{SIGMA:g}|df:{len(self.captions)} images"

    def _tokenize(self, caption: str) -> CaptionTokens:
        return tuple(self.interned.setdefault(token, token) for token in tokenize(caption))

    def _scores(self) -> Array:
        """The score of every image, computed again only if more were added."""
        if len(self.scores) < len(self.captions):
            weigh = self.frequency.weigh
            scores = []
            for output, references in self.captions:
                scores.append(cider_d(weigh(output), map(weigh, references)))
            self.scores = scores
        return np.array(self.scores)


def cider_d(output: TfIdfVector, references: Iterable[TfIdfVector]) -> float:
    """CIDEr-D of one caption."""
    return fmean(map(output.similarity, references))


def lcs_length(a: Sequence[str], b: Sequence[str]) -> int:
    """The length of the longest common subsequence, bit-parallel: one bit per token of `a`.

    >>> lcs_length("a b c d".split(), "b x d".split())
    2
    """
    positions: dict[str, int] = {}
    for i, token in enumerate(a):
        positions[token] = positions.get(token, 0) | 1 << i
    every = (1 << len(a)) - 1
    row = every
    for token in b:
        match = row & positions.get(token, 0)
        row = (row + match | row - match) & every
    return len(a) - row.bit_count()


def _ngrams(tokens: CaptionTokens, max_order: int) -> Iterator[NGram]:
    return (tokens[i : i + n] for n in range(1, max_order + 1) for i in range(len(tokens) - n + 1))
