"""Compiled rules of normalization, as SentencePiece writes them and `tokenizers` reads them,
checked.
"""

import base64
import json
from typing import Any

import numpy as np


def check_charsmap(content: bytes) -> None:
    """ValueError unless compiled rules are sound:
    `tokenizers` reads them without looking where it reads.

    The size of a double-array trie (https://doi.org/10.1109/32.31365), its units, and texts that
    end with a zero byte. A unit of the trie leads to a block of 256 units; a leaf holds the
    position of a text.
    """
    size = int.from_bytes(content[:4], "little")
    if size % 4 or size == 0 or size > len(content) - 4:
        raise ValueError("precompiled_charsmap of another size than it says")
    units = np.frombuffer(content, "<u4", size // 4, 4).astype(np.int64)
    texts = content[4 + size :]
    texts.decode("utf-8")
    inner = units < 1 << 31  # others are leaves
    blocks = np.arange(len(units)) ^ (units >> 10 << ((units & 512) >> 6))
    if (blocks[inner] | 255).max(initial=0) >= len(units):
        raise ValueError("precompiled_charsmap that leads out of itself")
    starts = units[blocks[inner & (units >> 8 & 1 > 0)]] & 0x7FFFFFFF
    ends = np.frombuffer(b"\0" + texts, np.uint8) == 0
    if not texts.endswith(b"\0") or starts.max(initial=0) >= len(texts) or not ends[starts].all():
        raise ValueError("precompiled_charsmap with texts that do not begin or end")


def rule(content: bytes, key: str) -> str | None:
    """The text that compiled rules put in the place of a key;
    None where they have no rule for it.
    """
    size = int.from_bytes(content[:4], "little")
    units = np.frombuffer(content, "<u4", size // 4, 4)
    texts = content[4 + size :]
    place = 0
    for byte in (None, *key.encode("utf-8")):  # the root of the trie has no byte
        if byte is not None:
            place = place ^ byte
        unit = int(units[place])
        if byte is not None and unit & 0x800000FF != byte:
            return None
        place ^= unit >> 10 << ((unit & 512) >> 6)
    if not unit >> 8 & 1:
        return None
    start = int(units[place]) & 0x7FFFFFFF
    return texts[start : texts.index(b"\0", start)].decode("utf-8")


def check_normalizer(normalizer: Any) -> None:
    """ValueError unless the compiled rules in a normalizer of `tokenizers`, or in one of its parts,
    are sound.
    """
    pending = []
    if normalizer is not None:
        pending = [json.loads(normalizer.__getstate__())]
    while pending:
        part = pending.pop()
        pending += part.get("normalizers", ())
        if part.get("type") == "Precompiled":
            check_charsmap(base64.b64decode(part["precompiled_charsmap"]))
