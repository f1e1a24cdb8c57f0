"""How the tokens of a tokenizer spell text: the bytes of each token, with its spaces,
and its readable form.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import tokenizers
from tokenizers import models

BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]
BYTES = {token: bytes([byte]) for byte, token in enumerate(BYTE_TOKENS)}
PARTIAL = re.compile("[\udc80-\udcff]+")  # bytes of a character that is split between tokens
# Begins the names of tokens that no text matches: it is no character, and no text has it.
HIDDEN = "\uffff"
VISIBLE = {" ": "▁", "\n": "↵", "\t": "⇥"}


@dataclass(frozen=True)
class Spelling:
    """What a tokenizer's decoder makes of its tokens.

    style      byte level: a character stands for a byte; metaspace: `marker` stands for a space;
               word pieces: `marker` begins a token that continues a word; words: every token is a
               word; plain: as it is written
    fallback   whether tokens such as <0x0A> stand for bytes
    """

    style: Literal["byte level", "metaspace", "word pieces", "words", "plain"]
    marker: str = ""
    fallback: bool = False

    @staticmethod
    def of(inner: tokenizers.Tokenizer) -> "Spelling":
        listed = []
        if inner.decoder is not None:
            listed = list(_parts(inner.decoder))
        parts = {part["type"]: part for part in listed}
        if "ByteLevel" in parts:
            return Spelling("byte level")
        if "WordPiece" in parts:
            return Spelling("word pieces", parts["WordPiece"]["prefix"])
        if isinstance(inner.model, models.WordLevel) or inner.decoder is None:
            return Spelling("words")
        fallback = "ByteFallback" in parts
        spaces = [
            part["pattern"].get("String")
            for part in listed
            if part.get("content") == " " and "pattern" in part
        ]
        if "Metaspace" in parts:
            markers = [parts["Metaspace"]["replacement"]]
        else:
            markers = list(filter(None, spaces))
        if markers:
            return Spelling("metaspace", markers[0], fallback)
        return Spelling("plain", fallback=fallback)

    @property
    def separate(self) -> bool:
        """Whether tokens that continue no word are separated by spaces that no token holds."""
        return self.style in ("words", "word pieces")

    def spell(self, token: str) -> bytes:
        """The bytes of a token, with the space before it."""
        token = token.removeprefix(HIDDEN)
        if self.style == "byte level":
            return b"".join(_BYTE_LEVEL.get(character) or character.encode() for character in token)
        if self.fallback and token in BYTES:
            return BYTES[token]
        if self.style == "metaspace":
            return token.replace(self.marker, " ").encode()
        if self.style == "word pieces" and token.startswith(self.marker):
            return token[len(self.marker) :].encode()
        return b" " * self.separate + token.encode()

    def readable(self, token: str) -> str:
        """White space as visible characters, bytes of a partial character in ⟨⟩."""
        content = token.encode() if self.separate else self.spell(token)
        return _readable(content)


def _parts(decoder: Any) -> Iterator[dict[str, Any]]:
    """The settings of a decoder, or of each decoder of a sequence."""
    pending = [json.loads(decoder.__getstate__())]
    while pending:
        part = pending.pop()
        pending += part.get("decoders", ())
        yield part


def _byte_level() -> dict[str, bytes]:
    """The byte of each character of a byte-level token: printable bytes as themselves,
    others from U+0100 on.
    """
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in seen]
    return {chr(byte): bytes([byte]) for byte in seen} | {
        chr(0x100 + n): bytes([b]) for n, b in enumerate(rest)
    }


_BYTE_LEVEL = _byte_level()
BYTE_LEVEL_CHARACTERS = frozenset(_BYTE_LEVEL)


def _readable(content: bytes) -> str:
    def in_hex(escaped: re.Match[str]) -> str:
        return f"⟨{escaped[0].encode('utf-8', 'surrogateescape').hex(' ')}⟩"

    text = PARTIAL.sub(in_hex, content.decode("utf-8", "surrogateescape"))
    return "".join(VISIBLE.get(character, character) for character in text)
