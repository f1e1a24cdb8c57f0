"""A comparison of systems: their report, and the examples on which their outputs differ most."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from regard.evaluation.output_difference import TokenDifference
from regard.evaluation.report import Report, System
from regard.evaluation.statistics import edit_distance


@dataclass(frozen=True)
class AnswerAttention:
    """The mean head of the last cross-attention layer, with the names of its rows and keys."""

    rows: Sequence[str]
    keys: Sequence[str]
    weights: Sequence[Sequence[float]]


@dataclass(frozen=True)
class SystemAnswer:
    """The output of one system, its sentence-level scores by metric, and its attention if it is a model with any."""

    output: str
    scores: dict[str, float]
    attention: AnswerAttention | None
    # Its words aligned with the words of the first system's output.
    difference: Sequence[TokenDifference] = ()


@dataclass(frozen=True)
class ComparedExample:
    """An example, and the answer of each system."""

    number: int  # from 1
    source: str
    references: Sequence[str]
    difference: float  # see `output_difference`
    answers: Sequence[SystemAnswer]


@dataclass(frozen=True)
class Comparison:
    """The report of several systems, and the examples with the most different outputs in descending order."""

    report: Report
    sentences: Sequence[ComparedExample]

    @property
    def systems(self) -> Sequence[System]:
        return self.report.systems

    def as_dict(self) -> dict[str, Any]:
        return asdict(self.report) | {
            "sentences": [asdict(sentence) for sentence in self.sentences]
        }


def output_difference(outputs: Sequence[str]) -> float:
    """The edit distance of the first output to each other one, divided by the longer length; the mean over them."""
    first, *others = outputs
    shares = [edit_distance(first, other) / max(len(first), len(other), 1) for other in others]
    return sum(shares) / len(others)
