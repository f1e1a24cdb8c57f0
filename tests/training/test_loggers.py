"""TensorBoard and Weights & Biases get the metrics of log.jsonl; their failures do not stop a run."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import regard
from regard.api.train import train
from regard.core.errors import MissingExtra

LETTERS = str(Path(__file__).parents[1] / "fixtures" / "letters.txt")


def recipe(*loggers: str, steps: int = 4) -> dict:
    return {
        "data": {"train": LETTERS, "valid": LETTERS, "target": {"tokenizer": "bytes"}},
        "model": {"decoder": {"kind": "rnn", "dim": 8}},
        "train": {
            "max_steps": steps,
            "warmup_steps": 1,
            "validate_every": 2,
            "log_every": 2,
            "loggers": list(loggers),
        },
    }


class FakeWandb:
    """Records its calls; the one named by `fails` raises."""

    def __init__(self, fails: str = "") -> None:
        self.fails, self.begun, self.logged, self.finished = fails, [], [], 0

    def _perhaps_fail(self, name: str) -> None:
        if self.fails == name:
            raise RuntimeError(f"{name}: no answer")

    def init(self, **options) -> "FakeWandb":
        self._perhaps_fail("init")
        self.begun.append(options)
        return self

    def log(self, figures: dict, *, step: int) -> None:
        self._perhaps_fail("log")
        self.logged.append((step, figures))

    def finish(self) -> None:
        self._perhaps_fail("finish")
        self.finished += 1


@pytest.fixture
def wandb(monkeypatch) -> FakeWandb:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def written(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def test_wandb_gets_the_metrics_of_the_log_and_resumes_its_run(tmp_path, wandb):
    train(recipe("wandb"), tmp_path / "run", cache=tmp_path / "cache")
    train(recipe("wandb", steps=6), tmp_path / "run", cache=tmp_path / "cache", resume=True)
    wanted = [
        (
            line["step"],
            {
                f"{line['event']}/{key}": line[key]
                for key in line
                if key not in ("event", "step", "best")
            },
        )
        for line in written(tmp_path / "run")
    ]
    assert wandb.logged == wanted
    assert {"train/loss", "train/rate", "train/tokens_per_second"} <= wanted[0][1].keys()
    assert "validation/loss" in wanted[1][1]
    assert wandb.finished == 2
    first, second = wandb.begun
    assert (first["project"], first["name"]) == ("regard", "run")
    assert first["id"] == second["id"]
    assert first["config"]["train"]["max_steps"] == 4
    train(recipe("wandb"), tmp_path / "other", cache=tmp_path / "cache")
    assert wandb.begun[-1]["id"] != first["id"]


@pytest.mark.parametrize("fails", ["log", "finish"])
def test_a_failing_logger_warns_once_and_does_not_stop_the_run(fails, tmp_path, wandb):
    wandb.fails, events = fails, []
    train(recipe("wandb"), tmp_path / "run", cache=tmp_path / "cache", on_event=events.append)
    warnings = [event["message"] for event in events if event["event"] == "warning"]
    assert warnings == [
        f"wandb failed and is not used any more: RuntimeError('{fails}: no answer')"
    ]
    assert [line["step"] for line in written(tmp_path / "run")] == [2, 2, 4, 4]
    assert (tmp_path / "run" / "step-00000004").is_dir()


def test_a_logger_that_cannot_start_is_refused_before_any_work(tmp_path, wandb, monkeypatch):
    wandb.fails = "init"
    with pytest.raises(
        regard.InvalidArgument,
        match=r"wanted Weights & Biases to answer; got init: no answer\. Log in",
    ):
        train(recipe("wandb"), tmp_path / "run", cache=tmp_path / "cache")
    for name, module in (("wandb", "wandb"), ("tensorboard", "torch.utils.tensorboard")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(
            MissingExtra, match=rf"'{name}'\] needs the package '{name}'.*'regard\[{name}\]'"
        ):
            train(recipe(name), tmp_path / "run", cache=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
    with pytest.raises(
        regard.InvalidRecipe,
        match=r"train\.loggers: wanted a list, each item one of 'tensorboard', 'wandb'",
    ):
        train(recipe("tensorbord"), tmp_path / "run", cache=tmp_path / "cache")


def test_tensorboard_gets_the_metrics(tmp_path, monkeypatch):
    made = []

    class Writer:
        def __init__(self, folder, *, purge_step):
            self.folder, self.purge_step, self.scalars, self.closed = folder, purge_step, [], False
            made.append(self)

        def add_scalar(self, *scalar):
            self.scalars.append(scalar)

        def close(self):
            self.closed = True

    monkeypatch.setitem(
        sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=Writer)
    )
    train(recipe("tensorboard"), tmp_path / "run", cache=tmp_path / "cache")
    train(recipe("tensorboard", steps=6), tmp_path / "run", cache=tmp_path / "cache", resume=True)
    first, second = made
    assert first.folder == str(tmp_path / "run" / "tensorboard")
    assert (first.purge_step, second.purge_step) == (None, 5)
    assert first.closed
    losses = [
        (line["event"] + "/loss", line["loss"], line["step"]) for line in written(tmp_path / "run")
    ]
    assert [
        scalar for scalar in first.scalars + second.scalars if scalar[0].endswith("/loss")
    ] == losses


@pytest.mark.filterwarnings("ignore")  # of the package and what it imports
def test_the_real_tensorboard_reads_what_was_written(tmp_path):
    events = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="the extra `tensorboard` is not installed",
    )
    train(recipe("tensorboard"), tmp_path / "run", cache=tmp_path / "cache")
    found = events.EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    scalars = found.Scalars("validation/loss")
    wanted = [line["loss"] for line in written(tmp_path / "run") if line["event"] == "validation"]
    assert [scalar.step for scalar in scalars] == [2, 4]
    assert [scalar.value for scalar in scalars] == pytest.approx(wanted, rel=1e-6)
