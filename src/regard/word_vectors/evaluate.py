"""Evaluation of word vectors: human similarity judgements and analogies.

A word is looked up as it is written and, where that is unknown, in lower case.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

import numpy as np
import torch

from regard.core.errors import InvalidArgument, InvalidData
from regard.data.text import lines
from regard.word_vectors.vectors import WordVectors

Pair = tuple[str, str, float]
Question = tuple[str, str, str, str]
BLOCK = 512  # analogies compared with all words at once


@dataclass(frozen=True)
class Correlation:
    """Spearman's rank correlation over the pairs whose words are both known."""

    spearman: float
    found: int
    missing: int


@dataclass(frozen=True)
class Answers:
    """Counts of correct, answered and skipped analogies; those with an unknown word are skipped."""

    right: int
    asked: int
    skipped: int

    @property
    def accuracy(self) -> float:
        """Correct answers as a share of those asked; NaN without any."""
        return self.right / self.asked if self.asked else float("nan")


def read_pairs(path: str | Path) -> list[Pair]:
    """A word, a word and a score to each line, with tabs or spaces between (WordSim-353, SimLex-999, MEN)."""
    pairs = []
    for number, fields in _fields(path):
        try:
            a, b, written = fields
            score = float(written)
        except ValueError:
            raise _malformed(path, number, "two words and a score", fields) from None
        if not isfinite(score):  # no place in a ranking
            raise _malformed(path, number, "a finite score", fields)
        pairs.append((a, b, score))
    return pairs


def read_analogies(path: str | Path) -> dict[str, list[Question]]:
    """Google's analogies: a section's name after a colon, then four words to each line."""
    sections: dict[str, list[Question]] = {}
    questions: list[Question] | None = None
    for number, fields in _fields(path):
        if fields[0] == ":":
            questions = sections.setdefault(" ".join(fields[1:]), [])
        elif len(fields) != 4 or questions is None:
            raise _malformed(path, number, "': section', or four words of a section", fields)
        else:
            a, b, c, d = fields
            questions.append((a, b, c, d))
    return sections


def similarity_correlation(vectors: WordVectors, pairs: Sequence[Pair]) -> Correlation:
    """The rank correlation of cosines with human scores."""
    known = [(_row(vectors, a), _row(vectors, b), score) for a, b, score in pairs]
    found = [(a, b, score) for a, b, score in known if a is not None and b is not None]
    if len(found) < 2:
        wanted, got = "at least two pairs of known words", f"{len(found)} of {len(pairs)}"
        raise InvalidArgument(
            "pairs", wanted=wanted, got=got, remedy="Take vectors of this language and spelling."
        )
    a, b, scores = zip(*found, strict=True)
    cosines = (vectors.units[list(a)] * vectors.units[list(b)]).sum(1).tolist()
    return Correlation(spearman(cosines, scores), len(found), len(pairs) - len(found))


def analogy_accuracy(
    vectors: WordVectors, sections: Mapping[str, Sequence[Question]]
) -> tuple[Answers, dict[str, Answers]]:
    """Google's analogies by 3CosAdd over all words but the three asked about: in total, and for each section."""
    answers = {}
    for name, questions in sections.items():
        rows = [[_row(vectors, word) for word in question] for question in questions]
        known = torch.tensor([row for row in rows if None not in row], dtype=torch.long).reshape(
            -1, 4
        )
        known = known.to(vectors.units.device)
        right = sum(_right(vectors, block) for block in torch.split(known, BLOCK))
        answers[name] = Answers(right, len(known), len(questions) - len(known))
    every = answers.values()
    total = Answers(
        sum(a.right for a in every), sum(a.asked for a in every), sum(a.skipped for a in every)
    )
    return total, answers


def _right(vectors: WordVectors, rows: torch.Tensor) -> int:
    a, b, c, d = rows.T
    cosines = (vectors.units[b] - vectors.units[a] + vectors.units[c]) @ vectors.units.T
    cosines.scatter_(1, rows[:, :3], -torch.inf)
    return int((cosines.argmax(1) == d).sum())


def spearman(x: Sequence[float], y: Sequence[float]) -> float:
    """Spearman's rank correlation; equal values share the mean of their ranks. NaN where all of one side are equal."""
    a, b = _ranks(x), _ranks(y)
    a, b = a - a.mean(), b - b.mean()
    length = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / length) if length else float("nan")


def _ranks(values: Sequence[float]) -> np.ndarray:
    _, which, counts = np.unique(
        np.asarray(values, dtype=np.float64), return_inverse=True, return_counts=True
    )
    return np.asarray((counts.cumsum() - (counts - 1) / 2)[which])


def _row(vectors: WordVectors, word: str) -> int | None:
    return next(
        (vectors.row(spelling) for spelling in (word, word.lower()) if spelling in vectors), None
    )


def _fields(path: str | Path) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(lines(path), start=1):
        if line.strip():
            yield number, line.split()


def _malformed(path: str | Path, number: int, wanted: str, got: Sequence[str]) -> InvalidData:
    return InvalidData(
        path,
        number,
        wanted=wanted,
        got=repr(" ".join(got)[:60]),
        remedy="Give a file of this format.",
    )
