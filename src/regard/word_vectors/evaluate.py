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
        if self.asked:
            return self.right / self.asked
        return float("nan")


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
    found = []
    for word_a, word_b, score in pairs:
        row_a = _row(vectors, word_a)
        row_b = _row(vectors, word_b)
        if row_a is not None and row_b is not None:
            found.append((row_a, row_b, score))
    if len(found) < 2:
        wanted = "at least two pairs of known words"
        got = f"{len(found)} of {len(pairs)}"
        raise InvalidArgument(
            "pairs", wanted=wanted, got=got, remedy="Take vectors of this language and spelling."
        )
    rows_a, rows_b, scores = zip(*found, strict=True)
    products = vectors.units[list(rows_a)] * vectors.units[list(rows_b)]  # (pairs, W)
    cosines = products.sum(1).tolist()
    correlation = spearman(cosines, scores)
    return Correlation(correlation, len(found), len(pairs) - len(found))


def analogy_accuracy(
    vectors: WordVectors, sections: Mapping[str, Sequence[Question]]
) -> tuple[Answers, dict[str, Answers]]:
    """Google's analogies by 3CosAdd over all words but the three asked about: in total, and for each section."""
    answers = {}
    for name, questions in sections.items():
        rows = [[_row(vectors, word) for word in question] for question in questions]
        answerable = [row for row in rows if None not in row]
        known = torch.tensor(answerable, dtype=torch.long).reshape(-1, 4)  # (questions, 4)
        known = known.to(vectors.units.device)
        right = sum(_right(vectors, block) for block in torch.split(known, BLOCK))
        answers[name] = Answers(right, len(known), len(questions) - len(known))
    every = answers.values()
    total = Answers(
        right=sum(each.right for each in every),
        asked=sum(each.asked for each in every),
        skipped=sum(each.skipped for each in every),
    )
    return total, answers


def _right(vectors: WordVectors, rows: torch.Tensor) -> int:
    """How many of these analogies, given by the rows of their four words, are answered correctly."""
    a, b, c, d = rows.T
    wanted = vectors.units[b] - vectors.units[a] + vectors.units[c]  # (questions, W)
    cosines = wanted @ vectors.units.T  # (questions, V)
    # The three words of the question are never the answer.
    cosines.scatter_(1, rows[:, :3], -torch.inf)
    answers = cosines.argmax(1)
    return int((answers == d).sum())


def spearman(x: Sequence[float], y: Sequence[float]) -> float:
    """Spearman's rank correlation; NaN if all values of one side are equal. Equal values share their mean rank."""
    a = _ranks(x)
    b = _ranks(y)
    a = a - a.mean()
    b = b - b.mean()
    length = np.sqrt((a @ a) * (b @ b))
    if length:
        return float(a @ b / length)
    return float("nan")


def _ranks(values: Sequence[float]) -> np.ndarray:
    """The rank of each value, from 1; equal values share the mean of their ranks."""
    array = np.asarray(values, dtype=np.float64)
    _, which, counts = np.unique(array, return_inverse=True, return_counts=True)
    last_ranks = counts.cumsum()
    mean_ranks = last_ranks - (counts - 1) / 2
    return np.asarray(mean_ranks[which])


def _row(vectors: WordVectors, word: str) -> int | None:
    for spelling in (word, word.lower()):
        if spelling in vectors:
            return vectors.row(spelling)
    return None


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
