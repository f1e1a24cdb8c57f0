"""How good outputs are, beside their references."""

from collections.abc import Sequence
from dataclasses import dataclass

from regard.errors import InvalidArgument


@dataclass(frozen=True)
class Scored:
    """A figure, and how exactly it was computed where that has a name."""

    value: float
    signature: str | None = None


def bleu(outputs: Sequence[str], references: Sequence[str], *, lower: bool = False) -> Scored:
    """Corpus BLEU by sacreBLEU, 0 to 100."""
    from sacrebleu.metrics.bleu import BLEU

    _same_number(outputs, references)
    metric = BLEU(lowercase=lower)
    score = metric.corpus_score(list(outputs), [list(references)])
    return Scored(float(score.score), str(metric.get_signature()))


def chrf(outputs: Sequence[str], references: Sequence[str]) -> Scored:
    """Character n-gram F-score by sacreBLEU, 0 to 100."""
    from sacrebleu.metrics.chrf import CHRF

    _same_number(outputs, references)
    metric = CHRF()
    score = metric.corpus_score(list(outputs), [list(references)])
    return Scored(float(score.score), str(metric.get_signature()))


def accuracy(outputs: Sequence[str], references: Sequence[str | Sequence[str]]) -> Scored:
    """The share of outputs that equal their reference, or one of their references, exactly."""
    _same_number(outputs, references)
    right = sum(output in _all(reference) for output, reference in zip(outputs, references, strict=True))
    return Scored(right / len(outputs))


def error_rate(outputs: Sequence[str], references: Sequence[str | Sequence[str]]) -> Scored:
    """Edits for each token (what spaces part) of the reference, or of the nearest of several references."""
    _same_number(outputs, references)
    edits = length = 0
    for output, reference in zip(outputs, references, strict=True):
        choices = [(edit_distance(output.split(), each.split()), len(each.split())) for each in _all(reference)]
        nearest = min(choices, key=lambda choice: choice[0] / max(1, choice[1]))
        edits, length = edits + nearest[0], length + nearest[1]
    return Scored(edits / max(1, length))


def edit_distance(a: Sequence[str], b: Sequence[str]) -> int:
    """The fewest insertions, deletions and replacements that make one of the other.

    >>> edit_distance("k i t t e n".split(), "s i t t i n g".split())
    3
    """
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        diagonal, row[0] = row[0], i
        for j, y in enumerate(b, start=1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (x != y))
    return row[-1]


def _all(reference: str | Sequence[str]) -> Sequence[str]:
    return (reference,) if isinstance(reference, str) else reference


def _same_number(outputs: Sequence[str], references: Sequence[object]) -> None:
    if len(outputs) != len(references) or not outputs:
        raise InvalidArgument(
            "outputs",
            wanted="as many as there are references, at least one",
            got=f"{len(outputs)} and {len(references)}",
            remedy="Give an output for each line.",
        )
