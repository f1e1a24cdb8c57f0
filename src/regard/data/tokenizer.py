"""Tokenizers: texts as token ids, with the special tokens of the vocabulary.

Those that Regard trains (`train_tokenizer`) are lossless, words excepted: decode(encode(text)) ==
text, and the name of a special token inside a text is ordinary text. Those of other models encode
as their own library does: the name of a special token inside a text is that token. In running text
(`for_running_text`), the end token stands for a line break. Batches are encoded in threads unless
TOKENIZERS_PARALLELISM=false.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, SupportsInt

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from regard.core.errors import InvalidArgument
from regard.core.sanitize import is_encodable
from regard.data.charsmap import check_normalizer
from regard.data.special_tokens import DEFAULT_TOKENS, SPECIALS, UNKNOWN, SpecialTokens
from regard.data.spelling import BYTE_LEVEL_CHARACTERS, Spelling
from regard.data.vocabulary import Vocabulary

LARGEST = 10_000_000  # tokens
BETWEEN = re.compile("[^ \n\t]+")  # words of a lossless tokenizer


class Tokenizer(Vocabulary):
    """Encodes texts as token ids; wraps a Hugging Face tokenizer and is saved as one.

    inner            the tokenizer. Its post-processor, padding and truncation are not applied
    special_tokens   of a tokenizer of another model; None: `inner` is one that Regard trained
    size             rows of the embedding, where that has more than `inner` has tokens
    spare            tokens of `inner` after the first `size`, which are encoded as the unknown
                     token: pieces of Marian's that its vocabulary lacks
    running          whether the end token stands for a line break
    """

    file_format = "a tokenizer.json"
    stored_kind = "tokenizer"

    def __init__(
        self,
        inner: tokenizers.Tokenizer,
        special_tokens: SpecialTokens | None = None,
        size: int | None = None,
        *,
        spare: int = 0,
        running: bool = False,
    ) -> None:
        self._inner = inner
        self._running = running
        self._trained = special_tokens is None
        # The text that it was read from: written anew, scores may differ in the last digit.
        self._text: str | None = None
        # Of the tokens seen so far.
        self._readable = dict[int, str]()
        self._spelled = dict[int, bytes]()
        self.special_tokens = DEFAULT_TOKENS if special_tokens is None else special_tokens
        self._spare = spare
        self.size = self._checked_size(size)
        self._spelling = Spelling.of(inner)
        # The pieces of words that were encoded before (`word_pieces.encode_sentences`).
        self.cached_words = dict[str, tuple[int, ...]]()
        # Whether a text is the bytes of its tokens. Beside an invalid byte,
        # the library drops valid ones of a fallback.
        self._joins = self._trained and (
            self._spelling.fallback or self._spelling.style == "byte level"
        )
        if self._trained:
            if wrong := _foreign_setting(inner, self._spelling):
                wanted = "one that Regard trained"
                remedy = "Pass its special_tokens too."
                raise InvalidArgument("tokenizer", wanted=wanted, got=wrong, remedy=remedy)
            self._special = frozenset(range(len(SPECIALS)))
        else:
            self._check_special_tokens()
            inner.no_padding()
            inner.no_truncation()
            added = inner.get_added_tokens_decoder()
            self._special = self.special_tokens.ids | {
                i for i, token in added.items() if token.special
            }
            self._added = {token.content for token in added.values()}
        inner.encode_special_tokens = self._trained  # "</s>" in a text is four characters

    def _checked_size(self, size: int | None) -> int:
        """The size; ids beyond it are refused before the tokenizer is written or used:
        writing takes memory for all.
        """
        ids = sorted(self._inner.get_vocab().values())
        largest = ids[-1] if ids else -1
        if size is None:
            if ids != list(range(self._inner.get_vocab_size())):
                got = f"ids other than 0 to {len(ids) - 1}, the largest {largest}"
                remedy = "Pass the size of its embedding."
                raise InvalidArgument(
                    "tokenizer", wanted="an id for each row", got=got, remedy=remedy
                )
            return len(ids)
        if (
            isinstance(size, bool)
            or not isinstance(size, int)
            or not largest - self._spare < size <= LARGEST
        ):
            wanted = f"a number from {largest + 1 - self._spare} to {LARGEST:,}"
            remedy = "Pass the rows of its embedding."
            raise InvalidArgument("size", wanted=wanted, got=repr(size), remedy=remedy)
        return size

    def _check_special_tokens(self) -> None:
        if self._spare and self.special_tokens.unknown is None:
            remedy = "Leave out spare tokens."
            raise InvalidArgument(
                "spare", wanted="0 without an unknown token", got=str(self._spare), remedy=remedy
            )
        try:
            check_normalizer(self._inner.normalizer)
            self.special_tokens.check(self.size)
        except ValueError as error:
            wanted = "sound rules, and special tokens of its vocabulary"
            remedy = "Read them from the model's files."
            raise InvalidArgument(
                "tokenizer", wanted=wanted, got=str(error), remedy=remedy
            ) from None

    @classmethod
    def from_json(cls, text: str, settings: Mapping[str, Any] | None = None) -> "Tokenizer":
        try:
            inner = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(str(error)[:200]) from None
        if settings:
            made = Tokenizer._with_settings(inner, settings)
        else:
            made = Tokenizer(inner)
        made._text = text
        return made

    @staticmethod
    def _with_settings(inner: tokenizers.Tokenizer, settings: Mapping[str, Any]) -> "Tokenizer":
        size = settings.get("size")
        spare = settings.get("spare", 0)
        for name, value in {"size": size, "spare": spare}.items():
            if (
                isinstance(value, bool)
                or not isinstance(value, int)
                or not (name == "size") <= value <= LARGEST
            ):
                raise ValueError(f"{name} = {value!r:.80}, which is not a number of tokens")
        assert isinstance(size, int)
        return Tokenizer(
            inner, SpecialTokens.of(settings.get("special_tokens"), size), size, spare=spare
        )

    def to_json(self) -> str:
        if self._text is None:
            return self._inner.to_str(pretty=True)
        return self._text

    @property
    def settings(self) -> dict[str, Any]:
        if self._trained:
            return {}
        settings = {"special_tokens": self.special_tokens.as_dict(), "size": self.size}
        if self._spare:
            settings["spare"] = self._spare
        return settings

    def for_running_text(self) -> "Tokenizer":
        """The same tokenizer for running text, where the end token is the line break."""
        given = (None, None) if self._trained else (self.special_tokens, self.size)
        made = Tokenizer(self._inner, *given, spare=self._spare, running=True)
        made._text = self._text
        return made

    def with_special_tokens(self, special_tokens: SpecialTokens) -> "Tokenizer":
        """The same tokenizer of another model with these special tokens."""
        return Tokenizer(self._inner, special_tokens, self.size, spare=self._spare)

    def tokens(self) -> list[str]:
        return self._names(range(self.size))

    @property
    def special_names(self) -> frozenset[str]:
        """The names of all special tokens."""
        return frozenset(self._names(self._special))

    def encode(self, text: str) -> list[int]:
        """The token ids of a text, without special tokens but the line breaks of running text."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of many texts, in threads."""
        texts = list(well_formed(texts))
        if self._running:
            lines = [text.split("\n") for text in texts]
            end = self.special_tokens.end
            encoded = iter(self._encode_lines([line for each in lines for line in each]))
            return [
                [*chain.from_iterable([*next(encoded), end] for _ in each)][:-1] for each in lines
            ]
        return self._encode_lines(texts)

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        """The token ids of words, each as it is encoded within a text."""
        whole = list(well_formed(words))
        if not self._trained:
            # As transformers does with is_split_into_words=True.
            return self._encode_lines([[word] for word in whole], is_pretokenized=True)
        in_bytes = self._spelling.style == "byte level"
        if in_bytes:
            whole = [f" {word}" for word in whole]
        return self._encode_lines(whole)

    def _encode_lines(
        self, texts: Sequence[str | list[str]], *, is_pretokenized: bool = False
    ) -> list[list[int]]:
        try:
            encodings = self._inner.encode_batch_fast(
                texts, is_pretokenized=is_pretokenized, add_special_tokens=False
            )
        except Exception as error:  # the library raises nothing narrower
            wanted = "text that the tokenizer has tokens for"
            got = str(error)[:200]
            raise InvalidArgument(
                "text", wanted=wanted, got=got, remedy="Leave out what it cannot encode."
            ) from None
        rows = [encoding.ids for encoding in encodings]
        if self._spare:
            unknown = self.special_tokens.unknown
            assert unknown is not None
            return [[i if i < self.size else unknown for i in row] for row in rows]
        # A special token's name in a text is an unknown word.
        if self._trained and self._spelling.style == "words":
            return [[i if i not in self._special else UNKNOWN for i in row] for row in rows]
        return rows

    def decode(self, ids: Iterable[SupportsInt]) -> str:
        """The text of tokens; special tokens are dropped, invalid UTF-8 becomes U+FFFD.

        In running text, the end token becomes a line break. The unknown token of words that Regard
        has learned is written as <unk>: the text would be a word shorter without it. A tokenizer of
        another library drops it, as that library does.
        """
        if self._joins:
            return b"".join(self.spellings(ids)).decode("utf-8", "replace")
        known = self._known(ids)
        end = self.special_tokens.end
        if self._running and end in known:
            ends = [i for i, token in enumerate(known) if token == end]
            lines = zip([-1, *ends], [*ends, len(known)], strict=True)
            return "\n".join(self._decode_line(known[before + 1 : end]) for before, end in lines)
        return self._decode_line(known)

    def _decode_line(self, known: list[int]) -> str:
        if not self._special.isdisjoint(known):
            known = [i for i in known if i not in self._special or self._shows(i)]
        return self._inner.decode(known, skip_special_tokens=not self._trained)

    def _shows(self, i: int) -> bool:
        """Whether a special token is written in texts."""
        return self._trained and self.has_unknown and i == self.special_tokens.unknown

    @property
    def has_unknown(self) -> bool:
        """Whether texts can have unknown tokens:
        those that Regard learns have bytes for every text, words excepted.
        """
        if self.special_tokens.unknown is None:
            return False
        return not self._trained or self._spelling.style == "words"

    def count_unknown(self, ids: Iterable[int]) -> int:
        """How many of these tokens are unknown ones."""
        if not self.has_unknown:
            return 0
        return sum(i == self.special_tokens.unknown for i in ids)

    def pieces(self, ids: Iterable[SupportsInt]) -> list[str]:
        """Each token in readable form: visible white space, bytes of a partial character in ⟨⟩."""
        known = self._known(ids)
        readable = self._readable
        for i in known:
            if i not in readable:
                (token,) = self._names([i])
                readable[i] = token if self._is_whole(i, token) else self._spelling.readable(token)
        return [readable[i] for i in known]

    def spellings(self, ids: Iterable[SupportsInt]) -> list[bytes]:
        """The bytes of each token, spaces included;
        empty for special tokens but the line breaks of running text.
        """
        spelled = self._spelled
        if isinstance(ids, list | tuple):
            with suppress(KeyError):  # of a token that was not decoded before
                return [*map(spelled.__getitem__, ids)]
        known = self._known(ids)
        for i in known:
            if i not in spelled:
                spelled[i] = self._spell(i)
        return [spelled[i] for i in known]

    def _spell(self, i: int) -> bytes:
        if i in self._special and not self._shows(i):
            return b"\n" if self._running and i == self.special_tokens.end else b""
        (token,) = self._names([i])
        is_whole = self._is_whole(i, token) and not self._shows(i)
        return token.encode() if is_whole else self._spelling.spell(token)

    def words(self, ids: Iterable[SupportsInt]) -> list[int]:
        """The word index of each token, from 0; spaces separate words,
        and a special token is a word of its own.
        """
        known = self._known(ids)
        indices: list[int] = []
        for before, i, spelling in zip([None, *known], known, self.spellings(known), strict=False):
            begins = (
                i in self._special
                or before in self._special
                or spelling[:1] in (b" ", b"\n", b"\t")
            )
            indices.append(indices[-1] + begins if indices else 0)
        return indices

    def spans(self, text: str) -> list[tuple[int, int]]:
        """The start and end of each word of a text, as `word_indices` counts them."""
        if self._spelling.separate and not self._trained:
            encoding = self._inner.encode(text, add_special_tokens=False)
            spans = dict[int, tuple[int, int]]()
            for word, (start, end) in zip(encoding.word_ids, encoding.offsets, strict=True):
                if word is not None:
                    spans[word] = spans.get(word, (start, end))[0], end
            return list(spans.values())
        words = re.finditer(r"\S+", text) if self._spelling.separate else BETWEEN.finditer(text)
        return [word.span() for word in words]

    def word_indices(
        self, ids: Iterable[SupportsInt], *, unknown: bool = False
    ) -> list[int | None]:
        """The word index of each token in the text of `decode`;
        None for a token without a character of a word.

        Unlike in `words`, spaces belong to no word and special tokens have no index; with
        `unknown`, the unknown token has one, as in the text that was encoded.
        """
        known = self._known(ids)
        indices = list[int | None]()
        # The last word, and whether the text so far ends inside it.
        last = -1
        inside = False
        for i, spelling in zip(known, self.spellings(known), strict=True):
            if unknown and i == self.special_tokens.unknown:
                spelling = self._spelling.spell("?")
            index: int | None = None
            if self._spelling.separate and spelling.strip():
                index = last = max(0, last + spelling.startswith(b" "))
            characters = b"" if self._spelling.separate else spelling
            for byte in characters:
                if byte in b" \n\t":
                    inside = False
                    continue
                last += not inside
                if index is None:
                    index = last
                inside = True
            indices.append(index)
        return indices

    def _names(self, ids: Iterable[int]) -> list[str]:
        return [self._inner.id_to_token(i) or f"<{i}>" for i in ids]

    def _is_whole(self, i: int, token: str) -> bool:
        """Whether a token is written as it is: a special one, one that was added,
        or a row that no token uses.
        """
        return i in self._special or (
            not self._trained and (token in self._added or not self._inner.id_to_token(i))
        )

    def _known(self, ids: Iterable[SupportsInt]) -> list[int]:
        known = list(map(int, ids))
        size = self.size
        if known and not (min(known) >= 0 and max(known) < size):
            wanted = f"numbers from 0 to {size - 1}"
            wrong = next(i for i in known if not 0 <= i < size)
            raise InvalidArgument(
                "ids", wanted=wanted, got=str(wrong), remedy="Use its own tokenizer."
            )
        return known


def _foreign_setting(inner: tokenizers.Tokenizer, spelling: Spelling) -> str | None:
    """A setting that no trained tokenizer has; None without any."""
    first = tuple(inner.id_to_token(i) for i in range(len(SPECIALS)))
    if first != SPECIALS:
        return f"{' '.join(map(str, first))} as its first tokens instead of {' '.join(SPECIALS)}"[
            :200
        ]
    parts = {
        "normalizer": (inner.normalizer, normalizers.Lowercase),
        "pre-tokenizer": (
            inner.pre_tokenizer,
            pre_tokenizers.ByteLevel | pre_tokenizers.WhitespaceSplit,
        ),
        "post-processor": (inner.post_processor, ()),
        "padding": (inner.padding, ()),
        "truncation": (inner.truncation, ()),
    }
    for name, (part, known) in parts.items():
        if part is not None and not isinstance(part, known):
            return f"the {name} {part}"[:200]
    if isinstance(inner.model, models.WordLevel) and inner.model.unk_token != SPECIALS[UNKNOWN]:
        return f"{inner.model.unk_token!r} for unknown words"
    if spelling.style != "byte level":
        return None
    others = set[str]().union(*(inner.get_vocab().keys() - set(SPECIALS))) - BYTE_LEVEL_CHARACTERS
    return f"tokens that are not bytes: {sorted(others)[:5]}" if others else None


def well_formed(texts: Iterable[str]) -> Iterator[str]:
    """The texts; what is not Unicode text is refused."""
    for text in texts:
        if not isinstance(text, str) or not is_encodable(text):
            got = repr(text)[:60] if not isinstance(text, str) else "half of a surrogate pair"
            raise InvalidArgument(
                "text", wanted="Unicode text", got=got, remedy="Decode it as UTF-8 first."
            )
        yield text
