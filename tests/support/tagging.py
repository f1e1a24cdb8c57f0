"""Small taggers, and sentences with tags that depend on a word and on the one before it."""

import random
from collections.abc import Mapping
from typing import Any

ADJECTIVES = ("big", "old", "red")
NOUNS = ("dog", "cat", "bird", "house")
VERBS = ("sees", "likes", "eats")

Sentence = tuple[list[str], list[str]]


def noun_phrases(count: int, seed: int) -> list[Sentence]:
    """Sentences of which the phrases around a noun are spans, without their article."""
    drawn = random.Random(seed)
    return [_sentence(drawn) for _ in range(count)]


def _sentence(drawn: random.Random) -> Sentence:
    words = []
    tags = []
    phrases = drawn.choice((1, 2, 3))
    for phrase in range(phrases):
        words.append(drawn.choice(("the", "a")))
        tags.append("O")
        adjectives = drawn.choices(ADJECTIVES, k=drawn.choice((0, 0, 1, 2)))
        inside = [*adjectives, drawn.choice(NOUNS)]
        words += inside
        tags += ["B-NP", *["I-NP"] * (len(inside) - 1)]
        if phrase + 1 < phrases:
            words.append(drawn.choice(VERBS))
            tags.append("O")
    return words, tags


def splits(count: int = 200) -> dict[str, list[Sentence]]:
    """Data for `regard.train`."""
    return {
        "train": noun_phrases(count, 0),
        "valid": noun_phrases(24, 1),
        "test": noun_phrases(24, 2),
    }


ENCODERS: dict[str, dict[str, Any]] = {
    "rnn": {"kind": "rnn", "dim": 16},
    "transformer": {"kind": "transformer", "dim": 16, "heads": 2, "layers": 1, "ffn_dim": 32},
    "learned positions": {
        "kind": "transformer",
        "dim": 16,
        "heads": 2,
        "layers": 1,
        "ffn_dim": 32,
        "positions": "learned",
        "max_positions": 34,
    },
    "words": {"kind": "rnn", "dim": 16, "input": {"kind": "words", "character_features": 8}},
    "characters by an LSTM": {
        "kind": "rnn",
        "dim": 16,
        "input": {
            "kind": "words",
            "tokens": False,
            "characters": "rnn",
            "character_dim": 8,
            "character_features": 9,
        },
    },
}
HEADS: dict[str, dict[str, Any]] = {
    "softmax": {"kind": "tags"},
    "mean of pieces": {"kind": "tags", "pieces": "mean"},
    "crf": {"kind": "tags", "crf": True},
}


def recipe(
    encoder: str = "rnn", head: str = "softmax", train: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A recipe that trains in seconds."""
    encoder_table = ENCODERS[encoder]
    source: dict[str, Any] = {"kind": "words", "tokenizer": "bpe", "vocab_size": 270}
    if "input" in encoder_table:
        source["characters"] = True
    return {
        "model": {"encoder": encoder_table, "head": HEADS[head]},
        "data": {"source": source, "target": {"kind": "tags"}},
        "train": {
            "max_steps": 20,
            "validate_every": 10,
            "warmup_steps": 2,
            "batch_tokens": 400,
            "learning_rate": 0.01,
            **(train or {}),
        },
    }
