"""The edits of TER: insertions, deletions, substitutions and shifts of phrases (https://aclanthology.org/2006.amta-papers.25).

The fewest edits with shifts are NP-hard to find. Tercom, the authors' program, searches greedily, with limits; this
follows sacreBLEU's reading of it (Apache-2.0, Copyright 2020 Memsource) in each of them, so that the counts are equal.
"""

from collections.abc import Iterator, Sequence
from math import ceil, floor
from typing import Any

LONGEST_SHIFT = 10  # words that are shifted together
FARTHEST_SHIFT = 50  # words between where they are and where the reference has them
BEAM = 25  # words on each side of the diagonal that the edit distance considers
MOST_SHIFTS = 1000  # that are tried for one sentence
MOST_ROWS = 10_000  # of edit distances that are kept
FAR = 10**9  # the distance outside of the beam

Row = list[int]  # the edit distances from the words so far to each beginning of the reference
Alignment = dict[int, int]  # from positions of the reference to positions of the output


def translation_edits(output: Sequence[str], reference: Sequence[str]) -> int:
    """The edits that turn the output into the reference, a shift counting as one.

    >>> translation_edits("on the mat the cat sat".split(), "the cat sat on the mat".split())
    1
    """
    words, shifts, tried = list(output), 0, 0
    if not reference:
        return len(words)
    distance = _BeamEditDistance(reference)
    while True:
        gained, shifted, tried = _best_shift(words, reference, distance, tried)
        if tried >= MOST_SHIFTS or gained <= 0:
            return shifts + distance.rows(words)[-1][-1]
        words, shifts = shifted, shifts + 1


def _best_shift(
    words: list[str], reference: Sequence[str], distance: "_BeamEditDistance", tried: int
) -> tuple[int, list[str], int]:
    """The shift that saves the most edits: how many, the words after it, and the shifts tried so far.

    Of equally good ones, that of the longest phrase, then of the earliest, then to the earliest position.
    """
    rows = distance.rows(words)
    alignment, wrong, missed = distance.alignment(rows, words)
    best: tuple[Any, ...] = ()
    for start, place, length in _shared_phrases(words, reference):
        if not any(wrong[start : start + length]) or not any(missed[place : place + length]):
            continue  # the words are right where they are, or the reference has its own there
        if start <= alignment[place] < start + length:
            continue  # a shift into itself
        last = -1
        for position in range(place - 1, place + length):
            target = 0 if position < 0 else alignment[position] + 1
            if target == last:
                continue
            last = target
            shifted = _shifted(words, start, length, target)
            candidate = rows[-1][-1] - distance.rows(shifted)[-1][-1], length, -start, -target, shifted
            tried += 1
            best = max(best, candidate)
        if tried >= MOST_SHIFTS:
            break
    return (best[0], best[-1], tried) if best else (0, words, tried)


def _shared_phrases(words: Sequence[str], reference: Sequence[str]) -> Iterator[tuple[int, int, int]]:
    """Start in the words, start in the reference, and length of each phrase that both have."""
    for start in range(len(words)):
        for place in range(max(0, start - FARTHEST_SHIFT), min(len(reference), start + FARTHEST_SHIFT + 1)):
            longest = min(LONGEST_SHIFT, len(words) - start, len(reference) - place)
            for length in range(longest):
                if words[start + length] != reference[place + length]:
                    break
                yield start, place, length + 1


def _shifted(words: list[str], start: int, length: int, target: int) -> list[str]:
    """The words with a phrase moved before the target, or, if the target is within it, by as much to the right."""
    phrase, rest = words[start : start + length], words[:start] + words[start + length :]
    if target > start + length:
        target -= length
    return rest[:target] + phrase + rest[target:]


class _BeamEditDistance:
    """Edit distances to one reference, near the diagonal. Words that begin as earlier ones share their rows.

    All words given to it must be of the same number: the diagonal depends on it.
    """

    def __init__(self, reference: Sequence[str]) -> None:
        self.reference, self.kept = reference, 0
        self.first: Row = list(range(len(reference) + 1))
        self.tree: dict[str, tuple[dict[str, Any], Row]] = {}  # next word -> (tree after it, row)

    def rows(self, words: Sequence[str]) -> list[Row]:
        """The rows of the dynamic program; the last cell of the last row is the distance."""
        rows, tree = [self.first], self.tree
        ratio = len(self.reference) / max(1, len(words))
        beam = BEAM if ratio / 2 <= BEAM else ceil(ratio / 2 + BEAM)
        for i, word in enumerate(words, 1):
            if word in tree:
                tree, row = tree[word]
            else:
                low = max(0, floor(i * ratio) - beam)
                high = min(len(self.first), floor(i * ratio) + beam) if i < len(words) else len(self.first)
                row = self._row(rows[-1], word, low, high)
                if self.kept < MOST_ROWS:
                    tree[word] = {}, row
                    self.kept += 1
                tree = tree[word][0] if word in tree else {}
            rows.append(row)
        return rows

    def _row(self, above: Row, word: str, low: int, high: int) -> Row:
        row = [FAR] * low
        left = FAR
        for j in range(low, high):
            least = above[j] + 1
            if j:
                least = min(least, left + 1, above[j - 1] + (word != self.reference[j - 1]))
            row.append(least)
            left = least
        return row + [FAR] * (len(self.first) - high)

    def alignment(self, rows: list[Row], words: Sequence[str]) -> tuple[Alignment, list[bool], list[bool]]:
        """The position of the output at each of the reference, and which words of the two are edited.

        Of equally short ways, that with matches and substitutions last, then deletions, then insertions.
        """
        i, j = len(words), len(self.reference)
        alignment, wrong, missed = {}, [False] * i, [False] * j
        while i or j:
            if i and j and rows[i][j] == rows[i - 1][j - 1] + (words[i - 1] != self.reference[j - 1]):
                i, j = i - 1, j - 1
                alignment[j] = i
                wrong[i] = missed[j] = words[i] != self.reference[j]
            elif i and rows[i][j] == rows[i - 1][j] + 1:
                i -= 1
                wrong[i] = True
            else:
                j -= 1
                alignment[j] = i - 1
                missed[j] = True
        return alignment, wrong, missed
