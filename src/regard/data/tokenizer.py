"""Tokenizers and label vocabularies.

    bpe         byte-level byte-pair encoding           https://arxiv.org/abs/1508.07909
    unigram     byte-level unigram language model       https://arxiv.org/abs/1804.10959
    characters  characters of the training data, bytes for others
    words       separated by white space, <unk> for others
    bytes       of UTF-8

All but words are lossless: decode(encode(text)) == text. The name of a special token inside a text is ordinary text.
In running text (`for_running_text`), </s> stands for a line break.
Batches are encoded in threads unless TOKENIZERS_PARALLELISM=false.
"""

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import SupportsInt, TypeVar, cast

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from regard.core.config import nearest
from regard.core.errors import InvalidArgument, InvalidData
from regard.core.sanitize import is_encodable
from regard.data.config import SPECIALS, TokenizerKind

PAD, START, END, UNKNOWN, MASK = range(len(SPECIALS))
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]
BYTES = {token: bytes([byte]) for byte, token in enumerate(BYTE_TOKENS)}
PARTIAL = re.compile("[\udc80-\udcff]+")  # bytes of a character that is split between tokens
RUN = re.compile(r"\S{1000}|\s{1000}")  # training time is quadratic in the length of a word
LOWER = normalizers.Lowercase()
VISIBLE = {" ": "▁", "\n": "↵", "\t": "⇥"}
BETWEEN = re.compile("[^ \n\t]+")  # words of a lossless tokenizer


VocabularyClass = TypeVar("VocabularyClass", bound="Vocabulary")


class Vocabulary(ABC):
    """Names by id, saved as JSON."""

    file_format: str

    @classmethod
    @abstractmethod
    def from_json(cls: type[VocabularyClass], text: str) -> VocabularyClass:
        """From the content of a file that `save` wrote; ValueError if it is not one."""

    @abstractmethod
    def to_json(self) -> str:
        """The content of the file that `save` writes."""

    @abstractmethod
    def tokens(self) -> list[str]:
        """All names, by id."""

    @classmethod
    def load(cls: type[VocabularyClass], path: str | Path) -> VocabularyClass:
        try:
            return cls.from_json(Path(path).read_text("utf-8"))
        except InvalidArgument:
            raise
        except (OSError, ValueError) as error:
            remedy = "Copy it again from where it was saved."
            raise InvalidData(path, wanted=cls.file_format, got=str(error)[:200], remedy=remedy) from None

    def save(self, path: str | Path) -> None:
        Path(path).write_text(self.to_json(), "utf-8")

    @property
    def hash(self) -> str:
        """A hash of the content."""
        content = json.dumps(json.loads(self.to_json()), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(content.encode()).hexdigest()


class Tokenizer(Vocabulary):
    """Encodes texts as token ids; wraps a Hugging Face tokenizer and is saved as one."""

    file_format = "a tokenizer.json"

    def __init__(self, inner: tokenizers.Tokenizer, *, running: bool = False) -> None:
        first = tuple(inner.id_to_token(i) for i in range(len(SPECIALS)))
        if first != SPECIALS:
            wanted, got = f"{' '.join(SPECIALS)} as its first tokens", " ".join(map(str, first))
            raise InvalidArgument("tokenizer", wanted=wanted, got=got, remedy="Take one that Regard trained.")
        self._inner, self._running = inner, running
        self._inner.encode_special_tokens = True  # "</s>" in a text is four characters
        self._words = isinstance(inner.model, models.WordLevel)
        self._fallback = isinstance(inner.model, models.BPE) and not isinstance(inner.decoder, decoders.ByteLevel)
        self._spelling: dict[str, int] = _byte_spelling() if isinstance(inner.decoder, decoders.ByteLevel) else {}
        if wrong := _foreign_setting(inner, self._spelling):
            wanted, remedy = "one that Regard trained", "Take another"
            raise InvalidArgument("tokenizer", wanted=wanted, got=wrong, remedy=remedy)

    @staticmethod
    def train(kind: TokenizerKind, texts: Iterable[str], vocabulary: int = 8000, lower: bool = False) -> "Tokenizer":
        """Train a tokenizer; the same texts give the same tokenizer."""
        texts = _well_formed(texts)
        inner = _TRAIN[kind](map(lowered, texts) if lower else texts, vocabulary)
        if lower:
            inner.normalizer = LOWER
        inner.add_special_tokens(list(SPECIALS))
        return Tokenizer(inner)

    @classmethod
    def from_json(cls, text: str) -> "Tokenizer":
        try:
            inner = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(str(error)[:200]) from None
        return Tokenizer(inner)

    def to_json(self) -> str:
        return self._inner.to_str(pretty=True)

    def for_running_text(self) -> "Tokenizer":
        """The same tokenizer for running text, where </s> is the line break."""
        return Tokenizer(self._inner, running=True)

    @property
    def size(self) -> int:
        """Number of tokens, special tokens included."""
        return int(self._inner.get_vocab_size())

    def tokens(self) -> list[str]:
        return self._names(range(self.size))

    def encode(self, text: str) -> list[int]:
        """The token ids of a text, without special tokens but the line breaks of running text."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of many texts, in threads."""
        texts = list(_well_formed(texts))
        if self._running:
            lines = [text.split("\n") for text in texts]
            encoded = iter(self._encode_lines([line for each in lines for line in each]))
            return [[*chain.from_iterable([*next(encoded), END] for _ in each)][:-1] for each in lines]
        return self._encode_lines(texts)

    def _encode_lines(self, texts: list[str]) -> list[list[int]]:
        encodings = self._inner.encode_batch_fast(texts, add_special_tokens=False)
        rows = [encoding.ids for encoding in encodings]
        if self._words:  # a special token's name in a text is an unknown word
            return [[i if i >= len(SPECIALS) else UNKNOWN for i in row] for row in rows]
        return rows

    def decode(self, ids: Iterable[SupportsInt]) -> str:
        """The text of tokens; special tokens are dropped, invalid UTF-8 becomes U+FFFD.

        In running text, </s> becomes a line break.
        """
        known = self._known(ids)
        if self._running and END in known:
            ends = [i for i, token in enumerate(known) if token == END]
            lines = zip([-1, *ends], [*ends, len(known)], strict=True)
            return "\n".join(self._decode_line(known[before + 1 : end]) for before, end in lines)
        return self._decode_line(known)

    def _decode_line(self, known: list[int]) -> str:
        if self._fallback:  # the library drops valid bytes beside an invalid one
            return b"".join(self.spellings(known)).decode("utf-8", "replace")
        return self._inner.decode(known, skip_special_tokens=True)

    def pieces(self, ids: Iterable[SupportsInt]) -> list[str]:
        """Each token in readable form: visible white space, bytes of a partial character in ⟨⟩."""
        known = self._known(ids)
        return [
            token if i < len(SPECIALS) else _readable(self._bytes(token))
            for i, token in zip(known, self._names(known), strict=True)
        ]

    def spellings(self, ids: Iterable[SupportsInt]) -> list[bytes]:
        """The bytes of each token, spaces included; empty for special tokens but the line breaks of running text."""
        space, known = b" " if self._words else b"", self._known(ids)
        special = {END: b"\n"} if self._running else {}
        return [
            special.get(i, b"") if i < len(SPECIALS) else space + self._bytes(token)
            for i, token in zip(known, self._names(known), strict=True)
        ]

    def words(self, ids: Iterable[SupportsInt]) -> list[int]:
        """The word index of each token, from 0; spaces separate words, and a special token is a word of its own."""
        known = self._known(ids)
        indices: list[int] = []
        for before, i, piece in zip([END, *known], known, self.pieces(known), strict=False):
            begins = self._words or min(i, before) < len(SPECIALS) or piece[:1] in VISIBLE.values()
            indices.append(indices[-1] + begins if indices else 0)
        return indices

    def spans(self, text: str) -> list[tuple[int, int]]:
        """The start and end of each word of a text, as `word_indices` counts them."""
        return [word.span() for word in (re.finditer(r"\S+", text) if self._words else BETWEEN.finditer(text))]

    def word_indices(self, ids: Iterable[SupportsInt]) -> list[int | None]:
        """The word index of each token in the text of `decode`; None for a token without a character of a word.

        Unlike in `words`, spaces belong to no word and special tokens have no index.
        """
        indices: list[int | None] = []
        last, inside = -1, False  # a word
        for spelling in self.spellings(ids):
            index: int | None = None
            if self._words and spelling.strip():
                index = last = last + 1
            for byte in b"" if self._words else spelling:
                if byte in b" \n\t":
                    inside = False
                    continue
                last += not inside
                index, inside = last if index is None else index, True
            indices.append(index)
        return indices

    def _names(self, ids: Iterable[int]) -> list[str]:
        return [cast(str, self._inner.id_to_token(i)) for i in ids]

    def _bytes(self, token: str) -> bytes:
        if self._spelling:
            return bytes(self._spelling[character] for character in token)
        return BYTES[token] if token in BYTES and not self._words else token.encode()

    def _known(self, ids: Iterable[SupportsInt]) -> list[int]:
        known, size = [int(i) for i in ids], self.size
        wrong = [i for i in known if not 0 <= i < size]
        if wrong:
            wanted = f"numbers from 0 to {size - 1}"
            raise InvalidArgument("ids", wanted=wanted, got=str(wrong[0]), remedy="Use its own tokenizer.")
        return known


class Labels(Vocabulary):
    """Label names and their ids."""

    file_format = "a file of labels"

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(sorted(set(names)))
        if not self.names or "" in self.names:
            got = "an empty one" if self.names else "none"
            raise InvalidArgument("names", wanted="names of labels", got=got, remedy="Give each example a label.")
        self._number = {name: number for number, name in enumerate(self.names)}

    @classmethod
    def from_json(cls, text: str) -> "Labels":
        try:
            content = json.loads(text)
        except RecursionError:
            raise ValueError("JSON nested too deeply") from None
        if not isinstance(content, dict) or not isinstance(content.get("labels"), list):
            raise ValueError("no labels in it")
        return Labels([str(name) for name in content["labels"]])

    def to_json(self) -> str:
        return json.dumps({"labels": self.names}, ensure_ascii=False, indent=1)

    @property
    def size(self) -> int:
        return len(self.names)

    def tokens(self) -> list[str]:
        return list(self.names)

    def encode(self, name: str) -> int:
        if name not in self._number:
            wanted, remedy = f"one of the {self.size} labels of the training data", nearest(name, self.names)
            raise InvalidArgument("label", wanted=wanted, got=repr(name), remedy=remedy)
        return self._number[name]

    def decode(self, number: int) -> str:
        if not 0 <= number < self.size:
            wanted = f"a number from 0 to {self.size - 1}"
            raise InvalidArgument("label", wanted=wanted, got=str(number), remedy="Use its own labels.")
        return self.names[number]


def _foreign_setting(inner: tokenizers.Tokenizer, spelling: Mapping[str, int]) -> str | None:
    """A setting that no trained tokenizer has, and with which ids or memory would be out of bounds; None without any.

    Checked before the tokenizer is written or used: writing one takes memory for every id up to the largest.
    """
    ids = inner.get_vocab()
    if sorted(ids.values()) != list(range(inner.get_vocab_size())):
        return f"ids other than 0 to {len(ids) - 1}, the largest {max(ids.values())}"
    parts = {
        "normalizer": (inner.normalizer, normalizers.Lowercase),
        "pre-tokenizer": (inner.pre_tokenizer, pre_tokenizers.ByteLevel | pre_tokenizers.WhitespaceSplit),
        "post-processor": (inner.post_processor, ()),
        "padding": (inner.padding, ()),
        "truncation": (inner.truncation, ()),
    }
    for name, (part, known) in parts.items():
        if part is not None and not isinstance(part, known):
            return f"the {name} {part}"[:200]
    if isinstance(inner.model, models.WordLevel) and inner.model.unk_token != SPECIALS[UNKNOWN]:
        return f"{inner.model.unk_token!r} for unknown words"
    characters = set[str]().union(*(ids.keys() - set(SPECIALS))) if spelling else set()
    return (
        f"tokens that are not bytes: {sorted(characters - spelling.keys())[:5]}"
        if characters - spelling.keys()
        else None
    )


def _train_bpe(texts: Iterator[str], vocabulary: int) -> tokenizers.Tokenizer:
    inner = _of_bytes(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=list(SPECIALS), initial_alphabet=_alphabet(), show_progress=False
    )
    inner.train_from_iterator(_in_runs(texts), trainer)
    return inner


def _train_unigram(texts: Iterator[str], vocabulary: int) -> tokenizers.Tokenizer:
    inner = _of_bytes(models.Unigram())
    trainer = trainers.UnigramTrainer(
        vocab_size=vocabulary - len(SPECIALS), initial_alphabet=_alphabet(), show_progress=False
    )
    inner.train_from_iterator(_in_runs(texts), trainer)
    scores = json.loads(inner.to_str())["model"]["vocab"]
    pieces = [(piece, 0.0 if score is None else score) for piece, score in scores]  # None: no training text
    # The trainer sums in no fixed order and spaces unseen bytes 0.0001 apart, in no fixed order, from the lowest score:
    # without this, equal texts would give tokenizers that differ in the last digits.
    least = min(score for _, score in pieces)
    rounded = [
        (piece, round(least if len(piece) == 1 and score < least + 0.0001 * 257 else score, 6))
        for piece, score in pieces
    ]
    rounded.sort(key=lambda item: (-item[1], item[0]))
    return _of_bytes(models.Unigram([*((name, 0.0) for name in SPECIALS), *rounded], unk_id=UNKNOWN))


def _train_characters(texts: Iterator[str], vocabulary: int) -> tokenizers.Tokenizer:
    """BPE without merges: a character is one token, or its bytes."""
    characters = _most_frequent(texts, vocabulary - len(SPECIALS) - len(BYTE_TOKENS))
    ids = {token: number for number, token in enumerate([*SPECIALS, *BYTE_TOKENS, *characters])}
    inner = tokenizers.Tokenizer(models.BPE(ids, [], byte_fallback=True))
    inner.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return inner


def _train_words(texts: Iterator[str], vocabulary: int) -> tokenizers.Tokenizer:
    words = _most_frequent(map(str.split, texts), vocabulary - len(SPECIALS))
    ids = {token: number for number, token in enumerate([*SPECIALS, *words])}
    inner = tokenizers.Tokenizer(models.WordLevel(ids, unk_token=SPECIALS[UNKNOWN]))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return inner


_TRAIN: dict[TokenizerKind, Callable[[Iterator[str], int], tokenizers.Tokenizer]] = {
    "bpe": _train_bpe,
    "unigram": _train_unigram,
    "characters": _train_characters,
    "words": _train_words,
    "bytes": lambda texts, vocabulary: _train_characters(iter(()), 0),
}


def _of_bytes(model: models.Model) -> tokenizers.Tokenizer:
    """A byte-level tokenizer that splits words, numbers and punctuation, each with its leading space."""
    inner = tokenizers.Tokenizer(model)
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    inner.decoder = decoders.ByteLevel()
    return inner


def _most_frequent(texts: Iterable[Iterable[str]], count: int) -> list[str]:
    """The tokens that occur most often, without the names of special tokens."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    for name in SPECIALS:
        del counts[name]
    return sorted(counts, key=lambda token: (-counts[token], token))[: max(0, count)]


def _alphabet() -> list[str]:
    return sorted(pre_tokenizers.ByteLevel.alphabet())


def _byte_spelling() -> dict[str, int]:
    """The byte of each character of a byte-level token: printable bytes as themselves, others from U+0100 on."""
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {chr(0x100 + n): byte for n, byte in enumerate(rest)}


def _readable(content: bytes) -> str:
    """White space as visible characters, bytes of a partial character in ⟨⟩."""

    def in_hex(escaped: re.Match[str]) -> str:
        return f"⟨{escaped[0].encode('utf-8', 'surrogateescape').hex(' ')}⟩"

    text = PARTIAL.sub(in_hex, content.decode("utf-8", "surrogateescape"))
    return "".join(VISIBLE.get(character, character) for character in text)


def _in_runs(texts: Iterator[str]) -> Iterator[str]:
    """Training texts, split inside words of more than a thousand characters."""
    for text in texts:
        start = 0
        for run in RUN.finditer(text):
            yield text[start : run.end()]
            start = run.end()
        yield text[start:]


def lowered(text: str) -> str:
    """Lower case as the tokenizer does it, character by character: ΑΣ becomes ασ, where Python gives ας."""
    return LOWER.normalize_str(text)


def _well_formed(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        if not isinstance(text, str) or not is_encodable(text):
            got = repr(text)[:60] if not isinstance(text, str) else "half of a surrogate pair"
            raise InvalidArgument("text", wanted="Unicode text", got=got, remedy="Decode it as UTF-8 first.")
        yield text
