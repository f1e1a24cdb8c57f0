"""Columns of sentences on disk, for models with an output for each word: the words' pieces,
and their tags.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from regard.core.sequence import Tokens
from regard.core.word_tokens import WordTokens
from regard.data.column_files import TextWriter, open_text
from regard.data.columns import Ids, Indices, TextColumn
from regard.data.mapped_arrays import memory_map
from regard.data.word_pieces import EncodedWords, character_ids


@dataclass(frozen=True)
class Ragged:
    """Lists of numbers of different lengths, one after the other; `ends` holds the end of each."""

    values: NDArray[Any]
    ends: NDArray[np.int64]

    def starts(self, indices: Indices) -> Indices:
        return np.where(indices > 0, self.ends[indices - 1], 0)

    def lengths(self, indices: Indices) -> Indices:
        return self.ends[indices] - self.starts(indices)

    def padded(self, indices: Indices) -> tuple[Indices, Indices]:
        """These lists, padded with zeros, and their lengths."""
        lengths = self.lengths(indices)
        positions = np.arange(int(lengths.max(initial=0)))
        mask = positions < lengths[:, None]
        padded = np.zeros(mask.shape, dtype=np.int64)
        padded[mask] = self.values[(self.starts(indices)[:, None] + positions)[mask]]
        return padded, lengths


@dataclass(frozen=True)
class WordColumn(TextColumn):
    """Concatenated sentences with their words.

    starts       of the words of each sentence: the index of their first piece
    last_ends    of each sentence: the index after the last piece of its last word
    characters   of the words of each sentence, one list for each word; None where they are not read
    """

    word_starts: Ragged
    last_ends: NDArray[np.int32]
    characters: Ragged | None

    def gather(self, indices: Indices) -> WordTokens:
        tokens = super().gather(indices)
        starts, counts = self.word_starts.padded(indices)
        ends = word_ends(starts, counts, self.last_ends[indices])
        characters = None
        if self.characters is not None:
            characters = torch.from_numpy(self._characters(indices, counts))
        return WordTokens(
            tokens.ids,
            tokens.lengths,
            starts=torch.from_numpy(starts),
            ends=torch.from_numpy(ends),
            word_lengths=torch.from_numpy(counts),
            characters=characters,
        )

    def _characters(self, indices: Indices, counts: Indices) -> Indices:
        assert self.characters is not None
        first = self.word_starts.starts(indices)
        positions = np.arange(int(counts.max(initial=0)))
        mask = positions < counts[:, None]  # (B, W)
        padded, _ = self.characters.padded((first[:, None] + positions)[mask])
        characters = np.zeros((*mask.shape, padded.shape[1]), dtype=np.int64)
        characters[mask] = padded
        return characters


class WordWriter(TextWriter):
    """Writes sentences with their words."""

    def __init__(self, stem: Path, vocabulary: int, *, characters: bool) -> None:
        super().__init__(stem, vocabulary)
        self.starts = self.array("word_starts", np.int32)
        self.word_counts = self.array("word_ends", np.int64)
        self.last_ends = self.array("last_ends", np.int32)
        self.characters = self.array("characters", np.uint16) if characters else None
        self.character_ends = self.array("character_ends", np.int64) if characters else None

    def add(self, rows: Sequence[EncodedWords]) -> None:  # type: ignore[override]
        super().add([row.ids for row in rows])
        counts = [len(row.starts) for row in rows]
        self.word_counts.add(self.starts.count + np.cumsum(counts, dtype=np.int64))
        flat = chain.from_iterable(row.starts for row in rows)
        self.starts.add(np.fromiter(flat, dtype=np.int32, count=sum(counts)))
        self.last_ends.add(np.array([row.end for row in rows], dtype=np.int32))
        if self.characters is None or self.character_ends is None:
            return
        spelled = [character_ids(word) for row in rows for word in row.words]
        lengths = [len(word) for word in spelled]
        self.character_ends.add(self.characters.count + np.cumsum(lengths, dtype=np.int64))
        self.characters.add(np.array(list(chain.from_iterable(spelled)), dtype=np.uint16))


def open_words(stem: Path, *, characters: bool) -> WordColumn:
    """The sentences that a `WordWriter` stored under this name."""
    text = open_text(stem, None)
    assert isinstance(text, TextColumn)

    def array(name: str) -> NDArray[Any]:
        return memory_map(stem.with_name(f"{stem.name}.{name}.npy"))

    spelled = None
    if characters:
        spelled = Ragged(array("characters"), array("character_ends"))
    starts = Ragged(array("word_starts"), array("word_ends"))
    return WordColumn(text.ids, text.ends, starts, array("last_ends"), spelled)


@dataclass(frozen=True)
class TagColumn(TextColumn):
    """The tags of each example; every one of them is predicted."""

    def predictions(self, indices: Indices) -> int:
        return int(self.lengths(indices).sum())


def open_tags(stem: Path) -> TagColumn:
    """The tags that a `TextWriter` stored under this name."""
    text = open_text(stem, None)
    assert isinstance(text, TextColumn)
    return TagColumn(text.ids, text.ends)


def collate_words(rows: Sequence[EncodedWords], *, characters: bool) -> WordTokens:
    """A batch of complete sentences."""
    tokens = Tokens.of([row.ids for row in rows])
    counts = np.array([len(row.starts) for row in rows], dtype=np.int64)
    # A batch of empty sentences is a batch of padding: models compute nothing of no positions.
    width = int(counts.max(initial=1))
    starts = np.zeros((len(rows), width), dtype=np.int64)
    for row, sentence in enumerate(rows):
        starts[row, : counts[row]] = sentence.starts
    last = np.array([row.end for row in rows], dtype=np.int64)
    spelled = None
    if characters:
        spelled = torch.from_numpy(_spelled(rows, width))
    return WordTokens(
        tokens.ids,
        tokens.lengths,
        starts=torch.from_numpy(starts),
        ends=torch.from_numpy(word_ends(starts, counts, last)),
        word_lengths=torch.from_numpy(counts),
        characters=spelled,
    )


def word_ends(starts: Indices, counts: Indices, last: Ids) -> Indices:
    """The index after the last piece of each word: where the next begins,
    or the sentence's words end.
    """
    ends = np.zeros_like(starts)
    ends[:, :-1] = starts[:, 1:]
    rows = np.flatnonzero(counts)
    ends[rows, counts[rows] - 1] = last[rows]
    return ends


def _spelled(rows: Sequence[EncodedWords], width: int) -> Indices:
    spelled = [[character_ids(word) for word in row.words] for row in rows]
    longest = max((len(word) for words in spelled for word in words), default=1)
    characters = np.zeros((len(rows), width, longest), dtype=np.int64)
    for row, words in enumerate(spelled):
        for place, word in enumerate(words):
            characters[row, place, : len(word)] = word
    return characters
