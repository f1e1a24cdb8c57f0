"""The field `words`: a sentence, split into words, of which each can have an output of its own."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from regard.core.config import doc
from regard.core.word_tokens import WordTokens
from regard.data.column_files import ColumnWriter
from regard.data.columns import Column
from regard.data.fields.base import check_list
from regard.data.fields.text import TextField
from regard.data.token_lists import tokens_of
from regard.data.tokenizer import Tokenizer
from regard.data.train_tokenizer import train_tokenizer
from regard.data.word_arrays import WordWriter, collate_words, open_words
from regard.data.word_pieces import EncodedWords, completed, encode_sentences


@dataclass(frozen=True)
class WordsField(TextField):
    """The words of a sentence; a word becomes one token or several, its pieces."""

    kind: Literal["words"] = doc(  # type: ignore[assignment]
        "words", "the words of a sentence: a list, or a text split at white space"
    )
    characters: bool = doc(
        False, "read the characters of each word as well, for an input module of words"
    )

    noun = "a sentence of words"
    is_token_list = True
    has_positions = True
    has_lists = True
    is_windowed = True
    also_read_by = ("words",)

    @property
    def gives_characters(self) -> bool:
        return self.characters

    @property
    def tokenization(self) -> None:  # type: ignore[override]
        """None: a vocabulary of pieces of words is shared with no target."""
        return None

    @property
    def bounds_outputs(self) -> bool:
        return False

    def size_of(self, value: Any) -> int:
        return len(self.parse(value))

    def example(self, vocabulary: Any) -> Any:
        return ("a",)

    def parse(self, cell: Any) -> tuple[str, ...]:
        return tokens_of(cell, "words")

    def check(self, name: str, values: Iterable[Any]) -> list[Any]:
        return [tokens_of(value, name) for value in check_list(name, values, texts_only=False)]

    def learn(self, values: Iterator[Any], *, is_target: bool) -> Tokenizer:
        # A space before each word, as before every word that is encoded.
        texts = (f" {' '.join(words)}" for words in values)
        return train_tokenizer(self.tokenizer, texts, self.vocab_size, self.lowercase)

    def check_cell(self, vocabulary: Any, cell: str) -> None:
        self.parse(cell)

    def encode(self, vocabulary: Tokenizer, values: Sequence[Any]) -> list[Any]:
        return list(encode_sentences(vocabulary, values))

    def length(self, encoded: EncodedWords) -> int:
        return len(encoded.ids)

    def shorten(self, encoded: EncodedWords, limit: int) -> EncodedWords:
        return encoded.cut(limit)

    def positions(self, encoded: EncodedWords) -> int:
        return len(encoded.starts)

    def collate(self, vocabulary: Tokenizer, encoded: Sequence[EncodedWords]) -> WordTokens:
        complete = [completed(vocabulary, each) for each in encoded]
        return collate_words(complete, characters=self.characters)

    def complete(
        self, vocabulary: Tokenizer, encoded: Any, *, is_target: bool, running: bool
    ) -> Any:
        return completed(vocabulary, encoded)

    def exceeds_limit(self, encoded: EncodedWords) -> bool:
        return self.max_tokens is not None and len(encoded.ids) > self.max_tokens

    def writer(self, stem: Path, vocabulary: Tokenizer, *, running: bool) -> ColumnWriter:
        return WordWriter(stem, vocabulary.size, characters=self.characters)

    def open(self, stem: Path, vocabulary: Any, context_length: int | None) -> Column:
        return open_words(stem, characters=self.characters)
