"""Signals at any moment of a training command, and a cache that is removed while it is in use."""

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

import regard
from regard.api.train import train
from regard.checkpoint import store
from regard.data.config import DataConfig
from regard.data.corpus import prepare
from support.processes import seconds_to_end
from support.training_runs import LETTERS, same, table, weights

RECIPE = f"""
[data]
train = ["{LETTERS}", "{LETTERS}"]
valid = ["{LETTERS}", "{LETTERS}"]
source = {{tokenizer = "bytes"}}
target = {{tokenizer = "bytes"}}
[model]
encoder = {{kind = "rnn", dim = 16}}
decoder = {{kind = "rnn", dim = 16}}
[train]
max_steps = 100000
validate_every = 20
warmup_steps = 0
batch_tokens = 512
log_every = 1
"""
# A moment: the first message of the command that begins so, and seconds after it. "": before any.
MOMENTS = {
    "starting": ("", 0.3),
    "importing": ("", 1.5),
    "first update": ("step 1/", 0.0),
    "update": ("step 7/", 0.05),
    "before a validation": ("step 19/", 0.0),
    "validation": ("step 20/", 0.0),
    "saving": ("validation at step 20", 0.0),
    "after saving": ("validation at step 20", 0.1),
}


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_sigterm_at_any_moment_ends_the_command_within_10_seconds(moment, tmp_path):
    """With a checkpoint of the last update where there was one, from which the run goes on."""
    begins, seconds = MOMENTS[moment]
    (tmp_path / "recipe.toml").write_text(RECIPE)
    command = [
        sys.executable,
        "-m",
        "regard",
        "train",
        "recipe.toml",
        "--out",
        "run",
        "--cache",
        "cache",
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        for line in process.stderr if begins else ():
            if line.startswith(begins):
                break
        time.sleep(seconds)
        took, errors = seconds_to_end(process, signal.SIGTERM)
    assert took < 10
    assert "Traceback" not in errors
    assert process.returncode in (128 + signal.SIGTERM, *([] if begins else [-signal.SIGTERM]))
    if begins:
        run = tmp_path / "run"
        step = store.steps(run)[-1]
        assert step >= int("".join(filter(str.isdigit, begins)))
        assert store.verify(store.step_folder(run, step))
        resumed = subprocess.run(
            [*command, "--resume", "--set", f"train.max_steps={step + 1}"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert resumed.returncode == 0, resumed.stderr
        assert store.steps(run)[-1] == step + 1


def test_a_cache_that_is_removed_while_it_is_trained_on_changes_nothing(tmp_path):
    """Files that are mapped can be read on after they are removed; resumed, the run prepares its data anew."""
    train(table(), tmp_path / "whole", cache=tmp_path / "one")

    def remove(event):
        if event["event"] == "checkpoint" and (tmp_path / "two").exists():
            shutil.rmtree(tmp_path / "two")

    train(table(), tmp_path / "run", cache=tmp_path / "two", on_event=remove)
    assert not (tmp_path / "two").exists()
    assert same(weights(tmp_path / "run"), weights(tmp_path / "whole"))
    train(table(max_steps=13), tmp_path / "run", cache=tmp_path / "two", resume=True)
    assert store.steps(tmp_path / "run")[-1] == 13


def test_a_cache_that_is_removed_while_data_are_prepared_is_told(tmp_path):
    lines = tmp_path / "lines.txt"
    lines.write_text("a line\n" * 50)

    def remove(stage, count):
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)

    with pytest.raises(regard.RegardError, match="cache"):
        prepare(DataConfig(train=str(lines)), tmp_path / "cache", progress=remove)
    assert len(prepare(DataConfig(train=str(lines)), tmp_path / "cache").train) == 50


def test_data_that_are_removed_before_a_resume_are_named(tmp_path):
    shutil.copy(LETTERS, tmp_path / "letters.txt")
    files = [str(tmp_path / "letters.txt")] * 2
    recipe = table(max_steps=4)
    recipe["data"] = recipe["data"] | {"train": files}
    train(recipe, tmp_path / "run", cache=tmp_path / "cache")
    os.unlink(tmp_path / "letters.txt")
    with pytest.raises(regard.RegardError, match=r"letters\.txt"):
        train(
            recipe | {"train": recipe["train"] | {"max_steps": 5}},
            tmp_path / "run",
            cache=tmp_path / "cache",
            resume=True,
        )
