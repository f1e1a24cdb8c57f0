"""Untrained predictors, for tests that do not depend on their outputs."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import regard
from regard.data.special_tokens import END
from regard.data.tokenizer import Tokenizer
from regard.data.train_tokenizer import train_tokenizer
from regard.data.vocabulary import Labels
from regard.generation.engines.cpu.engine import CpuEngine
from regard.inference.predictor import Predictor
from regard.recipe.recipe import Recipe

TEXT = [
    "the cat sat on the mat, and the cats ran.",
    "a catalogue of category words: concatenate!",
    "the red car and the dog sat; a dogma, the doghouse",
] * 20
PARTS: dict[str, Any] = {
    "rnn": {"kind": "rnn", "dim": 16},
    "transformer": {"kind": "transformer", "dim": 16, "layers": 2, "heads": 2, "ffn_dim": 32},
    "conv": {"kind": "conv", "dim": 16, "dilations": [1, 2]},
}
COPY = {"synthetic": "copy", "source": {"tokenizer": "bytes"}, "target": {"tokenizer": "bytes"}}


def tokenizer(kind: str = "bpe") -> Tokenizer:
    return train_tokenizer(kind, TEXT, 320)


def translator(
    kind: str = "bpe", decoder: str = "transformer", seed: int = 1, encoder: str = "rnn"
) -> Predictor:
    words, parts = tokenizer(kind), {"encoder": PARTS[encoder], "decoder": PARTS[decoder]}
    torch.manual_seed(seed)
    model = regard.build({**parts, "vocab_size": words.size}).eval()
    return Predictor(_ending(model), _recipe(parts), (words,), words)


def language_model(kind: str = "bpe", seed: int = 0, **data: Any) -> Predictor:
    words = tokenizer(kind)
    words = words.for_running_text() if "context_length" in data else words
    torch.manual_seed(seed)
    model = regard.build({"decoder": PARTS["transformer"], "vocab_size": words.size}).eval()
    return Predictor(_ending(model), _recipe({"decoder": PARTS["transformer"]}, **data), (), words)


def classifier(pool: dict[str, Any] | None = None) -> Predictor:
    words, labels = tokenizer(), Labels(["bad", "fine", "good"])
    parts = {"encoder": PARTS["rnn"], "pool": pool or {"kind": "mean"}}
    torch.manual_seed(0)
    model = regard.build(
        {**parts, "num_labels": labels.size, "source_vocab_size": words.size}
    ).eval()
    data = {"train": ["texts.txt", "labels.txt"], "source": {}, "target": {"kind": "label"}}
    recipe = Recipe.of({"data": data, "model": parts})
    return Predictor(model, recipe, (words,), labels)


def masked_model() -> Predictor:
    words = tokenizer()
    parts = {"encoder": PARTS["transformer"], "head": "mlm"}
    torch.manual_seed(0)
    model = regard.build({**parts, "vocab_size": words.size}).eval()
    recipe = Recipe.of(
        {"data": {"train": "x.txt"}, "model": parts, "train": {"mask_probability": 0.15}}
    )
    return Predictor(model, recipe, (), words)


def replace_step(monkeypatch: pytest.MonkeyPatch, decoder: Any, step: Callable) -> None:
    """Give all decoders of this one's class another step, and no compiled one."""
    monkeypatch.setattr(CpuEngine, "compile_decoder", lambda *given, **options: None)
    monkeypatch.setattr(type(decoder), "step", step)


def _ending(model: Any) -> Any:
    """A model that ends now and then, with logits far enough apart that ties are rare."""
    with torch.no_grad():
        model.decoder.project.weight *= 2
        model.decoder.project.bias[END] = 3.0
    return model


def _recipe(model: dict[str, Any], **data: Any) -> Recipe:
    if "encoder" in model:
        return Recipe.of({"data": COPY, "model": model, "decode": {"max_length": 30}})
    return Recipe.of(
        {"data": {"train": "x.txt", **data}, "model": model, "decode": {"max_length": 30}}
    )
