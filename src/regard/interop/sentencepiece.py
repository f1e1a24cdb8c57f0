"""SentencePiece models (https://arxiv.org/abs/1808.06226): reads their protobuf files and makes tokenizers of them.

The protobuf wire format is read here (https://protobuf.dev/programming-guides/encoding), without its library. A model
becomes a `tokenizers.Tokenizer` that encodes as SentencePiece does, with two differences, as in Hugging Face's
tokenizers. The name of a control symbol inside a text is that symbol.
Of two segmentations with equal scores, such as "ww" + "w" and "w" + "ww" of a Unigram model, either may be chosen:
SentencePiece adds in float32, where the rounding of the text before them decides.
"""

import math
import re
import struct
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from regard.core.errors import InvalidData
from regard.data.charsmap import check_charsmap, rule
from regard.data.spelling import HIDDEN

LARGEST = 1 << 28  # bytes of a file
MOST = 2_000_000  # pieces
MOST_FIELDS = 5 * MOST  # of a file: a piece has up to three, and is one itself
SPACE = "▁"
# A code point that no text has. It divides grapheme clusters during normalization.
SEPARATOR = "\ufdd0"
# The score of a symbol that the user defined, in a Unigram model: measured with SentencePiece 0.2.2.
SYMBOL_SCORE = 0.5
VARINT = 0
FIXED64 = 1
BYTES = 2
FIXED32 = 5
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


@dataclass(frozen=True)
class Piece:
    """A token: its text, its score (a log-probability, or minus the rank of its merge) and its type."""

    text: str
    score: float
    kind: int


@dataclass(frozen=True)
class SentencePieceModel:
    """What a .model or .spm file says."""

    pieces: tuple[Piece, ...]
    kind: Literal["unigram", "bpe"]
    charsmap: bytes  # the compiled rules of normalization; empty: none
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool
    escape_whitespaces: bool
    byte_fallback: bool

    @property
    def unknown(self) -> int:
        """The id of the unknown token."""
        return next(i for i, piece in enumerate(self.pieces) if piece.kind == UNKNOWN)

    @property
    def names(self) -> list[str]:
        return [piece.text for piece in self.pieces]


def read_sentencepiece(path: Path) -> SentencePieceModel:
    """Read a .model or .spm file. InvalidData says what is wrong with other files."""
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise ValueError(f"more than {LARGEST >> 20} MiB")
        return _model(content)
    except (OSError, ValueError) as error:
        got = getattr(error, "strerror", None) or str(error)[:200]
        remedy = "Copy it again from where it was trained."
        raise InvalidData(
            path, wanted="a SentencePiece model of Unigram or BPE", got=got, remedy=remedy
        ) from None


def _model(content: bytes) -> SentencePieceModel:
    pieces: list[Piece] = []
    trainer: dict[int, Any] = {}
    rules: dict[int, Any] = {}
    fields = iter(range(MOST_FIELDS))
    for number, value in _fields(content, fields):
        if number == 1:
            pieces.append(_piece(_message(value, "pieces", fields)))
            if len(pieces) > MOST:
                raise ValueError(f"more than {MOST:,} pieces")
        elif number == 2:
            trainer |= _message(value, "trainer_spec", fields)
        elif number == 3:
            rules |= _message(value, "normalizer_spec", fields)
    kinds: dict[int, Literal["unigram", "bpe"]] = {1: "unigram", 2: "bpe"}
    kind = kinds.get(_number(trainer, 3, 1))
    texts = {piece.text for piece in pieces}
    byte_pieces = {piece.text for piece in pieces if piece.kind == BYTE}
    every_byte = {f"<0x{byte:02X}>" for byte in range(256)}
    problems = {
        f"model_type {_number(trainer, 3, 1)}": kind is None,
        "treat_whitespace_as_suffix": bool(_number(trainer, 24, 0)),
        "no pieces": not pieces,
        "pieces of the same text": len(texts) < len(pieces),
        "no unknown piece, or several": sum(piece.kind == UNKNOWN for piece in pieces) != 1,
        "unused pieces": any(piece.kind == UNUSED for piece in pieces),
        "byte pieces that are not <0x00> to <0xFF>": byte_pieces not in (set(), every_byte),
    }
    if wrong := [name for name, is_so in problems.items() if is_so]:
        raise ValueError(", ".join(wrong))
    assert kind is not None
    charsmap = rules.get(2, b"")
    if not isinstance(charsmap, bytes):
        raise ValueError("precompiled_charsmap that is no bytes")
    if charsmap:
        check_charsmap(charsmap)
    return SentencePieceModel(
        tuple(pieces),
        kind,
        charsmap,
        add_dummy_prefix=bool(_number(rules, 3, 1)),
        remove_extra_whitespaces=bool(_number(rules, 4, 1)),
        escape_whitespaces=bool(_number(rules, 5, 1)),
        byte_fallback=bool(_number(trainer, 35, 0)),
    )


def _piece(fields: dict[int, Any]) -> Piece:
    text = fields.get(1, b"")
    score = fields.get(2, b"\0\0\0\0")
    if not isinstance(text, bytes) or not isinstance(score, bytes) or len(score) != 4:
        raise ValueError("a piece whose text or score is of another type")
    piece = Piece(text.decode("utf-8"), struct.unpack("<f", score)[0], _number(fields, 3, NORMAL))
    if not piece.text or not math.isfinite(piece.score) or not NORMAL <= piece.kind <= BYTE:
        raise ValueError(f"the piece {piece}"[:200])
    return piece


def _number(fields: dict[int, Any], number: int, default: int) -> int:
    value = fields.get(number, default)
    if not isinstance(value, int):
        raise ValueError(f"field {number} that is no number")
    return value


def _message(value: object, name: str, fields: Iterator[int]) -> dict[int, Any]:
    if not isinstance(value, bytes):
        raise ValueError(f"{name} that are no message")
    return dict(_fields(value, fields))


def _fields(content: bytes, counter: Iterator[int]) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message: their numbers, and their values as integers (varint) or as bytes.

    `counter` ends after the largest number of fields of a file. Fields are counted as they are read,
    so that a file of nothing else does not take minutes.
    """
    position = 0
    while position < len(content):
        if next(counter, None) is None:
            raise ValueError(f"more than {MOST_FIELDS:,} fields")
        start = position
        # A key holds the number of the field and how its value is written.
        key, position = _varint(content, position)
        number = key >> 3
        wire = key & 7
        if number == 0:
            raise ValueError(f"a field of number 0 at byte {start:,}, which there is none of")
        if wire == VARINT:
            value, position = _varint(content, position)
            yield number, value
            continue
        if wire == BYTES:
            size, position = _varint(content, position)
        elif wire in (FIXED32, FIXED64):
            size = 4 if wire == FIXED32 else 8
        else:
            raise ValueError(f"a field of wire type {wire} at byte {position}")
        left = len(content) - position
        if size > left:
            raise ValueError(f"a field of {size:,} bytes where {left:,} are left")
        yield number, content[position : position + size]
        position += size


def _varint(content: bytes, position: int) -> tuple[int, int]:
    """The number at a position, seven bits a byte, and the position after it."""
    number = 0
    for count, byte in enumerate(content[position : position + 10]):
        number |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return number, position + count + 1
    raise ValueError(f"a number at byte {position} that does not end")


def to_tokenizer(
    model: SentencePieceModel, names: Sequence[str] | None = None, unknown: int | None = None
) -> tokenizers.Tokenizer:
    """The tokenizer of a model.

    names     the token of each id, where ids are others than in the model. A name that is no piece of the model becomes
              a special token, unless it begins with HIDDEN
    unknown   the id of the unknown token among them
    """
    if names is None:
        names = model.names
        unknown = model.unknown
    assert unknown is not None
    known = {piece.text: piece for piece in model.pieces if piece.kind not in (CONTROL, UNKNOWN)}
    if model.kind == "unigram":
        inner = tokenizers.Tokenizer(_unigram(model, names, unknown))
    else:
        inner = tokenizers.Tokenizer(_bpe(model, names))
    inner.normalizer = _normalizer(model)
    symbols = [piece.text for piece in model.pieces if piece.kind == USER_DEFINED]
    if symbols and model.kind == "bpe":
        # A symbol of the user's is not made of merges. Of several, the longest matches.
        longest_first = sorted(symbols, key=len, reverse=True)
        pattern = "|".join(map(re.escape, longest_first))
        inner.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    steps: list[decoders.Decoder] = [decoders.Replace(HIDDEN, "")]
    if model.escape_whitespaces:
        steps.append(decoders.Replace(SPACE, " "))
    steps += [decoders.ByteFallback(), decoders.Fuse()]
    if model.add_dummy_prefix:
        steps.append(decoders.Strip(" ", 1, 0))
    inner.decoder = decoders.Sequence(steps)
    special = [name for name in names if name not in known and not name.startswith(HIDDEN)]
    inner.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in special])
    return inner


def _unigram(model: SentencePieceModel, names: Sequence[str], unknown: int) -> models.Unigram:
    scores = {piece.text: piece.score for piece in model.pieces if piece.kind == NORMAL}
    least = min(scores.values(), default=0.0)
    scores |= {piece.text: SYMBOL_SCORE for piece in model.pieces if piece.kind == USER_DEFINED}
    # Other names get the least score: the score of unknown characters depends on the least one, which must not change.
    return models.Unigram(
        [(name, scores.get(name, least)) for name in names],
        unk_id=unknown,
        byte_fallback=model.byte_fallback,
    )


def _bpe(model: SentencePieceModel, names: Sequence[str]) -> models.BPE:
    """The pair that becomes the piece of the highest score is merged first."""
    ids = {name: i for i, name in enumerate(names)}
    normal = [piece for piece in model.pieces if piece.kind == NORMAL and piece.text in ids]
    parts = {piece.text for piece in normal}
    merges = []
    for piece in sorted(normal, key=lambda piece: -piece.score):
        for cut in range(1, len(piece.text)):
            first = piece.text[:cut]
            second = piece.text[cut:]
            if first in parts and second in parts:
                merges.append((first, second))
    whole = any(piece.kind == USER_DEFINED for piece in model.pieces)
    unknown = model.pieces[model.unknown].text
    return models.BPE(
        ids,
        merges,
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=model.byte_fallback,
        ignore_merges=whole,
    )


def _normalizer(model: SentencePieceModel) -> normalizers.Normalizer:
    steps: list[normalizers.Normalizer] = []
    if model.charsmap:
        steps = _charsmap_steps(model.charsmap)
    space = SPACE if model.escape_whitespaces else " "
    if model.remove_extra_whitespaces:
        steps.append(normalizers.Replace(Regex(r"\A +"), ""))
        steps.append(normalizers.Replace(Regex(" {2,}"), " "))
    if model.escape_whitespaces:
        steps.append(normalizers.Replace(" ", SPACE))
    if model.remove_extra_whitespaces:
        # This removes the escape character at the end of a text too.
        steps.append(normalizers.Replace(Regex(rf"{space}+\z"), ""))
    if model.add_dummy_prefix:
        steps.append(normalizers.Prepend(space))
    return normalizers.Sequence(steps)


def _charsmap_steps(charsmap: bytes) -> list[normalizers.Normalizer]:
    """Steps that apply compiled rules as SentencePiece does: at each position of a text, the longest that matches.

    `Precompiled` does so for single characters. It looks up grapheme clusters of less than six bytes at once, applies
    the rule of the shortest prefix and drops the rest. So rules of larger clusters are applied before it: vowel signs
    of Brahmic scripts, kana with a voicing mark, second marks of a letter as in Vietnamese and Greek. Then SEPARATOR
    divides clusters with further marks. Decomposed Hangul, which has thousands of rules, is composed after it.
    """
    single = [character for character in _changed() if rule(charsmap, character) is not None]
    ends = "(?!)"  # matches nothing
    if single:
        ends = f"(?<=[{''.join(single)}])"
    marks = "(?<=\\p{M})(?=\\p{M})|(?<=[\uac00-\ud7a3])(?=[\u11a8-\u11c2])"
    steps = _before_precompiled(charsmap)
    steps.append(normalizers.Replace(Regex(ends + r"(?=\p{M})"), SEPARATOR))
    steps.append(normalizers.Replace(Regex(marks), SEPARATOR))
    steps.append(normalizers.Precompiled(charsmap))
    composes_hangul = rule(charsmap, "\u1100\u1161") == "\uac00"
    if composes_hangul:
        steps.append(normalizers.Replace(Regex(r"(?<=\P{M})(?=\p{M})"), SEPARATOR))
        steps.append(normalizers.NFC())
    steps.append(normalizers.Replace(SEPARATOR, ""))
    return steps


def _before_precompiled(charsmap: bytes) -> list[normalizers.Normalizer]:
    """The rules of larger clusters, the longest first. If rules fold case, capital letters with marks are included."""
    capitals = dict[str, str]()
    for parts in _decomposed():
        text = rule(charsmap, parts[0])
        if text and parts[0].isalpha():
            capitals[parts[0]] = text
    unfolded = dict[str, str]()
    composed = dict[str, str]()
    # Marks that compose with the small letter only.
    for capital, small in capitals.items():
        for parts in _decomposed():
            if parts[0] != small or len(parts) != 2:
                continue
            mark = parts[1]
            if rule(charsmap, capital + mark) is None:
                unfolded[capital + mark] = small + SEPARATOR + mark
    for parts in _decomposed():
        text = rule(charsmap, parts)
        if text is None:
            continue
        if parts[0] in capitals:
            # The Turkish capital with a dot.
            if rule(charsmap, capitals[parts[0]] + parts[1:]) != text:
                unfolded[parts] = text
        elif len(parts.encode()) >= 6 or _has_rule_for_start(charsmap, parts):
            composed[parts] = text
    steps: list[normalizers.Normalizer] = []
    for parts, text in unfolded.items():
        steps.append(normalizers.Replace(parts, text))
    for letter, text in capitals.items():
        steps.append(normalizers.Replace(Regex(rf"{letter}(?=\p{{M}})"), text))
    longest_first = sorted(composed, key=len, reverse=True)
    steps += [normalizers.Replace(parts, composed[parts]) for parts in longest_first]
    return steps


def _has_rule_for_start(charsmap: bytes, parts: str) -> bool:
    """Whether a rule would replace the beginning of a cluster alone."""
    return any(rule(charsmap, parts[:end]) for end in range(1, len(parts)))


@cache
def _decomposed() -> tuple[str, ...]:
    """Every character that consists of others, decomposed, without the thousands of Hangul."""
    characters = [chr(code) for code in range(0x20000)]
    composed = [each for each in characters if unicodedata.decomposition(each)]
    found = [unicodedata.normalize("NFD", each) for each in composed]
    return tuple(dict.fromkeys(parts for parts in found if len(parts) > 1))


@cache
def _changed() -> tuple[str, ...]:
    """Characters that may have a rule of their own.

    Compatibility normalization or case folding changes them, or they are white space, controls, or the escape
    character.
    """
    characters = (chr(code) for code in range(0x30000) if not 0xD800 <= code < 0xE000)
    return tuple(each for each in characters if _may_change(each))


def _may_change(character: str) -> bool:
    if character == SPACE or not character.isprintable():
        return True
    return unicodedata.normalize("NFKC", character.casefold()) != character
