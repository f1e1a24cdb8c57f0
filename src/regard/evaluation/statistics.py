"""What a metric keeps of each example: a few numbers and never a text.

From these numbers comes every figure that may be wanted later: of all examples, of the long ones, of examples drawn
again and again. All are one question, what the figure is where each example counts so many times, and it is answered
for many such countings at once.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.core.errors import InvalidArgument

Array = NDArray[np.float64]
StatisticRows = NDArray[np.int64]
References = Sequence[Sequence[str]]  # of each example at least one


class Statistics(ABC):
    """The numbers of the examples so far."""

    @abstractmethod
    def add(self, outputs: Sequence[str], references: References) -> None:
        """More examples, in their order."""

    @abstractmethod
    def values(self, counts: Array, among: StatisticRows | None = None) -> Array:
        """The figures (R,) where example n, of all or of those `among`, is there counts[r, n] times."""

    @abstractmethod
    def totals(self, among: StatisticRows) -> dict[str, float]:
        """What the figure of these examples is computed from."""

    def signature(self) -> str | None:
        """How exactly the figure is computed, where that has a name."""
        return None


class SumStatistics(Statistics):
    """A row of numbers an example, and a figure that needs no more than their sums."""

    def __init__(
        self,
        columns: Sequence[str],
        measure: Callable[[Sequence[str], References], Sequence[Sequence[float] | Array]],
        figure: Callable[[Array], Array],
        sign: Callable[[], str] | None = None,
    ) -> None:
        """`measure` gives the rows (N, K) of examples, `figure` the figures (R,) of sums (R, K)."""
        self.columns, self.measure, self.figure, self.sign = columns, measure, figure, sign
        self.rows: list[Array] = []

    def add(self, outputs: Sequence[str], references: References) -> None:
        self.rows.append(np.array(self.measure(outputs, references), dtype=np.float64))

    def values(self, counts: Array, among: StatisticRows | None = None) -> Array:
        rows = self._rows()
        return self.figure(counts @ (rows if among is None else rows[among]))

    def totals(self, among: StatisticRows) -> dict[str, float]:
        return dict(zip(self.columns, self._rows()[among].sum(0).tolist(), strict=True))

    def signature(self) -> str | None:
        return self.sign() if self.sign else None

    def _rows(self) -> Array:
        if len(self.rows) > 1:
            self.rows = [np.concatenate(self.rows)]
        return self.rows[0]


class ConfusionMatrix(Statistics):
    """The label of each example and the label that was given, and a figure of how often they met, class by class."""

    def __init__(self, figure: Callable[[Array, Array, Array], Array]) -> None:
        """`figure` takes, a row a counting and a column a class, how often it was right, given, and wanted."""
        self.figure = figure
        self.classes: dict[str, int] = {}  # in the order in which they came
        self.wanted: list[StatisticRows] = []
        self.given: list[StatisticRows] = []

    def add(self, outputs: Sequence[str], references: References) -> None:
        several = next((len(found) for found in references if len(found) != 1), 1)
        if several != 1:
            raise InvalidArgument(
                "references",
                wanted="one label an example, for precision, recall and F1",
                got=f"{several} for one of them",
                remedy="Use accuracy, which takes any of them.",
            )
        self.wanted.append(self._numbers([found[0] for found in references]))
        self.given.append(self._numbers(outputs))

    def values(self, counts: Array, among: StatisticRows | None = None) -> Array:
        return self.figure(*self._met(counts, among))

    def totals(self, among: StatisticRows) -> dict[str, float]:
        right, _, _ = self._met(np.ones((1, len(among))), among)
        return {"right": float(right.sum()), "examples": float(len(among))}

    def table(self) -> list[dict[str, Any]]:
        """Every class by itself, in alphabetical order."""
        right, given, wanted = self._met(np.ones((1, sum(map(len, self.given)))), None)
        columns = {"precision": precision, "recall": recall, "f1": f1}
        figures = {name: compute(right, given, wanted)[0] for name, compute in columns.items()}
        return [
            {"label": label, **{name: float(column[i]) for name, column in figures.items()}}
            | {"references": int(wanted[0, i]), "outputs": int(given[0, i])}
            for label, i in sorted(self.classes.items())
        ]

    def _numbers(self, labels: Sequence[str]) -> StatisticRows:
        return np.array([self.classes.setdefault(label, len(self.classes)) for label in labels])

    def _met(self, counts: Array, among: StatisticRows | None) -> tuple[Array, Array, Array]:
        wanted, given = np.concatenate(self.wanted), np.concatenate(self.given)
        if among is not None:
            wanted, given = wanted[among], given[among]
        right = counts * (wanted == given)
        return self._by_class(right, wanted), self._by_class(counts, given), self._by_class(counts, wanted)

    def _by_class(self, counts: Array, numbers: StatisticRows) -> Array:
        """(R, N) summed into (R, C)."""
        order = np.argsort(numbers, kind="stable")
        there, starts = np.unique(numbers[order], return_index=True)
        sums = np.zeros((len(counts), len(self.classes)))
        sums[:, there] = np.add.reduceat(counts[:, order], starts, axis=1)
        return sums


def precision(right: Array, given: Array, wanted: Array) -> Array:
    """Of each class, the share of outputs that are right; 0 where it was never given."""
    return right / np.maximum(given, 1)


def recall(right: Array, given: Array, wanted: Array) -> Array:
    """Of each class, the share of references that were found; 0 where it was never wanted."""
    return right / np.maximum(wanted, 1)


def f1(right: Array, given: Array, wanted: Array) -> Array:
    """The harmonic mean of both."""
    return 2 * right / np.maximum(given + wanted, 1)


def macro(figure: Callable[[Array, Array, Array], Array]) -> ConfusionMatrix:
    """The mean over the classes that there are, in references or outputs; each counts alike."""

    def mean(right: Array, given: Array, wanted: Array) -> Array:
        there = given + wanted > 0
        found: Array = (figure(right, given, wanted) * there).sum(1) / there.sum(1)
        return found

    return ConfusionMatrix(mean)


def micro_f1() -> ConfusionMatrix:
    """F1 of the counts of all classes together."""

    def together(right: Array, given: Array, wanted: Array) -> Array:
        found: Array = 2 * right.sum(1) / (given.sum(1) + wanted.sum(1))
        return found

    return ConfusionMatrix(together)


def exact() -> SumStatistics:
    """How many outputs are one of their references."""

    def measure(outputs: Sequence[str], references: References) -> list[list[float]]:
        return [[float(output in found), 1.0] for output, found in zip(outputs, references, strict=True)]

    return SumStatistics(("right", "examples"), measure, _share)


def edits(cut: Callable[[str], Sequence[str]]) -> SumStatistics:
    """Edits to the nearest reference and its length; of equally near ones the longest."""

    def nearest(output: str, found: Sequence[str]) -> tuple[int, int]:
        said = cut(output)
        choices = [(edit_distance(said, pieces), len(pieces)) for pieces in map(cut, found)]
        return min(choices, key=lambda choice: (choice[0], -choice[1]))

    def measure(outputs: Sequence[str], references: References) -> list[tuple[int, int]]:
        return [nearest(output, found) for output, found in zip(outputs, references, strict=True)]

    return SumStatistics(("edits", "reference_tokens"), measure, _share)


def _share(sums: Array) -> Array:
    return sums[:, 0] / np.maximum(sums[:, 1], 1)


def edit_distance(a: Sequence[str], b: Sequence[str]) -> int:
    """The fewest insertions, deletions and replacements that make one of the other.

    >>> edit_distance("kitten", "sitting")
    3

    A column of the usual table at a time, as two whole numbers with a bit for each cell: where going down one cell
    adds one, and where it takes one away (https://doi.org/10.1145/316542.316550).
    """
    if not a:
        return len(b)
    places: dict[str, int] = {}
    for i, token in enumerate(a):
        places[token] = places.get(token, 0) | 1 << i
    every, last = (1 << len(a)) - 1, 1 << len(a) - 1
    down, up, distance = every, 0, len(a)
    for token in b:
        same = places.get(token, 0)
        straight = same | up
        same |= ((same & down) + down) ^ down
        more, less = up | ~(same | down), down & same
        distance += bool(more & last) - bool(less & last)
        more, less = more << 1 | 1, less << 1
        down, up = (less | ~(straight | more)) & every, more & straight & every
    return distance
