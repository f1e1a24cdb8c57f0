"""A synthetic series: seasonal waves with a trend and noise, as measured every hour."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from regard.data.example import Example, Split

ROWS = 4000
CHANNELS = 3
DAY = 24
WEEK = 7 * DAY


def waves(seed: int) -> NDArray[np.float64]:
    """Three channels of 4,000 hours: a daily and a weekly wave each, a slow drift, and noise."""
    rng = np.random.default_rng(seed)
    hours = np.arange(ROWS)[:, None]
    phases = rng.uniform(0, 2 * np.pi, (2, CHANNELS))
    heights = rng.uniform(0.5, 1.5, (2, CHANNELS))
    daily = heights[0] * np.sin(2 * np.pi * hours / DAY + phases[0])
    # The daily wave is higher on some days of the week than on others.
    weekly = 1 + 0.5 * heights[1] * np.sin(2 * np.pi * hours / WEEK + phases[1])
    drift = np.cumsum(rng.normal(0, 0.01, (ROWS, CHANNELS)), axis=0)
    noise = rng.normal(0, 0.2, (ROWS, CHANNELS))
    found: NDArray[np.float64] = daily * weekly + drift + noise
    return found


def no_examples(split: Split, seed: int) -> Iterator[Example]:
    """Nothing: the examples of this task are windows of its series."""
    return iter(())
