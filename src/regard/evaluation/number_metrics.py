"""Metrics of predicted numbers: squared and absolute error, R², and two correlations.

Each is a function of sums over the examples, which a bootstrap resample counts several times or not
at all. Spearman's correlation is one of ranks, which differ between resamples: each resample is
ranked again. This takes no sorting, as values keep their order; equal values and repeated examples
share their average rank.

With several numbers per example, a metric is computed for each number and averaged, as scikit-learn
does. It is undefined (NaN in the arrays of this module; see `regard.evaluation.undefined`) if it is
undefined for one of them:

- R² where all references are equal,
- a correlation where all references or all predictions are equal,
- every metric where all references are missing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.core.errors import InvalidArgument
from regard.evaluation.statistics import Array, Indices, References, Statistics

LARGEST = 1e100  # squares of larger numbers, summed, could be infinite
CANCELLED = 1e-4  # share of a sum of squares below which too few of its digits are left


def _unchanged(values: Array) -> Array:
    return values


@dataclass(frozen=True)
class NumberMetric:
    """A metric of one number per example, computed from sums over examples.

    columns     names of the S sums
    measure     (counts (R, N), predicted (N,), references (N,)) -> sums (R, S)
    aggregate   sums (R, S) -> metric (R,); NaN where it is undefined
    prepare     what replaces predictions and references before the examples are resampled
    """

    columns: Sequence[str]
    measure: Callable[[Array, Array, Array], Array]
    aggregate: Callable[[Array], Array]
    prepare: Callable[[Array], Array] = _unchanged


class NumberStatistics(Statistics):
    """Predictions and references of a metric of numbers, K of them per example.

    names   of the K numbers, for tables; by default they are counted from 1
    read    reads the numbers of an output or a reference that is a text
    """

    def __init__(
        self,
        metric: NumberMetric,
        names: Sequence[str] = (),
        read: Callable[[str], Sequence[float]] | None = None,
    ) -> None:
        self.metric = metric
        self.names = tuple(names)
        self.read = read_numbers if read is None else read
        self._predicted: list[Array] = []
        self._references: list[Array] = []
        self._prepared: tuple[Array, Array] | None = None

    def add(self, outputs: Sequence[str], references: References) -> None:
        """Add examples whose numbers are texts."""
        for own in references:
            if len(own) != 1:
                raise InvalidArgument(
                    "references",
                    wanted="one reference an example, for metrics of numbers",
                    got=f"{len(own)} for one of them",
                    remedy="Keep one of them, or their mean.",
                )
        predicted = [self.read(output) for output in outputs]
        gold = [self.read(own[0]) for own in references]
        if len({len(row) for row in predicted + gold}) > 1:
            raise InvalidArgument(
                "outputs",
                wanted="as many numbers in every output and reference",
                got=f"{_counts(predicted)} in outputs and {_counts(gold)} in references",
                remedy="Check both files.",
            )
        self.add_numbers(np.array(predicted, np.float64), np.array(gold, np.float64))

    def add_numbers(self, predicted: NDArray[Any], references: NDArray[Any]) -> None:
        """Add predictions and references, (N, K) or (N,) each. A reference of NaN is missing."""
        new_predicted = _as_columns(predicted)
        new_references = _as_columns(references)
        if new_predicted.shape != new_references.shape:
            raise InvalidArgument(
                "predictions",
                wanted=f"as many as references, {new_references.shape}",
                got=f"an array of {new_predicted.shape}",
                remedy="Give one prediction for each reference.",
            )
        columns = new_predicted.shape[1]
        expected = self._predicted[0].shape[1] if self._predicted else len(self.names)
        if expected and columns != expected:
            raise InvalidArgument(
                "predictions",
                wanted=f"{expected} numbers an example, as before",
                got=f"{columns}",
                remedy="Give the same numbers for every example.",
            )
        _check_range("predictions", new_predicted)
        _check_range("references", np.nan_to_num(new_references, posinf=np.inf, neginf=-np.inf))
        self._predicted.append(new_predicted)
        self._references.append(new_references)
        self._prepared = None

    def values(self, counts: Array, indices: Indices | None = None) -> Array:
        """The metric (R,), averaged over the K numbers; NaN where it is undefined for one."""
        return _array(self.column_values(counts, indices).mean(0))

    def column_values(self, counts: Array, indices: Indices | None = None) -> Array:
        """The metric of each of the K numbers (K, R)."""
        sums = self._sums(counts, indices)
        return np.stack([self.metric.aggregate(column) for column in sums])

    def totals(self, indices: Indices) -> dict[str, float]:
        """The sums of the metric; with several numbers, each is named as in `columns`."""
        sums = self._sums(np.ones((1, len(indices))), indices)
        names = self.columns
        totals = {}
        for name, column in zip(names, sums, strict=True):
            prefix = f"{name}: " if len(names) > 1 else ""
            for key, total in zip(self.metric.columns, column[0].tolist(), strict=True):
                totals[prefix + key] = total
        return totals

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the K numbers."""
        if self.names or not self._predicted:
            return self.names
        return tuple(str(i + 1) for i in range(self._predicted[0].shape[1]))

    def _sums(self, counts: Array, indices: Indices | None) -> list[Array]:
        """The sums (R, S) of each of the K numbers."""
        predicted, references = self._columns()
        if indices is not None:
            predicted = predicted[indices]
            references = references[indices]
        return [
            self._column_sums(counts, predicted[:, k], references[:, k])
            for k in range(predicted.shape[1])
        ]

    def _column_sums(self, counts: Array, predicted: Array, references: Array) -> Array:
        present = ~np.isnan(references)
        if not present.all():
            counts = counts[:, present]
            predicted = predicted[present]
            references = references[present]
        return self.metric.measure(counts, predicted, references)

    def _columns(self) -> tuple[Array, Array]:
        """All predictions and references (N, K), as the metric prepares them."""
        if self._prepared is None:
            predicted = np.concatenate(self._predicted)
            references = np.concatenate(self._references)
            self._prepared = (self._prepare(predicted), self._prepare(references))
        return self._prepared

    def _prepare(self, values: Array) -> Array:
        columns = []
        for column in values.T:
            prepared = np.full(len(column), np.nan)
            present = ~np.isnan(column)
            prepared[present] = self.metric.prepare(column[present])
            columns.append(prepared)
        return np.stack(columns, axis=1)


def mean_squared_error() -> NumberMetric:
    """The mean of squared errors."""
    return NumberMetric(("numbers", "squared_errors"), _squared_errors, _mean)


def root_mean_squared_error() -> NumberMetric:
    """The square root of the mean squared error, of each number before they are averaged."""
    return NumberMetric(
        ("numbers", "squared_errors"), _squared_errors, lambda sums: np.sqrt(_mean(sums))
    )


def mean_absolute_error() -> NumberMetric:
    """The mean of absolute errors."""

    def measure(counts: Array, predicted: Array, references: Array) -> Array:
        errors = np.abs(predicted - references)
        return _array(counts @ np.stack([np.ones_like(errors), errors], axis=1))

    return NumberMetric(("numbers", "absolute_errors"), measure, _mean)


def r_squared() -> NumberMetric:
    """The share of the variance of references that predictions explain.

    It is 1 minus squared errors divided by squared deviations of references from their mean.

    Undefined where all references are equal. scikit-learn replaces it by 0 or 1 there.
    """

    def measure(counts: Array, predicted: Array, references: Array) -> Array:
        deviations = _centred_products(counts, references, references)[:, 0]
        squared_errors = _squared_errors(counts, predicted, references)[:, 1]
        return np.stack([squared_errors, deviations], axis=1)

    def aggregate(sums: Array) -> Array:
        return 1 - _ratio(sums[:, 0], sums[:, 1])

    return NumberMetric(("squared_errors", "squared_deviations"), measure, aggregate)


def pearson() -> NumberMetric:
    """Pearson's correlation of predictions and references. Undefined where either are all equal."""
    return NumberMetric(
        ("squared_deviations_of_predictions", "squared_deviations", "products_of_deviations"),
        _centred_products,
        _correlation,
    )


def spearman() -> NumberMetric:
    """Spearman's correlation: Pearson's, of average ranks. Every resample is ranked again."""
    return NumberMetric(
        (
            "squared_rank_deviations_of_predictions",
            "squared_rank_deviations",
            "products_of_rank_deviations",
        ),
        _rank_products,
        _correlation,
        prepare=_dense_ranks,
    )


NUMBER_METRICS: dict[str, Callable[[], NumberMetric]] = {
    "mse": mean_squared_error,
    "rmse": root_mean_squared_error,
    "mae": mean_absolute_error,
    "r2": r_squared,
    "pearson": pearson,
    "spearman": spearman,
}


def number_statistics(name: str, names: Sequence[str] = ()) -> NumberStatistics:
    """The empty statistics of a metric of `NUMBER_METRICS`."""
    return NumberStatistics(NUMBER_METRICS[name](), names)


def number_table(
    metrics: Sequence[str],
    predicted: NDArray[Any],
    references: NDArray[Any],
    names: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """A row for each number of an example: its name and metrics, None where one is undefined."""
    rows: list[dict[str, Any]] = []
    for metric in metrics:
        statistics = number_statistics(metric, names)
        statistics.add_numbers(predicted, references)
        values = statistics.column_values(np.ones((1, len(predicted))))[:, 0].tolist()
        if not rows:
            rows = [{"number": name} for name in statistics.columns]
        for row, value in zip(rows, values, strict=True):
            row[metric] = None if np.isnan(value) else value
    return rows


def read_numbers(text: str) -> list[float]:
    """The numbers of a text, separated by spaces or commas; `nan` stands for a missing reference.

    >>> read_numbers("1.5, -2 3e2")
    [1.5, -2.0, 300.0]
    """
    words = text.replace(",", " ").split()
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        numbers = []
    if not numbers:
        raise InvalidArgument(
            "number",
            wanted="a number, or several separated by spaces or commas",
            got=repr(text),
            remedy="Write numbers like 1.5 or -3e2.",
        )
    return numbers


def _counts(rows: Sequence[Sequence[float]]) -> str:
    """How many numbers rows have: "2", or "1 to 3"."""
    sizes = sorted({len(row) for row in rows})
    if len(sizes) == 1:
        return str(sizes[0])
    return f"{sizes[0]} to {sizes[-1]}"


def _as_columns(values: NDArray[Any]) -> Array:
    columns = np.asarray(values, np.float64)
    if columns.ndim == 1:
        columns = columns[:, None]
    if columns.ndim != 2:
        raise InvalidArgument(
            "predictions",
            wanted="an array of examples, or of examples and numbers",
            got=f"one of shape {columns.shape}",
            remedy="Give an array of one or two dimensions.",
        )
    return columns


def _check_range(name: str, values: Array) -> None:
    """Refuse numbers whose squares could not be summed."""
    too_large = ~(np.abs(values) <= LARGEST)
    if too_large.any():
        raise InvalidArgument(
            name,
            wanted=f"finite numbers of at most {LARGEST:g}",
            got=f"{values[too_large][0]}",
            remedy="Leave this example out, or use another unit.",
        )


def _array(values: Any) -> Array:
    """As float64."""
    return np.asarray(values, np.float64)


def _ratio(above: Array, below: Array) -> Array:
    """The quotients; NaN where the divisor is 0."""
    undefined = np.full(len(below), np.nan)
    return _array(np.divide(above, below, out=undefined, where=below > 0))


def _mean(sums: Array) -> Array:
    return _ratio(sums[:, 1], sums[:, 0])


def _correlation(sums: Array) -> Array:
    # Two roots: the product of two small sums could be 0.
    norms = np.sqrt(sums[:, 0]) * np.sqrt(sums[:, 1])
    return np.clip(_ratio(sums[:, 2], norms), -1.0, 1.0)


def _squared_errors(counts: Array, predicted: Array, references: Array) -> Array:
    errors = np.square(predicted - references)
    return _array(counts @ np.stack([np.ones_like(errors), errors], axis=1))


def _centred_products(counts: Array, one: Array, other: Array) -> Array:
    """Sums (R, 3) of squared deviations of `one` and `other` from their means, and of products."""
    if not len(one):
        return np.zeros((len(counts), 3))
    x, x_scale = _centred(one)
    y, y_scale = _centred(other)
    columns = np.stack([np.ones_like(x), x, y, x * x, y * y, x * y], axis=1)  # (N, 6)
    moments = counts @ columns  # (R, 6)
    sizes = np.maximum(moments[:, 0], 1)
    x_mean = moments[:, 1] / sizes
    y_mean = moments[:, 2] / sizes
    products = np.stack(
        [
            moments[:, 3] - sizes * x_mean**2,
            moments[:, 4] - sizes * y_mean**2,
            moments[:, 5] - sizes * x_mean * y_mean,
        ],
        axis=1,
    )
    # Where the mean of a resample is far from the median of all examples, compared with the spread
    # of the resample, these differences are of almost equal numbers and lose their digits. Such
    # resamples are rare: their deviations are summed one by one.
    x_lost = products[:, 0] < CANCELLED * moments[:, 3]
    y_lost = products[:, 1] < CANCELLED * moments[:, 4]
    for row in np.flatnonzero(x_lost | y_lost):
        products[row] = _deviation_products(counts[row], x, y)
    return _array(products * np.array([x_scale * x_scale, y_scale * y_scale, x_scale * y_scale]))


def _centred(values: Array) -> tuple[Array, float]:
    """Values minus their median, scaled to lie between -1 and 1, and the scale.

    Unlike the mean, the median is not moved by a few outliers, which most resamples do not contain.
    """
    deviations = values - np.median(values)
    scale = float(np.abs(deviations).max())
    if scale == 0:
        return deviations, 1.0
    return deviations / scale, scale


def _deviation_products(counts: Array, x: Array, y: Array) -> Array:
    """The three sums of `_centred_products` of one resample; exactly 0 for equal values."""
    drawn = counts > 0
    weights = counts[drawn]
    deviations = []
    for values in (x[drawn], y[drawn]):
        if (values == values[0]).all():
            deviations.append(np.zeros(len(values)))
        else:
            deviations.append(values - np.average(values, weights=weights))
    dx = deviations[0]
    dy = deviations[1]
    return np.array([weights @ (dx * dx), weights @ (dy * dy), weights @ (dx * dy)])


def _dense_ranks(values: Array) -> Array:
    """The rank of each value among the different values, from 0."""
    _, ranks = np.unique(values, return_inverse=True)
    return ranks.astype(np.float64)


def _rank_products(counts: Array, one: Array, other: Array) -> Array:
    """`_centred_products` of the average ranks in every resample, from dense ranks."""
    x = one.astype(np.int64)
    y = other.astype(np.int64)
    products = np.zeros((len(counts), 3))
    if not len(x):
        return products
    for row, drawn in enumerate(counts):
        x_sizes, x_ranks = _average_ranks(x, drawn)
        y_sizes, y_ranks = _average_ranks(y, drawn)
        products[row, 0] = x_sizes @ np.square(x_ranks)
        products[row, 1] = y_sizes @ np.square(y_ranks)
        products[row, 2] = drawn @ (x_ranks[x] * y_ranks[y])
    return products


def _average_ranks(dense: Indices, counts: Array) -> tuple[Array, Array]:
    """How often each different value was drawn, and its average rank minus the mean rank."""
    sizes = _array(np.bincount(dense, counts))
    before = np.cumsum(sizes) - sizes
    mean_rank = (counts.sum() + 1) / 2
    return sizes, _array(before + (sizes + 1) / 2 - mean_rank)
