"""BLEU, ROUGE-L and CIDEr as captioners report them, equal to the figures of the COCO evaluation.

All are of Penn Treebank tokens (`treebank`), and all take any number of references to a picture.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from regard.evaluation.tallies import Array, References, Rows, Sums, Tally
from regard.evaluation.treebank import tokens

ORDERS = 4  # of n-grams
SMALL, TINY = 1e-9, 1e-15  # with which the COCO evaluation keeps its fractions from dividing by nothing
BETA = 1.2  # how much recall counts in ROUGE-L
SIGMA = 6.0  # words by which lengths may differ in CIDEr-D, more or less

Gram = tuple[str, ...]


def bleu(order: int) -> Sums:
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
    return Sums(["output_tokens", "reference_tokens", *grams], measure, figure, lambda: f"COCO BLEU-{order}|tok:ptb")


def rouge_l() -> Sums:
    """The mean over pictures: longest common subsequences, their best precision and recall over the references."""

    def one(output: str, references: Sequence[str]) -> float:
        said, wanted = tokens(output) or ("",), [tokens(reference) or ("",) for reference in references]
        shared = [common(said, each) for each in wanted]
        precision = max(shared) / len(said)
        recall = max(count / len(each) for count, each in zip(shared, wanted, strict=True))
        return (1 + BETA**2) * precision * recall / (recall + BETA**2 * precision) if precision else 0.0

    def measure(outputs: Sequence[str], references: References) -> list[tuple[float, float]]:
        return [(one(output, found), 1.0) for output, found in zip(outputs, references, strict=True)]

    return Sums(("score", "examples"), measure, lambda sums: sums[:, 0] / sums[:, 1], lambda: "COCO ROUGE-L|tok:ptb")


class Cider(Tally):
    """CIDEr-D: n-grams that a caption shares with each reference, the rarer the heavier (arXiv:1411.5726).

    How rare an n-gram is, the references of the whole set say, however few of its examples a figure is of. So the
    numbers of all n-grams are kept until the end, and each different n-gram once: memory grows with both.
    """

    def __init__(self) -> None:
        self.numbers: dict[Gram, int] = {}
        self.pictures: list[int] = []  # of each n-gram, how many there are whose references hold it
        self.captions: list[tuple[Rows, list[Rows]]] = []  # of each picture: the output's n-grams, the references'
        self.scores = np.zeros(0)

    def add(self, outputs: Sequence[str], references: References) -> None:
        for output, found in zip(outputs, references, strict=True):
            wanted = [self._numbers(reference) for reference in found]
            for number in {int(number) for each in wanted for number in each}:
                self.pictures[number] += 1
            self.captions.append((self._numbers(output), wanted))

    def values(self, counts: Array, among: Rows | None = None) -> Array:
        scores = self._scores()
        found: Array = counts @ (scores if among is None else scores[among]) / counts.sum(1)
        return found

    def totals(self, among: Rows) -> dict[str, float]:
        return {"score": float(self._scores()[among].sum()), "examples": float(len(among))}

    def signature(self) -> str:
        return f"CIDEr-D|tok:ptb|n:{ORDERS}|sigma:{SIGMA:g}|df:{len(self.captions)} pictures"

    def _numbers(self, caption: str) -> Rows:
        found = [self.numbers.setdefault(gram, len(self.numbers)) for gram in _grams(tokens(caption), ORDERS)]
        self.pictures += [0] * (len(self.numbers) - len(self.pictures))
        return np.array(found, dtype=np.int64)

    def _scores(self) -> Array:
        """Of every picture, computed once for all that were added."""
        if len(self.scores) < len(self.captions):
            rarity = np.log(len(self.captions)) - np.log(np.maximum(1, self.pictures))
            orders = np.array([len(gram) - 1 for gram in self.numbers])
            self.scores = np.array([self._score(output, wanted, rarity, orders) for output, wanted in self.captions])
        return self.scores

    def _score(self, output: Rows, wanted: Sequence[Rows], rarity: Array, orders: Rows) -> float:
        said = Weighed(output, rarity, orders)
        return sum(said.likeness(Weighed(each, rarity, orders)) for each in wanted) / len(wanted)


class Weighed:
    """A caption's n-grams, each weighed by how often it is there and how rare it is elsewhere."""

    def __init__(self, grams: Rows, rarity: Array, orders: Rows) -> None:
        there, counts = np.unique(grams, return_counts=True)
        weights, self.order = counts * rarity[there], orders
        self.weights: dict[int, float] = dict(zip(there.tolist(), weights.tolist(), strict=True))
        self.norms = np.sqrt(np.bincount(orders[there], weights**2, minlength=ORDERS))
        self.pairs = int(np.count_nonzero(orders[grams] == 1))  # of words: what stands for the length

    def likeness(self, reference: "Weighed") -> float:
        """0 to 10: the cosine of each order, weights clipped at the reference's, less for a different length."""
        shared = np.zeros(ORDERS)
        for gram in self.weights.keys() & reference.weights.keys():
            theirs = reference.weights[gram]
            shared[self.order[gram]] += min(self.weights[gram], theirs) * theirs
        norms = self.norms * reference.norms
        cosines = shared / np.where(norms > 0, norms, 1.0)
        apart = self.pairs - reference.pairs
        return 10.0 * float(np.exp(-(apart**2) / (2 * SIGMA**2)) * cosines.mean())


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


def _grams(words: Sequence[str], most: int) -> Iterator[Gram]:
    """All runs of one word up to so many."""
    return (tuple(words[i : i + n]) for n in range(1, most + 1) for i in range(len(words) - n + 1))
