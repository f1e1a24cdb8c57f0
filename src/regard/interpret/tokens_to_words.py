"""Merging tokens into words: groups of tokens, sums and means over the groups, and names of tokens and words."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch

from regard.core.shapes import Int, Tensor
from regard.data.special_tokens import SPECIALS
from regard.data.tokenizer import Tokenizer

CLS_TOKEN = "[CLS]"  # a learned state before all others


@dataclass(frozen=True)
class TokenGroups:
    """The word of each token. A token with the word number `count` belongs to no word: sums and means leave it out."""

    word: Int[Tensor, " tokens"]
    count: int  # words

    @staticmethod
    def of(
        words: Sequence[int | None], count: int, device: torch.device | None = None
    ) -> "TokenGroups":
        known = [count if word is None or word >= count else word for word in words]
        return TokenGroups(torch.tensor(known, dtype=torch.int64, device=device), count)

    def select(self, words: Int[Tensor, " words"]) -> tuple[Int[Tensor, " tokens"], "TokenGroups"]:
        """The tokens of these words, which are runs of tokens, and the groups that they form in this order."""
        sizes = self.word.bincount()
        starts = sizes.cumsum(0) - sizes
        first = starts[words]  # the first token of each chosen word
        each = sizes[words]
        group = torch.arange(len(words), device=words.device).repeat_interleave(each)  # (tokens,)
        new_starts = each.cumsum(0) - each
        within = torch.arange(len(group), device=words.device) - new_starts[group]  # (tokens,)
        return first[group] + within, TokenGroups(group, len(words))

    def sum(self, values: Tensor, dim: int) -> Tensor:
        """The sum over the tokens of each word, along one axis."""
        # One more sum, which is dropped, takes the tokens that belong to no word.
        shape = list(values.shape)
        shape[dim] = self.count + 1
        sums = values.new_zeros(shape).index_add_(dim, self.word, values)
        return sums.narrow(dim, 0, self.count)

    def mean(self, values: Tensor, dim: int) -> Tensor:
        """The mean over the tokens of each word, along one axis."""
        sizes = self.word.bincount(minlength=self.count)[: self.count]
        later_axes = values.dim() - dim - 1
        divisors = sizes.view(-1, *[1] * later_axes)
        return self.sum(values, dim) / divisors


@dataclass(frozen=True)
class TokenSequence:
    """The tokens of one side of a model, the words they make up, and the text."""

    tokens: tuple[str, ...]
    word_of: tuple[int, ...]  # of each token
    words: tuple[str, ...]
    text: str
    special: frozenset[str] = frozenset(SPECIALS)  # names of special tokens

    @staticmethod
    def of(ids: Sequence[int], vocabulary: Tokenizer | None) -> "TokenSequence":
        """Without a vocabulary, a token's name is its id and each token is a word."""
        if vocabulary is None:
            return TokenSequence.of_words(tuple(map(str, ids)))
        tokens = vocabulary.pieces(ids)
        word_of = vocabulary.words(ids)
        words = []
        for _, run in groupby(zip(word_of, ids, tokens, strict=True), key=lambda each: each[0]):
            _, word_ids, pieces = zip(*run, strict=True)
            words.append(vocabulary.decode(word_ids).strip() or "".join(pieces))
        return TokenSequence(
            tokens=tuple(tokens),
            word_of=tuple(word_of),
            words=tuple(words),
            text=vocabulary.decode(ids),
            special=vocabulary.special_names,
        )

    @staticmethod
    def of_words(words: tuple[str, ...]) -> "TokenSequence":
        """A sequence in which every token is a word."""
        return TokenSequence(words, tuple(range(len(words))), words, " ".join(words))

    def after(self, units: int) -> "TokenSequence":
        """The same sequence after `units` learned states."""
        first = (CLS_TOKEN,) * units
        shifted = [word + units for word in self.word_of]
        return TokenSequence(
            tokens=(*first, *self.tokens),
            word_of=(*range(units), *shifted),
            words=(*first, *self.words),
            text=self.text,
            special=self.special,
        )

    def names(self, words: bool) -> tuple[str, ...]:
        return self.words if words else self.tokens

    def groups(self, device: torch.device | None = None) -> TokenGroups:
        return TokenGroups.of(self.word_of, len(self.words), device)

    def punctuation(self, words: bool) -> Tensor:
        """Which tokens, or words, hold neither a letter nor a digit: punctuation and special tokens."""
        special = {*self.special, CLS_TOKEN}
        marks = []
        for name in self.names(words):
            has_letters = any(map(str.isalnum, name))
            marks.append(name in special or not has_letters)
        return torch.tensor(marks)
