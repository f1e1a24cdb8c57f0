"""The difference of two outputs: their tokens aligned, with the log-probability of each."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Literal, TypeVar

Change = Literal["equal", "replace", "delete", "insert"]
Value = TypeVar("Value")


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
    """Align two outputs by their longest runs of equal tokens, and between these runs token by token."""
    matcher = SequenceMatcher(None, first, second, autojunk=False)
    found: list[TokenDifference] = []
    for change, low, high, other_low, other_high in matcher.get_opcodes():
        for i, j in zip_longest(range(low, high), range(other_low, other_high)):
            # Where one output has more tokens than the other, the rest was inserted or deleted.
            kind = change
            if i is None:
                kind = "insert"
            elif j is None:
                kind = "delete"
            difference = TokenDifference(
                kind,
                first=_at(first, i),
                second=_at(second, j),
                first_score=_at(first_scores, i),
                second_score=_at(second_scores, j),
            )
            found.append(difference)
    return found


def _at(values: Sequence[Value] | None, index: int | None) -> Value | None:
    """The value at an index; None where there are no values or there is no index."""
    if values is None or index is None:
        return None
    return values[index]


def marked_changes(differences: Sequence[TokenDifference]) -> str:
    """Words in the notation of wdiff: [-only in the first-] {+only in the second+}."""
    words: list[str] = []
    removed: list[str] = []
    added: list[str] = []

    def close() -> None:
        if removed:
            words.append(f"[-{' '.join(removed)}-]")
        if added:
            words.append(f"{{+{' '.join(added)}+}}")
        removed.clear()
        added.clear()

    for each in differences:
        if each.change == "equal":
            close()
            words.append(each.first or "")
            continue
        if each.first is not None:
            removed.append(each.first)
        if each.second is not None:
            added.append(each.second)
    close()
    return " ".join(words)
