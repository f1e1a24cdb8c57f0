"""Sentences as the pieces of their words: token ids, and where each word begins."""

from collections.abc import Sequence
from dataclasses import dataclass

from regard.core.word_tokens import CHARACTER_IDS
from regard.data.tokenizer import Tokenizer

LONGEST_WORD = 64  # characters of a word that are read
CACHED_WORDS = 1 << 17  # of a tokenizer, whose pieces are kept: texts repeat their words


@dataclass(frozen=True)
class EncodedWords:
    """An encoded sentence.

    ids          of the pieces of all words; with the tokens around a sentence, once it is complete
    starts       the index of the first piece of each word
    end          the index after the last piece
    words        as they were given
    """

    ids: tuple[int, ...]
    starts: tuple[int, ...]
    end: int
    words: tuple[str, ...]

    def part(self, first: int, last: int) -> "EncodedWords":
        """The words from number `first` to before `last`, without tokens around them."""
        begin = self.starts[first]
        stop = self.end if last >= len(self.starts) else self.starts[last]
        starts = tuple(start - begin for start in self.starts[first:last])
        return EncodedWords(self.ids[begin:stop], starts, stop - begin, self.words[first:last])

    def cut(self, limit: int) -> "EncodedWords":
        """The beginning, of at most `limit` pieces: whole words,
        or the first pieces of one that is longer.
        """
        ends = (*self.starts[1:], self.end)
        fitting = sum(end <= limit for end in ends)
        if fitting or not self.starts:
            return self.part(0, fitting)
        return EncodedWords(self.ids[:limit], self.starts[:1], limit, self.words[:1])


def encode_sentences(
    tokenizer: Tokenizer, sentences: Sequence[Sequence[str]]
) -> list[EncodedWords]:
    """Sentences as the pieces of their words; each word has at least one."""
    known = tokenizer.cached_words
    new = list({word for words in sentences for word in words if word not in known})
    if len(known) + len(new) > CACHED_WORDS:
        known.clear()
        new = list({word for words in sentences for word in words})
    special = tokenizer.special_tokens
    # A word that the tokenizer's normalizer removes, such as a lone accent, is an unknown one:
    # it has an output, too.
    nothing = (special.end if special.unknown is None else special.unknown,)
    for word, pieces in zip(new, tokenizer.encode_words(new), strict=True):
        known[word] = tuple(pieces) or nothing
    encoded = []
    for words in sentences:
        ids: list[int] = []
        starts = []
        for word in words:
            starts.append(len(ids))
            ids += known[word]
        encoded.append(EncodedWords(tuple(ids), tuple(starts), len(ids), tuple(words)))
    return encoded


def completed(tokenizer: Tokenizer, encoded: EncodedWords) -> EncodedWords:
    """A sentence with the tokens around it, as an encoder reads it."""
    special = tokenizer.special_tokens
    before = len(special.source_prefix)
    starts = tuple(start + before for start in encoded.starts)
    ids = tuple(special.source(encoded.ids))
    return EncodedWords(ids, starts, encoded.end + before, encoded.words)


def character_ids(word: str) -> list[int]:
    """The ids of the characters of a word: 1 to `CHARACTER_IDS`; 0 is padding."""
    return [1 + ord(character) % CHARACTER_IDS for character in word[:LONGEST_WORD]]
