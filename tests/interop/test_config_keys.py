"""Each key of a config.json left out or null: the logits of transformers, or a refusal."""

import json
from dataclasses import fields

import pytest
import torch

from regard.core.errors import RegardError
from regard.interop.architectures.base import FIXED, GENERATION, HARMLESS
from regard.interop.architectures.table import ARCHITECTURES
from support.pretrained import CASES, assert_same_logits, logits, ours_of, random_theirs

transformers = pytest.importorskip("transformers")
# A case of each architecture and each head. The first of an architecture is the one that its name begins with.
NAMES = [
    "marian", "marian-separate", "pegasus", "bart", "mbart", "t5", "t5-gated", "gpt2", "llama", "mistral", "qwen2",
    "qwen2-window", "qwen3", "gemma", "bert", "bert-mlm", "roberta", "roberta-mlm", "distilbert",
    "distilbert-mlm", "vit", "deit", "captioner",
]  # fmt: skip
ALWAYS = {"bart", "t5", "mistral", "bert"}  # the other cases take minutes
ABSENT = object()
# Keys that say which class reads a file, or in which precision it is read.
OTHERS = {"architectures", "model_type", "dtype", "torch_dtype", "encoder", "decoder"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    made = {}

    def of(name):
        if name not in made:
            theirs = random_theirs(name)
            folder = tmp_path_factory.mktemp(name)
            theirs.save_pretrained(folder)
            made[name] = folder, theirs.state_dict()
        return made[name]

    return of


def _marked(name):
    return name if name in ALWAYS else pytest.param(name, marks=pytest.mark.slow)


def _keys(config):
    """All keys that the importer knows, and those of the file."""
    architecture = ARCHITECTURES[config["model_type"]]
    known = {field.name for field in fields(architecture.keys)} | architecture.unused
    known |= {*architecture.fixed, *architecture.aliases, *FIXED, *HARMLESS, *GENERATION, *config}
    return sorted(known - OTHERS)


def _read_by_transformers(name, folder, weights, changes):
    """Their model of a folder; None if they refuse it, or would fill weights with random numbers."""
    model_class = getattr(transformers, CASES[name][0])
    try:
        if name == "t5-gated" or any("tie" in key or "share" in key for key in changes):
            # The file decides which weights are tied. Reading it takes several times as long.
            model, report = model_class.from_pretrained(
                folder, output_loading_info=True, dtype=torch.float32
            )
            wrong = report["missing_keys"] or report["mismatched_keys"]
            return None if wrong else model.eval()
        model = model_class(model_class.config_class.from_pretrained(folder))
        model.load_state_dict(weights)
    except Exception:
        return None
    return model.eval()


@torch.no_grad()
def _check(name, saved, changes):
    """Whether our model of the folder with these changes of its config.json could be compared with theirs."""
    folder, weights = saved
    path = folder / "config.json"
    before = path.read_text()
    config = json.loads(before) | changes
    try:
        path.write_text(json.dumps({k: v for k, v in config.items() if v is not ABSENT}))
        try:
            ours, _ = ours_of(folder)
        except RegardError:
            return False
        theirs = _read_by_transformers(name, folder, weights, changes)
        if theirs is None:
            return False
        try:
            wanted, got = logits(name, theirs, ours)
        except Exception:
            return False
        assert_same_logits(got, wanted)
        return True
    finally:
        path.write_text(before)


def _failures(name, saved, changes):
    """Those of the changes after which our logits are others than theirs; and the number of equal ones."""
    failed = []
    equal = 0
    for change in changes:
        try:
            equal += _check(name, saved, change)
        except AssertionError:
            failed.append({k: "absent" if v is ABSENT else v for k, v in change.items()})
    return failed, equal


@pytest.mark.parametrize("name", [_marked(name) for name in NAMES])
def test_null_and_absent_keys_mean_what_they_mean_to_transformers(name, saved):
    folder, _ = saved(name)
    config = json.loads((folder / "config.json").read_text())
    changes = [{key: None} for key in _keys(config) if key not in HARMLESS | GENERATION]
    changes += [{key: ABSENT} for key in config if key not in OTHERS]
    failed, equal = _failures(name, saved(name), changes)
    assert failed == []
    assert equal > 5
