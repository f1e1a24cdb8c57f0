"""Small models that read sequences of vectors, and sequences to give them."""

from pathlib import Path
from typing import Any

import numpy as np

import regard
from regard.inference.predictor import Predictor

DIM = 3
LABELS = ("slow", "fast")


def series(count: int, seed: int = 0) -> list[np.ndarray]:
    """Sequences of unequal length."""
    drawn = np.random.default_rng(seed)
    lengths = drawn.integers(3, 12, count)
    return [drawn.normal(size=(length, DIM)).astype(np.float32) for length in lengths]


def recipe(target: str, **encoder: Any) -> dict[str, Any]:
    transformer = {"kind": "transformer", "dim": 16, "layers": 1, "heads": 2, "ffn_dim": 16}
    head: dict[str, Any] = {"pool": {"kind": "attention"}}
    if target == "vectors":
        head = {"head": "vectors"}
    return {
        "data": {"source": {"kind": "vectors"}, "target": {"kind": target}},
        "model": {"encoder": transformer | encoder} | head,
        "train": {"max_steps": 2, "batch_tokens": 64},
    }


def trained(folder: Path, target: str = "label", **encoder: Any) -> Predictor:
    """A model after two updates: its outputs depend on its inputs, which is enough here."""
    inputs = series(12)
    targets: list[Any] = [LABELS[i % 2] for i in range(12)]
    if target == "number":
        targets = [float(each[:, 0].mean()) for each in inputs]
    if target == "vectors":
        targets = [each * 2 for each in inputs]
    pairs = list(zip(inputs, targets, strict=True))
    splits = {"train": pairs, "valid": pairs[:4], "test": pairs[:4]}
    keys = recipe(target, **encoder)
    return regard.train(keys, folder, data=splits, cache=folder.parent / "cache")


def forecaster(folder: Path) -> Predictor:
    """A model of windows of four vectors, which gives the two vectors after them."""
    long = [each[:6] for each in series(40, seed=5) if len(each) >= 6]
    pairs = [(each[:4], each[4:]) for each in long]
    keys = recipe("vectors")
    keys["model"] = {"encoder": {"kind": "rnn", "dim": 8}, "head": "horizon"}
    splits = {"train": pairs, "valid": pairs[:4]}
    return regard.train(keys, folder, data=splits, cache=folder.parent / "cache")


def channels_apart(folder: Path) -> Predictor:
    """As `forecaster`, with the attention of each channel for itself."""
    long = [each[:6] for each in series(40, seed=5) if len(each) >= 6]
    pairs = [(each[:4], each[4:]) for each in long]
    keys = recipe("vectors")
    head = {"kind": "horizon", "channels": "independent"}
    keys["model"] = {"encoder": keys["model"]["encoder"], "head": head}
    splits = {"train": pairs, "valid": pairs[:4]}
    return regard.train(keys, folder / "apart", data=splits, cache=folder / "cache")


def transcriber(folder: Path) -> Predictor:
    """A model that gives texts by CTC."""
    inputs = [each for each in series(40, seed=6) if len(each) >= 6]
    pairs = [(each, "ab"[number % 2]) for number, each in enumerate(inputs)]
    keys = recipe("text")
    keys["data"]["target"] = {"kind": "text", "tokenizer": "bytes"}
    keys["model"] = {"encoder": {"kind": "rnn", "dim": 8}, "head": "ctc"}
    splits = {"train": pairs, "valid": pairs[:4]}
    return regard.train(keys, folder, data=splits, cache=folder.parent / "cache")
