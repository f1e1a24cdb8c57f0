"""Tokenizers and label vocabularies.

    bpe         byte-level byte-pair encoding           https://arxiv.org/abs/1508.07909
    unigram     byte-level unigram language model       https://arxiv.org/abs/1804.10959
    characters  characters of the training data, bytes for others
    words       separated by white space, <unk> for others
    bytes       of UTF-8

All but words are lossless: decode(encode(text)) == text. The name of a special token inside a text is ordinary text.
Batches are encoded in threads unless TOKENIZERS_PARALLELISM=false.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, SupportsInt, cast

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


class Tokenizer:
    """Encodes texts as token ids; wraps a Hugging Face tokenizer and is saved as one."""

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        first = tuple(inner.id_to_token(i) for i in range(len(SPECIALS)))
        if first != SPECIALS:
            raise InvalidArgument(
                "tokenizer",
                wanted=f"{' '.join(SPECIALS)} as its first tokens",
                got=" ".join(map(str, first)),
                remedy="Take one that Regard trained.",
            )
        self._inner = inner
        self._inner.encode_special_tokens = True  # "</s>" in a text is four characters
        self._words = isinstance(inner.model, models.WordLevel)
        self._fallback = isinstance(inner.model, models.BPE) and not isinstance(inner.decoder, decoders.ByteLevel)
        self._spelling: dict[str, int] = _byte_spelling() if isinstance(inner.decoder, decoders.ByteLevel) else {}

    @staticmethod
    def train(kind: TokenizerKind, texts: Iterable[str], vocabulary: int = 8000, lower: bool = False) -> "Tokenizer":
        """Train a tokenizer; the same texts give the same tokenizer."""
        inner = _TRAIN[kind](_well_formed(texts), LOWER if lower else None, vocabulary)
        inner.add_special_tokens(list(SPECIALS))
        return Tokenizer(inner)

    @staticmethod
    def from_json(text: str) -> "Tokenizer":
        """From the content of a tokenizer.json; ValueError if it is not one."""
        try:
            return Tokenizer(tokenizers.Tokenizer.from_str(text))
        except InvalidArgument:
            raise
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(str(error)[:200]) from None

    def to_json(self) -> str:
        return self._inner.to_str(pretty=True)

    @staticmethod
    def load(path: str | Path) -> "Tokenizer":
        try:
            return Tokenizer(tokenizers.Tokenizer.from_str(Path(path).read_text("utf-8")))
        except InvalidArgument:
            raise
        except Exception as error:  # the library raises nothing narrower
            raise InvalidData(
                path, wanted="a tokenizer.json", got=str(error)[:200], remedy="Copy it again from where it was saved."
            ) from None

    def save(self, path: str | Path) -> None:
        """As a tokenizer.json, which Hugging Face's libraries read."""
        Path(path).write_text(self._inner.to_str(pretty=True), "utf-8")

    @property
    def size(self) -> int:
        """Number of tokens, special tokens included."""
        return int(self._inner.get_vocab_size())

    @property
    def hash(self) -> str:
        """A hash of the tokenizer's content."""
        return _hash(json.loads(self._inner.to_str()))

    def tokens(self) -> list[str]:
        """All tokens, by id."""
        return [cast(str, self._inner.id_to_token(i)) for i in range(self.size)]

    def encode(self, text: str) -> list[int]:
        """The token ids of a text, without special tokens."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of many texts, in threads."""
        encodings = self._inner.encode_batch_fast(list(_well_formed(texts)), add_special_tokens=False)
        rows = [encoding.ids for encoding in encodings]
        if self._words:  # a special token's name in a text is an unknown word
            return [[i if i >= len(SPECIALS) else UNKNOWN for i in row] for row in rows]
        return rows

    def decode(self, ids: Iterable[SupportsInt]) -> str:
        """The text of tokens; special tokens are dropped, invalid UTF-8 becomes U+FFFD."""
        known = self._known(ids)
        if self._fallback:  # the library drops valid bytes beside an invalid one
            tokens = (cast(str, self._inner.id_to_token(i)) for i in known if i >= len(SPECIALS))
            return b"".join(map(self._raw, tokens)).decode("utf-8", "replace")
        return self._inner.decode(known, skip_special_tokens=True)

    def pieces(self, ids: Iterable[SupportsInt]) -> list[str]:
        """Each token in readable form: visible white space, bytes of a partial character in ⟨⟩."""
        return [self._piece(cast(str, self._inner.id_to_token(i)), i) for i in self._known(ids)]

    def spellings(self, ids: Iterable[SupportsInt]) -> list[bytes]:
        """The bytes of each token, spaces included; empty for special tokens."""
        space = b" " if self._words else b""
        known = ((i, cast(str, self._inner.id_to_token(i))) for i in self._known(ids))
        return [b"" if i < len(SPECIALS) else space + self._raw(token) for i, token in known]

    def words(self, ids: Iterable[SupportsInt]) -> list[int]:
        """The word index of each token, from 0; spaces separate words, and a special token is a word of its own."""
        known = self._known(ids)
        found: list[int] = []
        for before, (i, piece) in zip([END, *known], zip(known, self.pieces(known), strict=True), strict=False):
            apart = self._words or min(i, before) < len(SPECIALS) or piece[:1] in VISIBLE.values()
            found.append(found[-1] + apart if found else 0)
        return found

    def spans(self, text: str) -> list[tuple[int, int]]:
        """The start and end of each word of a text, as `places` numbers them."""
        return [word.span() for word in (re.finditer(r"\S+", text) if self._words else BETWEEN.finditer(text))]

    def places(self, ids: Iterable[SupportsInt]) -> list[int | None]:
        """The word index of each token in the text of `decode`; None for a token without a character of a word.

        Unlike in `words`, spaces belong to no word and special tokens have no index.
        """
        known, found = self._known(ids), list[int | None]()
        last, inside = -1, False  # a word
        for i in known:
            place: int | None = None
            content = b"" if i < len(SPECIALS) else self._raw(cast(str, self._inner.id_to_token(i)))
            for byte in content[:1] if self._words else content:
                if self._words or byte not in b" \n\t":
                    last += self._words or not inside
                    place, inside = last if place is None else place, True
                else:
                    inside = False
            found.append(place)
        return found

    def _piece(self, token: str, i: int) -> str:
        if i < len(SPECIALS):
            return token
        text = PARTIAL.sub(_in_hex, self._raw(token).decode("utf-8", "surrogateescape"))
        return "".join(VISIBLE.get(character, character) for character in text)

    def _raw(self, token: str) -> bytes:
        if self._spelling:
            return bytes(self._spelling[character] for character in token)
        return BYTES[token] if token in BYTES and not self._words else token.encode()

    def _known(self, ids: Iterable[SupportsInt]) -> list[int]:
        known = [int(i) for i in ids]
        wrong = [i for i in known if not 0 <= i < self.size]
        if wrong:
            raise InvalidArgument(
                "ids", wanted=f"numbers from 0 to {self.size - 1}", got=str(wrong[0]), remedy="Use its own tokenizer."
            )
        return known


class Labels:
    """Label names and their ids."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(sorted(set(names)))
        if not self.names or "" in self.names:
            got = "an empty one" if self.names else "none"
            raise InvalidArgument("names", wanted="names of labels", got=got, remedy="Give each example a label.")
        self._number = {name: number for number, name in enumerate(self.names)}

    @staticmethod
    def from_json(text: str) -> "Labels":
        """From the content of a file of labels; ValueError if it is not one."""
        found = json.loads(text)
        if not isinstance(found, dict) or not isinstance(found.get("labels"), list):
            raise ValueError("no labels in it")
        return Labels([str(name) for name in found["labels"]])

    def to_json(self) -> str:
        return json.dumps({"labels": self.names}, ensure_ascii=False, indent=1)

    @staticmethod
    def load(path: str | Path) -> "Labels":
        try:
            names = json.loads(Path(path).read_text("utf-8"))["labels"]
            return Labels([str(name) for name in names])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidData(
                path, wanted="a file of labels", got=repr(error), remedy="Copy it again from where it was saved."
            ) from None

    def save(self, path: str | Path) -> None:
        Path(path).write_text(json.dumps({"labels": self.names}, ensure_ascii=False, indent=1), "utf-8")

    @property
    def size(self) -> int:
        return len(self.names)

    @property
    def hash(self) -> str:
        return _hash({"labels": self.names})

    def tokens(self) -> list[str]:
        return list(self.names)

    def encode(self, name: str) -> int:
        if name not in self._number:
            raise InvalidArgument(
                "label",
                wanted=f"one of the {self.size} labels of the training data",
                got=repr(name),
                remedy=nearest(name, self.names),
            )
        return self._number[name]

    def decode(self, number: int) -> str:
        if not 0 <= number < self.size:
            raise InvalidArgument(
                "label", wanted=f"a number from 0 to {self.size - 1}", got=str(number), remedy="Use its own labels."
            )
        return self.names[number]


def _train_bpe(texts: Iterator[str], lower: Any, vocabulary: int) -> tokenizers.Tokenizer:
    inner = _of_bytes(models.BPE(), lower)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=list(SPECIALS), initial_alphabet=_alphabet(), show_progress=False
    )
    inner.train_from_iterator(_in_runs(texts), trainer)
    return inner


def _train_unigram(texts: Iterator[str], lower: Any, vocabulary: int) -> tokenizers.Tokenizer:
    inner = _of_bytes(models.Unigram(), lower)
    trainer = trainers.UnigramTrainer(
        vocab_size=vocabulary - len(SPECIALS), initial_alphabet=_alphabet(), show_progress=False
    )
    inner.train_from_iterator(_in_runs(texts), trainer)
    scores = json.loads(inner.to_str())["model"]["vocab"]
    found = [(piece, 0.0 if score is None else score) for piece, score in scores]  # None: no training text
    # The trainer sums in no fixed order and spaces unseen bytes 0.0001 apart, in no fixed order, from the lowest score:
    # without this, equal texts would give tokenizers that differ in the last digits.
    least = min(score for _, score in found)
    settled = [
        (piece, round(least if len(piece) == 1 and score < least + 0.0001 * 257 else score, 6))
        for piece, score in found
    ]
    settled.sort(key=lambda item: (-item[1], item[0]))
    return _of_bytes(models.Unigram([*((name, 0.0) for name in SPECIALS), *settled], unk_id=UNKNOWN), lower)


def _train_characters(texts: Iterator[str], lower: Any, vocabulary: int) -> tokenizers.Tokenizer:
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(lower.normalize_str(text) if lower else text)
    return _of_characters(_most_frequent(counts, vocabulary - len(SPECIALS) - len(BYTE_TOKENS)), lower)


def _train_bytes(texts: Iterator[str], lower: Any, vocabulary: int) -> tokenizers.Tokenizer:
    return _of_characters([], lower)


def _train_words(texts: Iterator[str], lower: Any, vocabulary: int) -> tokenizers.Tokenizer:
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update((lower.normalize_str(text) if lower else text).split())
    for name in SPECIALS:
        del counts[name]
    words = [*SPECIALS, *_most_frequent(counts, vocabulary - len(SPECIALS))]
    inner = tokenizers.Tokenizer(models.WordLevel(_numbered(words), unk_token=SPECIALS[UNKNOWN]))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if lower:
        inner.normalizer = lower
    return inner


_TRAIN = {
    "bpe": _train_bpe,
    "unigram": _train_unigram,
    "characters": _train_characters,
    "words": _train_words,
    "bytes": _train_bytes,
}


def _of_bytes(model: models.Model, lower: Any) -> tokenizers.Tokenizer:
    """A byte-level tokenizer that splits words, numbers and punctuation, each with its leading space."""
    inner = tokenizers.Tokenizer(model)
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    inner.decoder = decoders.ByteLevel()
    if lower:
        inner.normalizer = lower
    return inner


def _of_characters(characters: list[str], lower: Any) -> tokenizers.Tokenizer:
    """BPE without merges: a character is one token, or its bytes."""
    numbered = _numbered([*SPECIALS, *BYTE_TOKENS, *characters])
    inner = tokenizers.Tokenizer(models.BPE(numbered, [], byte_fallback=True))
    inner.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    if lower:
        inner.normalizer = lower
    return inner


def _most_frequent(counts: Counter[str], most: int) -> list[str]:
    return sorted(counts, key=lambda token: (-counts[token], token))[:most]


def _numbered(tokens: Sequence[str]) -> dict[str, int]:
    return {token: number for number, token in enumerate(tokens)}


def _alphabet() -> list[str]:
    return sorted(pre_tokenizers.ByteLevel.alphabet())


def _byte_spelling() -> dict[str, int]:
    """The byte of each character of a byte-level token: printable bytes as themselves, others from U+0100 on."""
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {chr(0x100 + n): byte for n, byte in enumerate(rest)}


def _in_hex(escaped: re.Match[str]) -> str:
    return f"⟨{escaped[0].encode('utf-8', 'surrogateescape').hex(' ')}⟩"


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
    found: str = LOWER.normalize_str(text)
    return found


def _well_formed(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        if not isinstance(text, str) or not is_encodable(text):
            got = repr(text)[:60] if not isinstance(text, str) else "half of a surrogate pair"
            raise InvalidArgument("text", wanted="Unicode text", got=got, remedy="Decode it as UTF-8 first.")
        yield text


def _hash(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
