"""What a search finds."""

from typing import NamedTuple


class Hypothesis(NamedTuple):
    """One output for an input."""

    tokens: tuple[int, ...]  # without the end
    log_probabilities: tuple[float, ...] | None  # of each token and of the end, where it came; None: nobody asked
    score: float | None  # by which outputs are ranked: their sum, divided as the length penalty says
    ended: bool  # or cut off at the longest length

    @property
    def log_probability(self) -> float | None:
        """Of the whole output."""
        return None if self.log_probabilities is None else sum(self.log_probabilities)
