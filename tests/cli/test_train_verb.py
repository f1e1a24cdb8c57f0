"""`regard train` as a user types it: without --out, stopped and resumed, and where it fails."""

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import regard
from regard.core.errors import InterruptedTraining
from support.command_line import command, process
from support.training_runs import log

# Four lines and no validation, so that a run takes no time.
RECIPE = """
[data]
train = ["letters.txt", "letters.txt"]
[data.source]
tokenizer = "bytes"
[data.target]
tokenizer = "bytes"
[model.encoder]
kind = "rnn"
dim = 4
[model.decoder]
kind = "rnn"
dim = 4
[train]
device = "cpu"
log_every = 1
max_steps = 2
"""
WITH_WARMUP = f"{RECIPE}warmup_steps = 0\n"


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """The working directory, with a recipe."""
    monkeypatch.chdir(tmp_path)
    Path("letters.txt").write_text("ab\nba\nabc\ncba\n")
    Path("small.toml").write_text(RECIPE)
    Path("written.toml").write_text(WITH_WARMUP)
    return tmp_path


def test_a_run_is_named_after_its_recipe(here):
    folders = []
    for _ in range(3):
        done = command("train", "small.toml")
        assert done.returncode == 0, done.stderr
        folder = Path(done.stdout.strip()).parent
        assert f"the folder of this run is {folder}\n" in done.stderr
        folders.append(str(folder))
    assert folders == ["runs/small", "runs/small-2", "runs/small-3"]


def test_a_sweep_is_named_after_its_recipe_and_goes_on_there(here):
    Path("valid.toml").write_text(
        RECIPE.replace("[data.source]", 'valid = ["letters.txt", "letters.txt"]\n[data.source]')
    )
    arguments = ("sweep", "valid.toml", "--set", "train.validate_every=2", "--grid")
    first = command(*arguments, "train.seed=1,2")
    assert first.returncode == 0, first.stderr
    assert first.stderr.startswith("regard: the folder of this sweep is runs/valid-sweep\n")
    runs = sorted(each.name for each in Path("runs/valid-sweep").iterdir())
    assert runs == ["train.seed=1", "train.seed=2"]
    logged = log(Path("runs/valid-sweep/train.seed=1"))
    again = command(*arguments, "train.seed=1,2,3")
    assert again.returncode == 0, again.stderr
    assert len(list(Path("runs/valid-sweep").iterdir())) == 3
    # The run that was there is not trained a second time.
    steps = [each for each in log(Path("runs/valid-sweep/train.seed=1")) if each["event"] == "step"]
    assert steps == [each for each in logged if each["event"] == "step"]


def test_the_card_names_regard_without_a_link(here):
    """It has no published page."""
    done = command("train", "small.toml")
    assert done.returncode == 0, done.stderr
    card = (Path(done.stdout.strip()) / "README.md").read_text()
    assert "Trained with Regard" in card
    assert "](" not in card


def test_an_empty_folder_is_not_taken(here):
    Path("runs/small").mkdir(parents=True)
    done = command("train", "small.toml")
    assert done.stdout.startswith("runs/small/step-")


def test_a_file_has_the_name(here):
    Path("runs").mkdir()
    Path("runs/small").write_text("mine")
    Path("runs/small-2").symlink_to("nowhere")
    done = command("train", "small.toml")
    assert done.stdout.startswith("runs/small-3/step-"), done.stderr
    assert Path("runs/small").read_text() == "mine"


def test_the_only_run_is_resumed(here):
    assert command("train", "small.toml").returncode == 0
    resumed = command("train", "small.toml", "--resume", "--set", "train.max_steps=3")
    assert resumed.stdout == "runs/small/step-00000003\n", resumed.stderr


def test_the_run_to_resume_must_be_known(here):
    none = command("train", "small.toml", "--resume")
    assert none.returncode == 2
    assert "--out: wanted the run to resume; got no run runs/small." in none.stderr
    assert not Path("runs").exists()
    for _ in range(2):
        assert command("train", "small.toml").returncode == 0
    several = command("train", "small.toml", "--resume")
    assert several.returncode == 2
    assert "got none; there are runs/small, runs/small-2." in several.stderr


def test_processes_that_train_together_are_told_their_folder(here, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    refused = command("train", "small.toml")
    assert refused.returncode == 2
    assert "--out: wanted the folder of the run, which all processes" in refused.stderr


def test_a_dry_run_needs_no_folder(here):
    done = command("train", "small.toml", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "first batch:" in done.stdout
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    "changes",
    [
        ["data.source.kind='image'"],  # found before the folder is made
        ["train.init_from='nowhere'"],  # found after
    ],
)
def test_a_run_that_fails_leaves_no_folder(here, changes):
    settings = [word for change in changes for word in ("--set", change)]
    for out in ([], ["--out", "mine"]):
        done = command("train", "written.toml", *settings, *out)
        assert done.returncode != 0
        assert sorted(path.name for path in here.rglob("*") if path.name == "run.lock") == []
    assert not Path("runs/written").exists()
    assert not Path("mine").exists()


def test_a_folder_that_was_there_stays(here):
    Path("mine").mkdir()
    wrong = ["--set", "train.init_from='nowhere'"]
    done = command("train", "written.toml", "--out", "mine", *wrong)
    assert done.returncode != 0
    assert Path("mine").is_dir()
    assert command("train", "written.toml", "--out", "mine").returncode == 0


def test_a_stopped_run_says_how_to_continue_it(here):
    """The command is what a shell would need, whatever is in the values."""
    arguments = ["train", "written.toml", "--out", "my run", "--set", "train.max_steps=1000000"]
    arguments += ["--set", "train.freeze=['encoder.rnn.*']"]
    with subprocess.Popen(
        [sys.executable, "-m", "regard", *arguments], stderr=subprocess.PIPE, text=True
    ) as running:
        seen = []
        for line in running.stderr:
            seen.append(line)
            if line.startswith("step "):
                os.kill(running.pid, signal.SIGINT)
                break
        seen += running.stderr.readlines()
    assert running.returncode == 130
    *_, last = "".join(seen).strip().splitlines()
    said, _, rest = last.partition("Continue it: ")
    assert said == "regard: stopped by SIGINT; my run is saved. "
    program, *words = shlex.split(rest)
    assert program == "regard"
    assert words == [*arguments, "--resume"]
    last_step = max(int(path.name[5:]) for path in Path("my run").glob("step-*"))
    resumed = process(*words, "--set", f"train.max_steps={last_step + 1}")
    assert resumed.returncode == 0, resumed.stderr


def test_a_run_that_python_stopped_says_how_to_continue_it(here):
    stopped = InterruptedTraining(signal.SIGTERM, Path("runs/a"))
    assert str(stopped) == (
        "stopped by SIGTERM; runs/a is saved. Continue with resume=True (--resume)"
    )


def test_a_folder_with_checkpoints_names_both_ways_to_resume(here):
    assert command("train", "small.toml", "--out", "mine").returncode == 0
    with pytest.raises(regard.InvalidArgument, match=r"Continue it with resume=True \(--resume\)"):
        regard.train("small.toml", "mine", progress=False)


CLASSIFIER = """
[data]
train = "rows.tsv"
valid = "rows.tsv"
[data.source]
tokenizer = "bytes"
column = "text"
[data.target]
kind = "label"
column = "label"
[model.encoder]
kind = "rnn"
dim = 4
[model.pool]
kind = "mean"
[train]
device = "cpu"
max_steps = 4
validate_every = 2
batch_tokens = 24
"""


def test_the_validation_of_a_classifier_has_its_accuracy(here):
    rows = [("a", "x"), ("b", "y"), ("ab", "x"), ("bb", "y"), ("c", "x")]
    lines = ["text\tlabel", *map("\t".join, rows)]
    Path("rows.tsv").write_text("".join(f"{line}\n" for line in lines))
    Path("labels.toml").write_text(CLASSIFIER)
    done = command("train", "labels.toml", "--out", "a")
    assert done.returncode == 0, done.stderr
    steps = [line for line in log(Path("a")) if line["event"] == "validation"]
    assert [line["step"] for line in steps] == [2, 4]
    for line in steps:
        model = regard.load(f"a/step-{line['step']:08}")
        found = model.predict([text for text, _ in rows])
        right = sum(label == wanted for label, (_, wanted) in zip(found, rows, strict=True))
        assert line["accuracy"] == pytest.approx(right / len(rows))
        assert f"accuracy {line['accuracy']:.4f}" in done.stderr
    monitored = command("train", "labels.toml", "--out", "b", "--set", "train.monitor='accuracy'")
    assert monitored.returncode == 0, monitored.stderr
    found = [line["accuracy"] for line in log(Path("b")) if line["event"] == "validation"]
    assert found == pytest.approx([line["accuracy"] for line in steps])


def test_a_model_without_test_data_says_what_to_evaluate_on(here):
    Path("text.txt").write_text("a b c\n" * 9)
    text = """
    [data]
    train = "text.txt"
    valid = "text.txt"
    [data.target]
    tokenizer = "bytes"
    [model.decoder]
    kind = "rnn"
    dim = 4
    [train]
    device = "cpu"
    max_steps = 1
    """
    Path("lm.toml").write_text(text)
    done = command("train", "lm.toml")
    assert done.returncode == 0, done.stderr
    refused = command("evaluate", "runs/lm")
    assert refused.returncode == 2
    assert "Name one, as in --split valid, or add data.test." in refused.stderr
    assert command("evaluate", "runs/lm", "--split", "valid").returncode == 0
    assert "Did you mean 'valid'?" in command("evaluate", "runs/lm", "--split", "vaild").stderr


# What the default of a key may be depends on others.


def test_a_short_run_warms_up_for_a_part_of_it(here):
    for steps, warmup in ((2, 0), (50, 12), (1599, 399), (5000, 400)):
        done = command("train", "small.toml", "--dry-run", "--set", f"train.max_steps={steps}")
        assert done.returncode == 0, done.stderr
        assert f"train.warmup_steps = {warmup}\n" in done.stdout


def test_a_warmup_that_is_written_must_fit(here):
    done = command("train", "written.toml", "--set", "train.warmup_steps=3")
    assert done.returncode == 2
    assert "train.warmup_steps: wanted at most max_steps = 2; got 3." in done.stderr
    assert "the default of 0" in done.stderr


def test_a_resumed_run_keeps_its_warmup(here):
    """The learning rates are those of one run; a default that follows max_steps would change them."""
    assert (
        command("train", "small.toml", "--out", "a", "--set", "train.max_steps=8").returncode == 0
    )
    longer = ["--set", "train.max_steps=16"]
    resumed = command("train", "small.toml", "--out", "a", "--resume", *longer)
    assert resumed.returncode == 0, resumed.stderr
    written = [*longer, "--set", "train.warmup_steps=2"]
    assert command("train", "small.toml", "--out", "b", *written).returncode == 0
    rates = [
        [line["rate"] for line in log(Path(run)) if line["event"] == "train"] for run in ("a", "b")
    ]
    assert len(rates[0]) == 16
    assert rates[0] == rates[1]
    assert regard.load("a").recipe.train.warmup_steps == 2


def test_a_resumed_run_is_not_shorter_than_its_warmup(here):
    assert (
        command("train", "small.toml", "--out", "a", "--set", "train.max_steps=8").returncode == 0
    )
    shorter = ["--resume", "--set", "train.max_steps=1"]
    refused = command("train", "small.toml", "--out", "a", *shorter)
    assert refused.returncode == 2
    assert "train.max_steps: wanted at least 2, the updates of warmup" in refused.stderr


def test_another_written_warmup_is_refused_on_resuming(here):
    assert command("train", "written.toml", "--out", "a").returncode == 0
    changes = ["--set", "train.max_steps=4", "--set", "train.warmup_steps=1"]
    refused = command("train", "written.toml", "--out", "a", "--resume", *changes)
    assert refused.returncode == 4
    assert "train.warmup_steps = 1, which was 0" in refused.stderr
