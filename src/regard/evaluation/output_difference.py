"""The difference of two outputs: their tokens aligned, with the log-probability of each."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Literal

Change = Literal["equal", "replace", "delete", "insert"]


@dataclass(frozen=True)
class TokenDifference:
    """A token of the first output, of the second, or of both at the same place."""

    change: Change
    first: str | None = None
    second: str | None = None
    first_score: float | None = None  # log-probabilities
    second_score: float | None = None

    @property
    def gain(self) -> float | None:
        """How much more likely the second token is, in nats; None unless both have a score."""
        if self.first_score is None or self.second_score is None:
            return None
        return self.second_score - self.first_score


def token_differences(
    first: Sequence[str],
    second: Sequence[str],
    first_scores: Sequence[float | None] | None = None,
    second_scores: Sequence[float | None] | None = None,
) -> list[TokenDifference]:
    """Two outputs aligned by their longest runs of equal tokens; between runs, token by token as far as both go."""
    matcher = SequenceMatcher(None, first, second, autojunk=False)
    found: list[TokenDifference] = []
    for change, low, high, other_low, other_high in matcher.get_opcodes():
        for i, j in zip_longest(range(low, high), range(other_low, other_high)):
            kind = change
            if i is None:
                kind = "insert"
            elif j is None:
                kind = "delete"
            found.append(
                TokenDifference(
                    kind,
                    None if i is None else first[i],
                    None if j is None else second[j],
                    None if i is None or first_scores is None else first_scores[i],
                    None if j is None or second_scores is None else second_scores[j],
                )
            )
    return found


def marked_changes(differences: Sequence[TokenDifference]) -> str:
    """Words in the notation of wdiff: [-only in the first-] {+only in the second+}."""
    words: list[str] = []
    removed: list[str] = []
    added: list[str] = []

    def close() -> None:
        words.extend([f"[-{' '.join(removed)}-]"] if removed else [])
        words.extend([f"{{+{' '.join(added)}+}}"] if added else [])
        removed.clear()
        added.clear()

    for each in differences:
        if each.change == "equal":
            close()
            words.append(each.first or "")
            continue
        removed += [] if each.first is None else [each.first]
        added += [] if each.second is None else [each.second]
    close()
    return " ".join(words)
