"""What a run resumes from is checked: progress of other types, missing optimizer state, values that are no numbers."""

import json
from dataclasses import asdict
from math import inf, isfinite, nan
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

import regard
from regard.checkpoint import store
from regard.checkpoint.format import find_checkpoint
from regard.model.seq2seq import Model
from regard.training.config import TrainConfig
from regard.training.monitor import ValidationHistory
from regard.training.optimizers import Optimizer
from regard.training.run_state import RunState
from support.forged import HOSTILE, forge, leaves, put, rehashed
from support.training_runs import interrupted, table

WHERE = Path("training.json")
STATE = asdict(RunState(history=ValidationHistory(best=2.0, best_step=1)))


@pytest.mark.parametrize("place", list(leaves(STATE)), ids=lambda place: ".".join(place))
def test_progress_of_other_types_is_refused(place):
    assert RunState.from_dict(json.loads(json.dumps(STATE)), WHERE) == RunState(
        history=ValidationHistory(2.0, 1)
    )
    for value in HOSTILE:
        changed = json.loads(json.dumps(STATE))
        put(changed, place, value)
        if _valid(place[-1], value):
            RunState.from_dict(changed, WHERE)
        else:
            with pytest.raises(regard.CheckpointRefused, match=r"training\.json"):
                RunState.from_dict(changed, WHERE)


def _valid(key, value) -> bool:
    if value is None:
        return key in ("grad_norm", "best", "best_step")
    if key == "validated":
        return value is True
    if key in ("grad_norm", "loss_since", "nll_since", "best", "factor"):
        return type(value) in (int, float) and isfinite(value)
    return key != "history" and type(value) is int and 0 <= value < 2**63


@pytest.mark.parametrize(
    "history",
    [None, [], {"best_step": "1"}, {"best_step": ["a"]}, {"best_step": 2**70}, {"best_step": -1}],
)
def test_a_run_with_a_forged_best_step_is_refused(tmp_path, history):
    folder = forge(tmp_path / "step-00000001", "config.json", lambda config: None)
    (folder / "training.json").write_text(json.dumps({"step": 1, "history": {"best_step": 1}}))
    assert find_checkpoint(rehashed(folder).parent) == folder
    (folder / "training.json").write_text(json.dumps({"step": 1, "history": history}))
    rehashed(folder)
    with pytest.raises(regard.CheckpointRefused, match="best step"):
        regard.load(tmp_path)


def test_an_unreadable_file_is_refused(tmp_path, monkeypatch):
    folder, read = forge(tmp_path / "c", "config.json", lambda config: None), Path.read_bytes

    def denied(path):
        if path.name == "model.safetensors":
            raise PermissionError(13, "Permission denied")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", denied)
    with pytest.raises(regard.CheckpointRefused, match="Permission denied"):
        store.verify(folder)


class LinearModel(Model, torch.nn.Linear):
    """The smallest model that an optimizer takes."""


@pytest.mark.parametrize("missing", ["step.weight", "exp_avg_sq.bias", "exp_avg.weight"])
def test_incomplete_optimizer_state_is_refused(missing):
    def stepped():
        model = LinearModel(2, 3)
        optimizer = Optimizer(model, TrainConfig())
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        return optimizer

    saved = stepped().state_tensors()
    Optimizer(LinearModel(2, 3), TrainConfig()).load_state_tensors(saved, WHERE)
    kept = {name: tensor for name, tensor in saved.items() if name != missing}
    for wrong in (kept, saved | {missing: torch.ones(7)}, saved | {missing: saved[missing] * nan}):
        with pytest.raises(regard.CheckpointRefused, match=missing.partition(".")[0]):
            Optimizer(LinearModel(2, 3), TrainConfig()).load_state_tensors(wrong, WHERE)


@pytest.mark.parametrize("monitor", ["loss", "accuracy"])
def test_a_value_that_is_no_number_is_never_the_best(monitor):
    config = TrainConfig(monitor=monitor)
    history = ValidationHistory()
    for step, value in enumerate([nan, inf if monitor == "accuracy" else -inf, nan], start=1):
        history = history.after({monitor: value}, step, config)
        assert (history.best, history.best_step, history.waited) == (None, None, step)
    history = history.after({monitor: 0.5}, 4, config)
    assert (history.best, history.best_step, history.waited) == (0.5, 4, 0)
    assert history.after({monitor: nan}, 5, config) == ValidationHistory(0.5, 4, 1)


def test_a_run_without_its_optimizer_state_is_not_resumed(tmp_path):
    field, part = {"tokenizer": "bytes"}, {"kind": "rnn", "dim": 4}
    recipe = {
        "data": {"synthetic": "copy", "source": field, "target": field},
        "model": {"encoder": part, "decoder": part},
        "train": {"max_steps": 1, "warmup_steps": 0, "validate_every": 1, "device": "cpu"},
    }
    regard.train(recipe, tmp_path / "run", cache=tmp_path / "cache")
    folder = tmp_path / "run" / "step-00000001"
    (folder / "training.safetensors").write_bytes(save({}))
    rehashed(folder)
    with pytest.raises(regard.CheckpointRefused, match="optimizer state"):
        regard.train(
            recipe,
            tmp_path / "run",
            changes=["train.max_steps=2"],
            resume=True,
            cache=tmp_path / "cache",
        )


@pytest.mark.parametrize("key", ["threads", "torch", "regard", "processor", "processes"])
def test_a_resume_in_another_environment_says_so(key, tmp_path):
    """Once, naming what it was and what it is; without a change nothing is said."""
    recipe, run, threads = table(), tmp_path / "run", torch.get_num_threads()
    interrupted(recipe, run, 4, tmp_path / "cache")
    folder = store.step_folder(run, store.steps(run)[-1])
    was = json.loads((folder / "training.json").read_bytes())["environment"]
    assert was["threads"] == threads
    assert was["torch"] == torch.__version__
    assert was["regard"] == regard.__version__
    assert was["processes"] == 1
    events: list[dict] = []
    if key == "threads":
        torch.set_num_threads(threads + 1)
    else:
        state = json.loads((folder / "training.json").read_bytes())
        state["environment"][key] = "0.0.7"
        (folder / "training.json").write_text(store.as_json(state))
        rehashed(folder)
    try:
        interrupted(recipe, run, 4, tmp_path / "cache", resume=True, on_event=events.append)
        warnings = [event["message"] for event in events if event["event"] == "warning"]
        wanted = (
            f"threads {threads + 1} for {threads}"
            if key == "threads"
            else f"{key} {was[key]} for 0.0.7"
        )
        assert [wanted in message for message in warnings] == [True]
        events.clear()
        regard.train(recipe, run, cache=tmp_path / "cache", resume=True, on_event=events.append)
        assert [event for event in events if event["event"] == "warning"] == []
    finally:
        torch.set_num_threads(threads)


def test_a_forged_environment_is_refused(tmp_path):
    interrupted(table(), tmp_path / "run", 4, tmp_path / "cache")
    folder = store.step_folder(tmp_path / "run", store.steps(tmp_path / "run")[-1])
    state = json.loads((folder / "training.json").read_bytes())
    for wrong in ([], {"torch": []}):
        (folder / "training.json").write_text(store.as_json(state | {"environment": wrong}))
        rehashed(folder)
        with pytest.raises(regard.CheckpointRefused, match="wanted the environment of a run"):
            regard.train(table(), tmp_path / "run", cache=tmp_path / "cache", resume=True)


def test_an_update_that_is_not_finite_is_skipped_without_waiting():
    """By PyTorch's fused AdamW, which reads on the device whether to skip: the others wait for it."""
    optimizer = Optimizer(LinearModel(2, 3), TrainConfig())
    assert optimizer.adamw is not None
    assert [group["fused"] for group in optimizer.adamw.param_groups] == [True] * len(
        optimizer.adamw.param_groups
    )
