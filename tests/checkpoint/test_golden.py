"""Checkpoints of every release load with the loss and logits recorded when they were written (`golden/write.py`)."""

import json
from pathlib import Path

import pytest
import torch

import regard
from golden.write import FAMILIES, HERE, measured
from regard.checkpoint.store import as_json, document, read, tensors, write

GOLDEN = sorted(
    path for path in HERE.glob("*/*") if path.is_dir() and path.parent.name != "__pycache__"
)


def test_this_version_has_a_checkpoint_of_every_family():
    assert {path.name for path in GOLDEN if path.parent.name == regard.__version__} == set(FAMILIES)


@pytest.mark.parametrize("folder", GOLDEN, ids=lambda folder: f"{folder.parent.name} {folder.name}")
def test_a_golden_checkpoint_has_the_recorded_loss_and_logits(folder: Path):
    assert sum(file.stat().st_size for file in folder.iterdir()) < 100_000
    wanted = json.loads(folder.with_name(f"{folder.name}.json").read_text("utf-8"))
    found = measured(regard.load(folder, device="cpu"), FAMILIES[folder.name][2])
    assert found["loss"] == pytest.approx(wanted["loss"], rel=1e-5)
    torch.testing.assert_close(
        torch.tensor(found["logits"]), torch.tensor(wanted["logits"]), rtol=1e-5, atol=1e-5
    )


def test_changed_weights_are_noticed(tmp_path):
    """Weights scaled by 1.001 have another loss."""
    folder = HERE / regard.__version__ / "transformer"
    content = read(folder)
    weights = {
        name: 1.001 * tensor
        for name, tensor in tensors(content, "model.safetensors", folder).items()
    }
    texts = {name: text.decode() for name, text in content.items() if name != "model.safetensors"}
    texts["config.json"] = as_json(document(content, "config.json", folder))
    write(tmp_path / "changed", texts, {"model.safetensors": weights})
    wanted = json.loads(folder.with_name("transformer.json").read_text("utf-8"))
    found = measured(regard.load(tmp_path / "changed", device="cpu"), FAMILIES["transformer"][2])
    assert found["loss"] != pytest.approx(wanted["loss"], rel=1e-5)
