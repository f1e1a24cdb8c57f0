"""The result of a search."""

from typing import NamedTuple


class Hypothesis(NamedTuple):
    """One output of a request."""

    tokens: tuple[int, ...]  # without the end token
    log_probabilities: tuple[float, ...] | None  # of each token and of the end token, where there is one
    score: float | None  # the sum of the log-probabilities after the length penalty, by which outputs are ranked
    ended: bool  # by the end token; if not, at the maximum length

    @property
    def log_probability(self) -> float | None:
        """Of the whole output."""
        return None if self.log_probabilities is None else sum(self.log_probabilities)
