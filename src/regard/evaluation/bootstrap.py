"""How sure a figure is, from its examples drawn again; and whether two systems differ by more than chance.

The bootstrap: as many examples as there are, drawn from them with replacement, a thousand times. Every metric and
every system sees the same draws, which is what pairs them (https://aclanthology.org/W04-3250).
"""

from collections.abc import Iterator, Sequence

import numpy as np

from regard.evaluation.statistics import Array, StatisticRows, Statistics

RESAMPLES = 1000
CONFIDENCE = 0.95
SEED = 1
BLOCK = 2**22  # counts in memory at once


def resampled(examples: int, resamples: int, seed: int = SEED) -> Iterator[Array]:
    """How often each example was drawn (R, N), some resamples at a time."""
    random = np.random.default_rng(seed)
    block = max(1, BLOCK // examples)
    for start in range(0, resamples, block):
        rows = min(block, resamples - start)
        draws = random.integers(examples, size=(rows, examples)) + examples * np.arange(rows)[:, None]
        counts = np.bincount(draws.ravel(), minlength=rows * examples).reshape(rows, examples)
        yield counts.astype(np.float64)


def bootstrap(
    tallies: Sequence[Statistics], among: StatisticRows, resamples: int = RESAMPLES, seed: int = SEED
) -> Array:
    """The figure of every tally (T, R) in every resample of these examples."""
    found = [[tally.values(counts, among) for tally in tallies] for counts in resampled(len(among), resamples, seed)]
    return np.concatenate([np.stack(block) for block in found], axis=1)


def interval(figures: Array, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Where the middle of the resamples lies."""
    outside = (1 - confidence) / 2
    low, high = np.quantile(figures, [outside, 1 - outside])
    return float(low), float(high)


def p_value(difference: float, differences: Array, examples: int) -> float:
    """How often chance alone parts two systems as far as they are, in either direction.

    What chance does is how the resamples' differences lie about their own mean. A system beside itself has 1.

    Of few examples, or such as all differ alike, resamples hardly vary, and would call any difference certain. Were the
    systems equally good, each example might as well have come out the other way round, as a coin falls; all of N fall
    alike, to either side, in 2 of 2ᴺ cases. No test that knows the pairs alone can be surer than that, nor is this one:
    one example has 1, two have at least 0.5, and below 0.05 it takes six.
    """
    by_chance = np.abs(differences - differences.mean())
    p = float((np.sum(by_chance >= abs(difference)) + 1) / (len(differences) + 1))
    return max(p, 2.0 ** (1 - examples))
