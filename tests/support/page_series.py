"""Models of sequences of vectors whose pages are tested: random weights, with statistics that are not 0 and 1."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

import regard
from regard.data.statistics import Statistics
from regard.data.vocabulary import Labels
from regard.inference.predictor import Predictor
from regard.recipe.recipe import Recipe
from support import models, predictors
from support.onnx_members import lively

WINDOW = 12
HORIZON = 5
MEAN = (3.0, -40.0, 1e3)
SCALE = (0.5, 12.0, 250.0)
TRANSFORMER = {"kind": "transformer", "dim": 16, "layers": 1, "heads": 2, "ffn_dim": 24}
RNN = {"kind": "rnn", "dim": 8}
CONVOLUTION = {"kind": "conv", "dim": 16, "dilations": [1, 2]}
BAG = {"kind": "bag", "dim": 16}
SERIES_TABLE = {
    "window": WINDOW,
    "horizon": HORIZON,
    "time": "time",
    "group": "station",
    "targets": ["wind", "rain"],
}


def series(length: int, seed: int = 0, missing: float = 0.0) -> np.ndarray:
    """Vectors as they would be in the training data; some numbers are NaN."""
    drawn = np.random.default_rng(seed)
    values = np.array(MEAN) + np.array(SCALE) * drawn.normal(size=(length, len(MEAN)))
    values = values.round(4)
    values[drawn.random(values.shape) < missing] = np.nan
    return values


def forecaster(
    encoder: dict[str, Any], head: dict[str, Any], *, channels: int = 3, missing: str = "refuse"
) -> Predictor:
    """A model of windows of three channels, which forecasts the first `channels`."""
    table = {"encoder": encoder, "head": {"kind": "horizon", **head}}
    sizes = {"num_labels": channels, "horizon": HORIZON, "source_length": WINDOW}
    data = _data("vectors", missing)
    if channels == 2:
        data = {
            "train": "x.csv",
            "source": {"kind": "vectors"},
            "target": {"kind": "vectors"},
            "series": SERIES_TABLE,
        }
    source = Statistics(MEAN, SCALE, length=WINDOW)
    target = Statistics(MEAN[:channels], SCALE[:channels], length=HORIZON)
    return _built(table, sizes, data, source, target)


def classifier(encoder: dict[str, Any], pool: str = "attention") -> Predictor:
    table = {"encoder": encoder, "pool": {"kind": pool}}
    labels = Labels(["slow", "fast", "10", "9"])
    data = _data("label")
    return _built(table, {"num_labels": labels.size}, data, Statistics(MEAN, SCALE), labels)


def vector_model(encoder: dict[str, Any]) -> Predictor:
    """A vector for each vector of the source; numbers may be missing."""
    data = _data("vectors", "mask")
    target = Statistics(MEAN[:2], SCALE[:2])
    table = {"encoder": encoder, "head": "vectors"}
    return _built(table, {"num_labels": 2}, data, Statistics(MEAN, SCALE), target)


def captioner() -> Predictor:
    """Vectors in, a text out."""
    words = predictors.tokenizer()
    encoder = TRANSFORMER | {"input": {"kind": "vectors", "kernel": 3, "stride": 2}}
    table = {"encoder": encoder, "decoder": TRANSFORMER, "tie_embeddings": "none"}
    data = _data("text", "mask")
    made = _built(table, {"vocab_size": words.size}, data, Statistics(MEAN, SCALE), words)
    lively(made.model)
    return made.with_decode(max_length=12)


def _data(target: str, missing: str = "refuse") -> dict[str, Any]:
    """Tables of lists: the table [data] of a recipe for a target of this kind."""
    source = {"kind": "vectors", "column": "x", "missing": missing}
    own = {"missing": missing} if target == "vectors" else {}
    return {
        "train": "x.jsonl",
        "source": source,
        "target": {"kind": target, "column": "y", **own},
    }


def _built(
    table: dict[str, Any], sizes: dict[str, Any], data: dict[str, Any], source: Any, target: Any
) -> Predictor:
    torch.manual_seed(1)
    model = regard.build({**table, "source_dim": source.size, **sizes}).eval()
    models.without_zeros(model)
    return Predictor(model, Recipe.of({"data": data, "model": table}), (source,), target)


def reading(encoder: dict[str, Any], **keys: Any) -> dict[str, Any]:
    """An encoder with its input module."""
    return encoder | {"input": {"kind": "vectors", **keys}}


PATCHES = {"kernel": 4, "stride": 4, "padding": "end"}
LEARNED = {"positions": "learned", "max_positions": WINDOW}
SERIES: dict[str, Callable[[], Predictor]] = {
    "forecaster, patches": partial(
        forecaster,
        reading(TRANSFORMER, **PATCHES),
        {"instance_norm": "mean_std", "channels": "independent", "affine": True},
    ),
    "forecaster, two of three channels": partial(
        forecaster,
        reading(TRANSFORMER | LEARNED, kernel=3, stride=2),
        {"instance_norm": "last"},
        channels=2,
    ),
    "forecaster, rnn": partial(
        forecaster, reading(RNN), {"instance_norm": "mean", "read": "last"}, missing="mask"
    ),
    "forecaster, conv": partial(forecaster, reading(CONVOLUTION), {"read": "mean"}),
    "forecaster, linear": partial(
        forecaster,
        reading(BAG, kernel=WINDOW, stride=WINDOW, padding="end"),
        {"instance_norm": "mean_std", "channels": "independent"},
    ),
    "series classifier, rnn": partial(classifier, reading(RNN, kernel=3, stride=2)),
    "series classifier, transformer": partial(
        classifier, reading(TRANSFORMER | {"cls_token": True}, kernel=3, stride=2, layers=2)
    ),
    "series classifier, conv": partial(classifier, reading(CONVOLUTION), "mean"),
    "vectors to vectors": partial(vector_model, reading(TRANSFORMER, kernel=3)),
    "vectors to text": captioner,
}
