"""What stands at the places of an input or an output: tokens, and the words they make up."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch

from regard.core.shapes import Tensor
from regard.data.config import SPECIALS
from regard.data.tokenizer import Tokenizer
from regard.interpret.maps import TokenGroups

UNIT = "<unit>"  # a learned state that stands before all others


@dataclass(frozen=True)
class TokenSequence:
    """The tokens of one side; the number of each one's word; the words; and all of it as a text."""

    tokens: tuple[str, ...]
    words: tuple[int, ...]
    spelled: tuple[str, ...]
    text: str

    @staticmethod
    def of(ids: Sequence[int], vocabulary: Tokenizer | None) -> "TokenSequence":
        """Without a vocabulary, tokens are called by their numbers, and each is a word."""
        if vocabulary is None:
            return TokenSequence.alone(tuple(map(str, ids)))
        tokens, words = vocabulary.pieces(ids), vocabulary.words(ids)
        spelled = []
        for _, run in groupby(zip(words, ids, tokens, strict=True), key=lambda each: each[0]):
            _, numbers, pieces = zip(*run, strict=True)
            spelled.append(vocabulary.decode(numbers).strip() or "".join(pieces))
        return TokenSequence(tuple(tokens), tuple(words), tuple(spelled), vocabulary.decode(ids))

    @staticmethod
    def alone(names: tuple[str, ...]) -> "TokenSequence":
        """Of tokens that are words."""
        return TokenSequence(names, tuple(range(len(names))), names, " ".join(names))

    def after(self, units: int) -> "TokenSequence":
        first = (UNIT,) * units
        words = (*range(units), *(word + units for word in self.words))
        return TokenSequence((*first, *self.tokens), words, (*first, *self.spelled), self.text)

    def names(self, words: bool) -> tuple[str, ...]:
        return self.spelled if words else self.tokens

    def grouped(self, device: torch.device) -> TokenGroups:
        return TokenGroups(torch.tensor(self.words, dtype=torch.int64, device=device))

    def signs(self, words: bool) -> Tensor:
        """Which of them hold neither letter nor digit."""
        names = self.names(words)
        return torch.tensor([name in (*SPECIALS, UNIT) or not any(map(str.isalnum, name)) for name in names])
