"""Tables of the tokenizers that Regard trains, as tokenizer.js reads them."""

import json
from typing import Any

from regard.data.tokenizer import Tokenizer


def tokenizer_obstacle(tokenizer: Tokenizer) -> str | None:
    """Why a page cannot encode with a tokenizer; None if it can."""
    if tokenizer.settings:
        return "that of another model, whose rules the page does not have"
    return None


def tokenizer_table(tokenizer: Tokenizer, *, running: bool) -> dict[str, Any]:
    """The table of a tokenizer without obstacle; `running`: the end token stands for a line break."""
    content = json.loads(tokenizer.to_json())
    special = tokenizer.special_tokens
    model = content["model"]
    table: dict[str, Any] = {
        "kind": _kind(model),
        "lowercase": content["normalizer"] is not None,
        "running": running,
        "tokens": tokenizer.tokens(),
        "special": sorted(special.ids | set(special.suppressed)),
        "end": special.end,
        "unknown": special.unknown,
    }
    if table["kind"] == "bpe":
        merges = model["merges"]
        table["merges"] = [each if isinstance(each, str) else " ".join(each) for each in merges]
    elif table["kind"] == "unigram":
        table["scores"] = [score for _, score in model["vocab"]]
    return table


def _kind(model: dict[str, Any]) -> str:
    if model["type"] == "BPE":
        return "characters" if model["byte_fallback"] else "bpe"
    return {"Unigram": "unigram", "WordLevel": "words"}[model["type"]]
