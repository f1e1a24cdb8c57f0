"""A sweep trains every combination once, and ranks the runs by the monitored metric."""

import json
import sys

import pytest

import regard
from regard.api import sweep as sweep_module
from regard.api.sweep import sweep_table
from regard.core.errors import Diverged, InvalidArgument, InvalidRecipe, MissingExtra
from support.training_runs import table


def test_every_combination_is_trained_and_ranked(tmp_path):
    recipe = table(max_steps=4, warmup_steps=1, validate_every=2)
    grid = {"train.learning_rate": [1e-3, 1e-9], "train.seed": [1, 2]}
    results = regard.sweep(recipe, tmp_path / "runs", grid, cache=tmp_path / "cache")
    assert len({each.folder for each in results}) == 4
    assert [each.value for each in results] == sorted(each.value for each in results)
    assert {each.settings["train.learning_rate"] for each in results[:2]} == {
        "0.001"
    }  # the others hardly learn
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
    changed = {
        path: path.stat().st_mtime_ns
        for path in (tmp_path / "runs").glob("*/step-*/model.safetensors")
    }
    again = regard.sweep(
        recipe, tmp_path / "runs", grid, cache=tmp_path / "cache"
    )  # nothing is trained again
    assert [each.value for each in again] == [each.value for each in results]
    assert changed == {path: path.stat().st_mtime_ns for path in changed}


RANGE = {"train.learning_rate": "1e-9:1e-2:log", "train.warmup_steps": "1:3"}


def test_a_search_tries_values_of_ranges_and_can_be_repeated(tmp_path):
    pytest.importorskip("optuna")
    recipe, options = (
        table(max_steps=4, validate_every=2),
        {"ranges": RANGE, "trials": 4, "cache": tmp_path / "cache"},
    )
    results = regard.sweep(
        recipe, tmp_path / "runs", {"train.optimizer": ["adamw", "muon"]}, **options
    )
    assert 1 < len(results) <= 4
    assert [each.value for each in results] == sorted(each.value for each in results)
    for each in results:
        assert 1e-9 <= float(each.settings["train.learning_rate"]) <= 1e-2
        assert each.settings["train.warmup_steps"] in ("1", "2", "3")
        assert each.settings["train.optimizer"] in ("adamw", "muon")
        assert each.folder.name == " ".join(
            f"{key}={value}" for key, value in each.settings.items()
        )
    rates = [float(each.settings["train.learning_rate"]) for each in results]
    assert max(rates) > 100 * min(rates)  # on a logarithmic scale
    assert results[0].settings["train.learning_rate"] == str(
        max(rates)
    )  # in so few steps, the fastest is the best
    folders = set((tmp_path / "runs").iterdir())
    again = regard.sweep(
        recipe, tmp_path / "runs", {"train.optimizer": ["adamw", "muon"]}, **options
    )
    assert [each.value for each in again] == [each.value for each in results]
    assert set((tmp_path / "runs").iterdir()) == folders  # the same trials


def test_a_trial_that_diverges_is_reported_and_left_out(tmp_path, monkeypatch):
    pytest.importorskip("optuna")
    right, events = sweep_module.train, []

    def diverging(recipe, *arguments, **options):
        if recipe.train.seed > 5:
            raise Diverged("step 3: wanted a finite loss")
        return right(recipe, *arguments, **options)

    monkeypatch.setattr(sweep_module, "train", diverging)
    recipe = table(max_steps=2, warmup_steps=1)
    options = {
        "ranges": {"train.seed": "0:10"},
        "trials": 4,
        "cache": tmp_path / "cache",
        "on_event": events.append,
    }
    results = regard.sweep(recipe, tmp_path / "runs", **options)
    assert results
    assert all(int(each.settings["train.seed"]) <= 5 for each in results)
    assert [
        event
        for event in events
        if event["event"] == "warning" and "step 3: wanted a finite" in event["message"]
    ]
    with pytest.raises(Diverged, match="got none of 4"):
        regard.sweep(recipe, tmp_path / "all", **options | {"ranges": {"train.seed": "6:10"}})


@pytest.mark.parametrize(
    "text", ["", "1", "1:2:3", "2:1", "a:b", "0:1:log", "nan:1", "1:inf", "1:2:lin", "1:1"]
)
def test_a_range_that_is_none_is_refused(tmp_path, text):
    with pytest.raises(InvalidArgument, match=r"range of train\.seed: wanted LOW:HIGH"):
        regard.sweep(table(), tmp_path / "runs", ranges={"train.seed": text})


def test_a_search_needs_optuna(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingExtra, match=r"pip install 'regard\[optuna\]'"):
        regard.sweep(table(), tmp_path / "runs", ranges=RANGE)


def test_wrong_settings_are_refused_before_anything_is_trained(tmp_path):
    with pytest.raises(InvalidRecipe, match=r"train\.learning_rat: wanted a key"):
        regard.sweep(
            table(), tmp_path / "runs", {"train.seed": [1, 2], "train.learning_rat": [1e-3]}
        )
    with pytest.raises(
        InvalidArgument, match="grid: wanted keys, each with its values; got no key"
    ):
        regard.sweep(table(), tmp_path / "runs", {})
    with pytest.raises(
        InvalidArgument, match=r"ranges: wanted keys that are not in the grid; got train\.seed"
    ):
        regard.sweep(table(), tmp_path / "runs", {"train.seed": [1]}, ranges={"train.seed": "1:2"})
    with pytest.raises(InvalidRecipe, match=r"train\.seed"):
        regard.sweep(table(), tmp_path / "runs", {"train.seed": [1, -5]})
    with pytest.raises(InvalidRecipe, match=r"train\.seed"):  # the end of a range that is no value
        regard.sweep(table(), tmp_path / "runs", ranges={"train.seed": "-5:3"})
    assert not (tmp_path / "runs").exists()
