"""Recipes of short training runs, and what they leave behind: weights and logs."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch

from regard.api.train import train
from regard.checkpoint import store
from regard.core.errors import InterruptedTraining
from regard.training.trainer import Trainer

TRANSFORMER = {"kind": "transformer", "dim": 16, "layers": 1, "heads": 2, "ffn_dim": 32}
RNN = {"kind": "rnn", "dim": 16}
CONV = {"kind": "conv", "dim": 16, "dilations": [1, 2]}
LETTERS = str(Path(__file__).parents[1] / "fixtures" / "letters.txt")  # to be copied
PAIRS = {
    "train": [LETTERS, LETTERS],
    "valid": [LETTERS, LETTERS],
    "source": {"tokenizer": "bytes"},
    "target": {"tokenizer": "bytes"},
}
SHORT = {
    "max_steps": 12,
    "warmup_steps": 4,
    "validate_every": 4,
    "batch_tokens": 256,
    "log_every": 2,
    "log_samples": 1,
}


def table(encoder=TRANSFORMER, decoder=TRANSFORMER, **changes):
    model = {"encoder": encoder, "decoder": decoder}
    return {"data": PAIRS, "model": model, "train": SHORT | changes, "decode": {"max_length": 12}}


def rnn_recipe(
    synthetic: str = "copy", *, dim: int = 4, max_length: int = 20, **train: object
) -> str:
    """A recipe file: a recurrent model of bytes, which learns synthetic data on a CPU."""
    steps = {"max_steps": 1, "warmup_steps": 0, "validate_every": 1, "device": "cpu"} | train
    tables = {
        "data": {"synthetic": synthetic},
        "data.source": {"tokenizer": "bytes"},
        "data.target": {"tokenizer": "bytes"},
        "model.encoder": {"kind": "rnn", "dim": dim},
        "model.decoder": {"kind": "rnn", "dim": dim},
        "train": steps,
        "decode": {"max_length": max_length},
    }
    lines = [
        [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in each.items())]
        for name, each in tables.items()
    ]
    return "\n".join(line for table in lines for line in table) + "\n"


def weights(run: Path) -> dict[str, torch.Tensor]:
    folder = store.step_folder(run, store.steps(run)[-1])
    return store.tensors(store.read(folder), "model.safetensors", folder)


def log(run: Path) -> list[dict]:
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [
        {key: value for key, value in line.items() if key != "tokens_per_second"} for line in lines
    ]


def same(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def interrupted(
    recipe, run: Path, after: int, cache: Path, number: int = signal.SIGTERM, **options
) -> None:
    """Train until a signal during update number `after`."""
    update, count = Trainer._update, 0

    def counted(self, group):
        nonlocal count
        count += 1
        if count == after:
            os.kill(os.getpid(), number)
        return update(self, group)

    Trainer._update = counted
    try:
        with pytest.raises(InterruptedTraining) as caught:
            train(recipe, run, cache=cache, **options)
    finally:
        Trainer._update = update
    assert caught.value.exit_code == 128 + number


def hidden_tokens(texts: list[str], target: dict, path: Path, **changes) -> dict:
    """A recipe for a masked-token head."""
    path.write_text("".join(text + "\n" for text in texts))
    data = {"train": str(path), "valid": str(path), "target": target}
    return {
        "data": data,
        "model": {"encoder": TRANSFORMER, "head": "mlm"},
        "train": SHORT | changes,
    }


def dropout_free() -> dict:
    return TRANSFORMER | {"dropout": 0.0}
