"""Bootstrap confidence intervals of metrics, and paired significance tests of two systems.

A resample draws as many examples as there are, with replacement. Every metric and every system is computed on the same
resamples, which makes the test a paired one (https://aclanthology.org/W04-3250).
"""

from collections.abc import Iterator, Sequence

import numpy as np

from regard.evaluation.statistics import Array, Indices, Statistics

RESAMPLES = 1000
CONFIDENCE = 0.95
SEED = 1
BLOCK = 2**22  # counts in memory at once


def resample_counts(examples: int, resamples: int, seed: int = SEED) -> Iterator[Array]:
    """How often each example was drawn (R, N), in blocks of resamples."""
    random = np.random.default_rng(seed)
    block = max(1, BLOCK // examples)
    for start in range(0, resamples, block):
        rows = min(block, resamples - start)
        draws = random.integers(examples, size=(rows, examples))
        # Each row counts in cells of its own, so that one call counts all rows.
        draws = draws + examples * np.arange(rows)[:, None]
        counts = np.bincount(draws.ravel(), minlength=rows * examples)
        yield counts.reshape(rows, examples).astype(np.float64)


def bootstrap(
    statistics: Sequence[Statistics], indices: Indices, resamples: int = RESAMPLES, seed: int = SEED
) -> Array:
    """The metric of each statistics (T, R) in every resample of the examples at `indices`."""
    blocks = [
        np.stack([one.values(counts, indices) for one in statistics])
        for counts in resample_counts(len(indices), resamples, seed)
    ]
    return np.concatenate(blocks, axis=1)


def confidence_interval(values: Array, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The percentile interval of bootstrap values."""
    outside = (1 - confidence) / 2
    low, high = np.quantile(values, [outside, 1 - outside])
    return float(low), float(high)


def p_value(difference: float, differences: Array, examples: int) -> float:
    """Two-sided p-value of a difference, from its values in the resamples.

    The null distribution is the resampled differences centered at their mean. The p-value is at least 2 / 2ᴺ for N
    examples, the smallest that a paired sign test can give: with few examples, or examples that all differ by the same
    amount, resamples hardly vary and would call any difference certain. So one example gives 1, two give at least 0.5,
    and p < 0.05 needs six.
    """
    by_chance = np.abs(differences - differences.mean())
    as_large = np.sum(by_chance >= abs(difference))
    p = float((as_large + 1) / (len(differences) + 1))
    return max(p, 2.0 ** (1 - examples))
