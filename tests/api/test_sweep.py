"""A sweep trains every combination once, and ranks the runs by the monitored metric."""

import json

import pytest

import regard
from regard.api.sweep import sweep_table
from regard.core.errors import InvalidArgument, InvalidRecipe
from support.training_runs import table


def test_every_combination_is_trained_and_ranked(tmp_path):
    recipe = table(max_steps=4, warmup_steps=1, validate_every=2)
    grid = {"train.learning_rate": [1e-3, 1e-9], "train.seed": [1, 2]}
    results = regard.sweep(recipe, tmp_path / "runs", grid, cache=tmp_path / "cache")
    assert len({each.folder for each in results}) == 4
    assert [each.value for each in results] == sorted(each.value for each in results)
    assert {each.settings["train.learning_rate"] for each in results[:2]} == {"0.001"}  # the others hardly learn
    for each in results:
        lines = [json.loads(line) for line in (each.folder / "log.jsonl").read_text().splitlines()]
        assert each.value == min(line["loss"] for line in lines if line["event"] == "validation")
    assert sweep_table(results).splitlines()[0].split() == [
        "train.learning_rate",
        "train.seed",
        "best",
        "loss",
        "step",
        "run",
    ]
    changed = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*/step-*/model.safetensors")}
    again = regard.sweep(recipe, tmp_path / "runs", grid, cache=tmp_path / "cache")  # nothing is trained again
    assert [each.value for each in again] == [each.value for each in results]
    assert changed == {path: path.stat().st_mtime_ns for path in changed}


def test_wrong_settings_are_refused_before_anything_is_trained(tmp_path):
    with pytest.raises(InvalidRecipe, match=r"train\.learning_rat: wanted a key"):
        regard.sweep(table(), tmp_path / "runs", {"train.seed": [1, 2], "train.learning_rat": [1e-3]})
    with pytest.raises(InvalidArgument, match="grid: wanted keys, each with its values; got no key"):
        regard.sweep(table(), tmp_path / "runs", {})
    assert not (tmp_path / "runs").exists()
