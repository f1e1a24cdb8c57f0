"""Small models that predict numbers, or several labels, of texts, and data on which they do."""

import random
from collections.abc import Mapping
from typing import Any

# What each word adds to the first number of a text, and to the second.
VALUES = {"good": 2.0, "great": 3.0, "fine": 1.0, "bad": -2.0, "awful": -3.0}
TOPICS = {"film": 1.0, "plot": -1.0, "actor": 2.0}
WORDS = (*VALUES, *TOPICS, "the", "a")

ENCODERS: dict[str, dict[str, Any]] = {
    "rnn": {"kind": "rnn", "dim": 16},
    "transformer": {"kind": "transformer", "dim": 16, "heads": 2, "layers": 1, "ffn_dim": 32},
    "bag": {"kind": "bag", "dim": 16},
}


def text(drawn: random.Random) -> str:
    return " ".join(drawn.choices(WORDS, k=drawn.randint(3, 7)))


def value(words: str) -> float:
    """The number of a text, far from 0 and from 1."""
    return 500.0 + 20.0 * sum(VALUES.get(word, 0.0) for word in words.split())


def numbers(count: int, seed: int, size: int = 1) -> list[tuple[str, Any]]:
    """Texts with one number, or two."""
    drawn = random.Random(seed)
    rows: list[tuple[str, Any]] = []
    for _ in range(count):
        words = text(drawn)
        target: Any = value(words)
        if size == 2:
            target = [target, 0.001 * sum(TOPICS.get(word, 0.0) for word in words.split())]
        rows.append((words, target))
    return rows


def number_splits(size: int = 1, count: int = 240) -> dict[str, list[tuple[str, Any]]]:
    """Data for `regard.train`."""
    return {
        "train": numbers(count, 0, size),
        "valid": numbers(30, 1, size),
        "test": numbers(40, 2, size),
    }


# The label that each word of a text gives it.
LABELS = {
    "film": "cinema",
    "plot": "cinema",
    "goal": "sport",
    "vote": "law and order",
    "law": "law and order",
}


def labelled(count: int, seed: int) -> list[tuple[str, list[str]]]:
    """Texts with their labels, of which some texts have none."""
    drawn = random.Random(seed)
    rows = []
    for _ in range(count):
        words = drawn.choices([*LABELS, "the", "a", "new"], k=drawn.randint(1, 4))
        rows.append((" ".join(words), sorted({LABELS[word] for word in words if word in LABELS})))
    return rows


def label_splits(count: int = 240) -> dict[str, list[tuple[str, list[str]]]]:
    """Data for `regard.train`."""
    return {"train": labelled(count, 0), "valid": labelled(30, 1), "test": labelled(60, 2)}


def recipe(
    target: str = "number",
    encoder: str = "rnn",
    train: Mapping[str, Any] | None = None,
    **keys: Any,
) -> dict[str, Any]:
    """A recipe that trains in seconds; `keys` are those of the target."""
    return {
        "model": {"encoder": ENCODERS[encoder], "pool": {"kind": "attention"}},
        "data": {
            "source": {"kind": "text", "tokenizer": "words"},
            "target": {"kind": target, **keys},
        },
        "train": {
            "max_steps": 60,
            "validate_every": 30,
            "warmup_steps": 4,
            "batch_tokens": 300,
            "learning_rate": 0.02,
            "device": "cpu",
            **(train or {}),
        },
    }
