"""Shell completion of values, and the message of Ctrl-C."""

import json
import os
import subprocess
import sys

import pytest

import regard
from regard.cli import completion
from regard.evaluation.metrics import METRICS
from regard.views.figures import VIEWS
from support.command_line import command
from support.forged import forge

CASES = {
    "regard train da": ["dates", "dates-rnn"],
    "regard train dates --set train.le": ["train.learning_rate="],
    "regard train dates --set model.decoder.input_f": ["model.decoder.input_feeding="],
    "regard sweep dates --grid train.clip": ["train.clip_norm="],
    "regard recipes classi": ["classification", "classification-pretrained"],
    "regard data mu": ["multi30k"],
    "regard evaluate runs/x --metric bleu_": ["bleu_lower"],
    "regard compare runs/x runs/y --split te": ["test"],
    "regard look runs/x --view h": ["heads", "heat"],
    "regard look runs/x --data v": ["valid"],
    "regard predict runs/x --set tem": ["temperature="],
    "regard predict runs/x --device c": ["cpu", "cuda"],
    "regard words train text --set alg": ["algorithm="],
}
CODE = """
import contextlib, io, json, os, sys
from regard.cli import app
found, os.environ["_REGARD_COMPLETE"] = {}, "complete_bash"
for words in json.load(sys.stdin):
    os.environ |= {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        app(prog_name="regard")
    found[words] = sorted(out.getvalue().split())
print(json.dumps({"found": found, "heavy": sorted({"torch", "numpy", "tokenizers", "rich"} & set(sys.modules))}))
"""


def test_values_are_completed_without_heavy_imports():
    done = subprocess.run(
        [sys.executable, "-c", CODE], input=json.dumps(list(CASES)), capture_output=True, text=True
    )
    assert json.loads(done.stdout or "{}") == {"found": CASES, "heavy": []}, done.stderr


def test_completions_are_all_there_are():
    assert completion.views() == list(VIEWS)
    assert completion.metrics() == list(METRICS)
    keys = dict(completion.recipe_keys())
    assert {f"decode.{key}" for key, _ in completion.decode_keys()} == {
        key for key in keys if key.startswith("decode")
    }
    assert {
        "extends=",
        "data.source.tokenizer=",
        "model.encoder.backbone.weights=",
        "model.encoder.input.character_dim=",
        "train.betas=",
    } <= keys.keys()
    assert keys["train.seed="]


@pytest.mark.parametrize("terminal", [False, True])
def test_an_interruption_is_reported_on_its_own_line(terminal, monkeypatch):
    def interrupted(*_, **__):
        monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
        raise KeyboardInterrupt

    monkeypatch.setattr(regard, "plot", interrupted, raising=False)
    done = command("plot", os.devnull)
    assert (done.returncode, done.stderr) == (130, "\n" * terminal + "regard: interrupted\n")


def test_models_are_loaded_onto_a_gpu_where_there_is_one(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "regard.inference.load.pick_device", lambda name: asked.append(name) or "cpu"
    )
    regard.load(forge(tmp_path / "model", "config.json", lambda config: None))
    assert asked == ["auto"]
