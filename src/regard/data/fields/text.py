"""The field `text`: a text becomes the ids of its tokens."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from regard.core.config import Count, doc
from regard.core.errors import InvalidArgument, Problem
from regard.core.sanitize import one_line
from regard.core.sequence import Tokens
from regard.data.column_files import ColumnWriter, TextWriter, open_text
from regard.data.columns import Column
from regard.data.fields.base import Field, check_list
from regard.data.special_tokens import SPECIALS
from regard.data.tokenizer import Tokenizer
from regard.data.train_tokenizer import TokenizerKind, lowered, train_tokenizer

BYTES = 256
DEFAULT_SIZE = 8000
SUBWORDS_AND_WORDS = ("bpe", "unigram", "words")


@dataclass(frozen=True)
class TextField(Field):
    """A text, which becomes tokens."""

    kind: Literal["text"] = doc("text", "a text becomes tokens")
    tokenizer: TokenizerKind = doc(
        "bpe",
        'kind of tokens a text is split into; "pretrained": those of the '
        "model that training starts from",
    )
    vocab_size: Count = doc(
        DEFAULT_SIZE, "largest number of different tokens, special tokens included"
    )
    lowercase: bool = doc(False, "convert texts to lower case")
    max_tokens: Count | None = doc(
        None, "training examples with more tokens are left out and counted"
    )

    noun = "a text"
    vocabulary_class = Tokenizer
    is_sequence = True
    input_kind = "tokens"
    needs_source = False

    def conflicts(self) -> Iterator[Problem]:
        unused: tuple[str, ...] = ()
        subject = ""
        if self.tokenizer == "bytes":
            # A token for each byte: no vocabulary is learned.
            subject = "a text in bytes"
            unused = ("vocab_size",)
        if self.tokenizer == "pretrained":
            subject = "a pretrained tokenizer"
            unused = ("vocab_size", "lowercase")
        for key in unused:
            if getattr(self, key) != TextField.__dataclass_fields__[key].default:
                got = repr(getattr(self, key))
                wanted = f"nothing here: it means nothing to {subject}"
                yield Problem(key, wanted, got, "Leave it out.")
        least = len(SPECIALS) + BYTES + 1
        why = "the special tokens and all bytes"
        if self.tokenizer == "words":
            least = len(SPECIALS) + 1
            why = "the special tokens and one word"
        if self.vocab_size < least and "vocab_size" not in unused:
            yield Problem(
                "vocab_size", f"at least {least}, for {why}", str(self.vocab_size), "Raise it."
            )

    @property
    def tokenization(self) -> tuple[object, ...]:
        return self.kind, self.tokenizer, self.vocab_size, self.lowercase

    @property
    def unit(self) -> TokenizerKind:
        return self.tokenizer

    @property
    def bounds_outputs(self) -> bool:
        """Letters and bytes do not: one of them may become many in another script.

        A pretrained tokenizer is that of an imported model, which generates as it did where it
        comes from.
        """
        return self.tokenizer in SUBWORDS_AND_WORDS

    @property
    def asked_size(self) -> int:
        return self.vocab_size

    @property
    def limit_key(self) -> str | None:
        return None if self.max_tokens is None else "max_tokens"

    def size_of(self, value: Any) -> int:
        in_characters = self.tokenizer in ("characters", "bytes")
        return len(value) if in_characters else len(value.split())

    def reference(self, cell: str) -> str:
        return lowered(cell) if self.lowercase else cell

    def row_text(self, vocabulary: Tokenizer, values: Any, row: int) -> str:
        ids = values.row(row)
        return f"{one_line(vocabulary.decode(ids))}   ({' '.join(vocabulary.pieces(ids))})"

    def example(self, vocabulary: Any) -> str:
        return "a"

    def for_new_files(self, column: str | None) -> "TextField":
        return replace(self, column=column, max_tokens=None)

    def check(self, name: str, values: Iterable[Any]) -> list[Any]:
        return check_list(name, values)

    def learn(self, values: Iterator[Any], *, is_target: bool) -> Tokenizer:
        return train_tokenizer(self.tokenizer, values, self.vocab_size, self.lowercase)

    def encode(self, vocabulary: Tokenizer, values: Sequence[Any]) -> list[Any]:
        return list(vocabulary.encode_batch(values))

    def length(self, encoded: Any) -> int:
        return len(encoded)

    def shorten(self, encoded: Any, limit: int) -> Any:
        return encoded[:limit]

    def around(self, vocabulary: Tokenizer) -> int:
        return len(vocabulary.special_tokens.source(()))

    def collate(self, vocabulary: Tokenizer, encoded: Sequence[Any]) -> Tokens:
        return Tokens.of([vocabulary.special_tokens.source(ids) for ids in encoded])

    def complete(
        self, vocabulary: Tokenizer, encoded: Any, *, is_target: bool, running: bool
    ) -> Any:
        special = vocabulary.special_tokens
        if not is_target:
            return special.source(encoded)
        if running:
            return special.output(encoded)
        return special.target(encoded)

    def exceeds_limit(self, encoded: Any) -> bool:
        return self.max_tokens is not None and len(encoded) > self.max_tokens

    def writer(self, stem: Path, vocabulary: Tokenizer, *, running: bool) -> ColumnWriter:
        writer = TextWriter(stem, vocabulary.size, running=running)
        if running:
            # The context of the first token.
            writer.add([[vocabulary.special_tokens.end]])
        return writer

    def open(self, stem: Path, vocabulary: Any, context_length: int | None) -> Column:
        return open_text(stem, context_length)


def tokenizer_of(vocabulary: object) -> Tokenizer | None:
    """The tokenizer of a text; None for what the other kinds of fields learn."""
    return vocabulary if isinstance(vocabulary, Tokenizer) else None


def require_tokenizer(vocabulary: object, what: str) -> Tokenizer:
    """The vocabulary as a tokenizer; InvalidArgument where the field is no text."""
    tokenizer = tokenizer_of(vocabulary)
    if tokenizer is not None:
        return tokenizer
    got = type(vocabulary).__name__
    raise InvalidArgument(what, wanted="a text", got=got, remedy="Choose another model.")
