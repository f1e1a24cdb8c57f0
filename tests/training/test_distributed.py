"""Distributed training: the loss curve of one process, each example once, checkpoints for any number, timeouts."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from regard.api.train import train
from regard.api.train_checks import check_ranks
from regard.checkpoint import store
from regard.core.atomic_io import file_lock
from regard.core.errors import InvalidArgument, RegardError
from regard.recipe.load import read_recipe
from regard.training import distributed as module
from regard.training.distributed import SINGLE_PROCESS, process_group
from support import processes
from support.training_runs import (
    PAIRS,
    RNN,
    SHORT,
    dropout_free,
    hidden_tokens,
    log,
    same,
    table,
    weights,
)

STILL = dropout_free()  # without dropout, whose random numbers are each rank's own
STILL_RNN = RNN | {"dropout": 0.0}
TEXT = {"target": {"tokenizer": "bytes"}, "context_length": 16}


def recipes(folder: Path) -> dict[str, dict]:
    """Recipes whose loss curves do not depend on the number of processes."""
    text = TEXT | {"train": str(folder / "text.txt"), "valid": str(folder / "text.txt")}
    frozen = {"freeze": ["encoder.*"], "unfreeze_after": 1, "weight_decay": 0.1}
    taught = {
        "distillation": {"teachers": [str(folder / "transformer")], "temperature": 2.0},
        "seed": 2,
    }
    # All inputs but the first are the model's own predictions, so that nothing is drawn.
    sampled = {"scheduled_sampling": {"teacher_forcing": 0.0}}
    carried = {"data": text, "model": {"decoder": STILL_RNN}}
    taught_carried = {"distillation": {"teachers": [str(folder / "carried")]}, "seed": 2}
    return {
        "transformer": table(STILL, STILL),
        "accumulated": table(STILL, STILL, accumulate_steps=3),
        "packed": table(STILL, STILL, packed=True),
        "rnn, ema": table(STILL_RNN, STILL_RNN, ema_decay=0.9),
        "frozen at first": table(STILL, STILL, **frozen),
        "carried": carried | {"train": SHORT | {"carry_state": True}},
        # From the model before, which carries a state of its own.
        "carried, distilled": carried | {"train": SHORT | {"carry_state": True} | taught_carried},
        "sharded": table(STILL, STILL, fsdp=True, accumulate_steps=2, ema_decay=0.9),
        "sharded, recomputed": table(
            STILL | {"activation_checkpointing": True},
            STILL | {"activation_checkpointing": True},
            fsdp=True,
        ),
        "sharded, packed": table(STILL, STILL, fsdp=True, packed=True),
        "sharded, sampled": table(STILL, STILL, fsdp=True, **sampled),
        "distilled": table(STILL, STILL, **taught),  # from the first
        "sharded, distilled": table(STILL, STILL, fsdp=True, **taught),
    }


def jobs(folder: Path, names: list[str], **changes) -> list[dict]:
    every = recipes(folder)
    return [
        {
            "name": name,
            "recipe": every[name],
            "run": str(folder / name),
            "cache": str(folder / "cache"),
        }
        | changes
        for name in names
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Shared by parallel test workers, so that the processes are started once."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "ranks"
    folder.mkdir(exist_ok=True)
    with file_lock(folder / ".lock", wait=True):
        if not (folder / "text.txt").exists():
            (folder / "text.txt").write_text(
                "the cat sat on the mat and the dog sat on the log\n" * 60
            )
    return folder


@pytest.fixture(scope="module")
def two(folder) -> list[dict[str, dict]]:
    """The results of all jobs of two processes, which are started once."""
    with file_lock(folder / ".lock", wait=True):
        if (folder / "two").exists():
            return processes.results(2, folder / "two")
        return _by_two(folder)


def _by_two(folder: Path) -> list[dict[str, dict]]:
    plain, dropped = jobs(folder, ["transformer"])[0], table()
    stopped = {"end": {"rank": 1, "update": 5, "signal": signal.SIGTERM}}
    other = folder / "other.txt"
    other.write_text(Path(PAIRS["train"][0]).read_text() + "more\n")
    texts, path = ["abc def"] * 9 + [""] * 40, folder / "empty.txt"
    empty = hidden_tokens(texts, TEXT["target"], path, batch_tokens=16)
    return processes.done(
        2,
        [
            *jobs(folder, list(recipes(folder))),
            plain | {"name": "dropped", "recipe": dropped, "run": str(folder / "dropped")},
            plain | {"name": "stopped", "recipe": dropped, "run": str(folder / "stopped")} | stopped,
            plain | {"name": "resumed", "recipe": dropped, "run": str(folder / "stopped"), "resume": True},
            plain | {"name": "sharded, stopped", "recipe": recipes(folder)["sharded"], "run": str(folder / "parts")}
            | stopped,
            plain | {"name": "sharded, resumed", "recipe": recipes(folder)["sharded"], "run": str(folder / "parts")}
            | {"resume": True},
            plain | {"name": "another rate", "run": str(folder / "a"), "changes": {"1": ["train.learning_rate=0.5"]}},
            plain | {"name": "other data", "run": str(folder / "b")}
            | {"changes": {"1": [f"data.train=['{other}', '{other}']"]}},
            jobs(folder, ["carried"])[0]
            | {"name": "replay", "run": str(folder / "c")}
            | {"changes": {r: ["train.carry_state=false", "train.cuda_graphs=true"] for r in "01"}},
            jobs(folder, ["carried"])[0]
            | {"name": "one lane", "run": str(folder / "d"), "changes": {r: ["train.batch_tokens=16"] for r in "01"}},
            plain | {"name": "not over another"},
            plain | {"name": "empty texts", "recipe": empty, "run": str(folder / "e")},
        ],
        folder / "two",
    )  # fmt: skip


def one(folder: Path, name: str) -> Path:
    """The same recipes by one process."""
    run = folder / "one" / name
    with file_lock(folder / ".lock", wait=True):
        if not run.exists():
            train(recipes(folder)[name], run, cache=folder / "cache")
    return run


def curve(run: Path) -> list[tuple[str, int, float]]:
    figures = ("loss", "nll", "norm", "perplexity")
    return [
        (name, line["step"], line[name]) for line in log(run) for name in figures if name in line
    ]


def alike(run: Path, other: Path) -> None:
    mine, theirs = curve(run), curve(other)
    assert len(mine) > 10
    assert [each[:2] for each in mine] == [each[:2] for each in theirs]
    assert [each[2] for each in mine] == pytest.approx([each[2] for each in theirs], rel=1e-5)


@pytest.mark.parametrize(
    "name",
    [
        "transformer",
        "accumulated",
        "packed",
        "rnn, ema",
        "frozen at first",
        "carried",
        "carried, distilled",
        "distilled",
    ],
)
def test_two_processes_have_the_loss_curve_of_one(name, folder, two):
    assert [rank[name]["error"] for rank in two] == [None, None]
    alike(folder / name, one(folder, name))


@pytest.mark.parametrize(
    "name",
    [
        "sharded",
        "sharded, recomputed",
        "sharded, packed",
        "sharded, sampled",
        "sharded, distilled",
    ],
)
def test_a_sharded_model_has_the_loss_curve_of_one_process(name, folder, two):
    assert [rank[name]["error"] for rank in two] == [None, None]
    alike(folder / name, one(folder, name))


def test_a_rank_may_have_no_token_to_mask(folder, two):
    assert [rank["empty texts"]["error"] for rank in two] == [None, None]
    full = [[bool({*rows} & {*range(9)}) for rows in rank["empty texts"]["rows"]] for rank in two]
    assert {*zip(*full, strict=True)} >= {(False, False), (True, False)}
    assert all(tensor.isfinite().all() for tensor in weights(folder / "e").values())


def test_ranks_see_each_example_once(folder, two):
    """In every update all ranks together have the rows of one process, each once."""
    recipe = read_recipe(recipes(folder)["transformer"])
    shares = [rank["transformer"]["rows"] for rank in two]
    assert len(shares[0]) == recipe.train.max_steps
    (job,) = jobs(folder, ["transformer"], run=str(folder / "rows of one"))
    for mine, theirs, every in zip(*shares, processes.work_on(job, 0)["rows"], strict=True):
        assert sorted(mine + theirs) == sorted(every)


def test_only_rank_0_reports_events(two):
    assert "validation" in two[0]["transformer"]["events"]
    assert two[1]["transformer"]["events"] == []


def test_a_signal_to_one_rank_stops_all_and_the_run_resumes_exactly(folder, two):
    """Both ranks save at the same update; the resumed run has the same bits, with dropout."""
    for rank in two:
        assert rank["stopped"]["code"] == 143
        assert len(rank["stopped"]["rows"]) == 5
        assert rank["resumed"]["error"] is None
    assert same(weights(folder / "dropped"), weights(folder / "stopped"))
    assert log(folder / "dropped") == log(folder / "stopped")


def test_a_sharded_run_resumes_exactly(folder, two):
    assert two[0]["sharded, stopped"]["code"] == 143
    assert two[0]["sharded, resumed"]["error"] is None
    assert same(weights(folder / "sharded"), weights(folder / "parts"))


@pytest.mark.parametrize("name", ["transformer", "sharded", "carried"])
def test_one_process_resumes_the_checkpoint_of_two(name, folder, two, tmp_path):
    """A run saved by two processes and finished by one equals that of one process."""
    run = without_its_end(folder / name, tmp_path / "run")
    train(recipes(folder)[name], run, cache=folder / "cache", resume=True)
    alike(run, one(folder, name))


def without_its_end(run: Path, copy: Path) -> Path:
    shutil.copytree(run, copy)
    shutil.rmtree(store.step_folder(copy, 12))
    return copy


def test_ranks_that_differ_are_refused(two):
    for rank in two:
        assert rank["another rate"]["code"] == 2
        assert (
            "train.learning_rate = 0.5 at rank 1 for 0.001 at rank 0"
            in rank["another rate"]["error"]
        )
        assert (
            "wanted one recipe, one corpus and one version in all processes; got data = "
            in rank["other data"]["error"]
        )
        assert "at rank 1 for" in rank["other data"]["error"]


def test_settings_for_one_process_are_refused(two):
    for rank in two:
        assert "train.cuda_graphs: wanted false with several processes" in rank["replay"]["error"]
        assert (
            "train.batch_tokens: wanted data.context_length times the 2 processes"
            in rank["one lane"]["error"]
        )
    assert "wanted a folder without checkpoints" in two[0]["not over another"]["error"]
    assert (
        "rank 1 of 2: wanted an answer of every other; got none from rank 0"
        in two[1]["not over another"]["error"]
    )


def test_a_hanging_rank_ends_the_run_in_time(folder):
    (job,) = jobs(folder, ["transformer"], run=str(folder / "frozen"))
    job["recipe"] = table(STILL, STILL, distributed_timeout=3)
    both = processes.started(
        2, [job | {"end": {"rank": 1, "update": 3, "signal": signal.SIGSTOP}}], folder / "freeze"
    )
    try:
        output, _ = both[0].communicate(timeout=processes.LIMIT)
    finally:
        processes.end(both)
    became = json.loads((folder / "freeze" / "done-0.json").read_text())["transformer"]
    assert (
        "rank 0 of 2: wanted an answer of every other; got none from rank 1" in became["error"]
    ), output
    assert became["code"] == 1
    assert len(became["rows"]) == 3
    assert 2 < became["waited"] < 30


def torchrun(world: int, *arguments: object, restarts: int = 0) -> subprocess.CompletedProcess:
    options = ["--standalone", f"--nproc-per-node={world}", f"--max-restarts={restarts}"]
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *options, *map(str, arguments)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=processes.LIMIT,
        check=False,
    )


def test_the_command_under_torchrun(folder):
    recipe = folder / "recipe.toml"
    data = '[data]\ntrain = ["{0}", "{0}"]\nsource = {{tokenizer = "bytes"}}\ntarget = {{tokenizer = "bytes"}}\n'
    recipe.write_text(
        data.format(PAIRS["train"][0])
        + '[model]\nencoder = {kind = "rnn", dim = 16}\ndecoder = {kind = "rnn", dim = 16}\n'
        + "[train]\nmax_steps = 4\nwarmup_steps = 2\nlog_every = 2\nbatch_tokens = 256\n"
    )
    made = torchrun(
        2, "-m", "regard", "train", recipe, "--out", folder / "command", "--cache", folder / "cache"
    )
    assert made.returncode == 0, made.stderr
    assert made.stdout.split() == [str(folder / "command" / "step-00000004")]
    assert made.stderr.count("step 4/4") == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["transformer", "sharded"])
def test_after_a_killed_rank_torchrun_restarts_to_the_same_weights(name, folder, two):
    run = folder / f"killed {name}"
    (job,) = jobs(
        folder,
        [name],
        run=str(run),
        resume=True,
        end={"rank": 1, "update": 7, "signal": signal.SIGKILL},
    )
    (folder / "killed.json").write_text(json.dumps([job]))
    ended = torchrun(2, processes.__file__, folder / "killed.json", restarts=2)
    assert ended.returncode == 0, ended.stderr
    assert "failed (exitcode: -9)" in ended.stderr
    assert same(weights(folder / name), weights(run))


@pytest.mark.slow
def test_a_frozen_rank_ends_the_whole_job(folder):
    """Also the frozen process, which does not react to a signal that can be caught."""
    end = {"rank": 1, "update": 3, "signal": signal.SIGSTOP}
    (job,) = jobs(folder, ["transformer"], run=str(folder / "stopped for good"), end=end)
    job["recipe"] = table(STILL, STILL, distributed_timeout=3)
    (folder / "frozen.json").write_text(json.dumps([job]))
    ended = torchrun(2, processes.__file__, folder / "frozen.json")
    assert ended.returncode == 1
    assert "rank 0 of 2: wanted an answer of every other" in (folder / "done-0.json").read_text()
    listed = subprocess.run(
        ["ps", "-eo", "args"], capture_output=True, text=True, check=True
    ).stdout
    assert str(folder / "frozen.json") not in listed


@pytest.mark.slow
def test_four_processes_and_checkpoints_between_one_two_and_four(folder, two):
    """Four processes have the loss curve of one; a checkpoint of any number resumes with any other."""
    names = ["transformer", "sharded", "carried"]

    def going_on(name: str, before: Path, label: str) -> dict:
        run = without_its_end(before, folder / f"{name} {label}")
        (job,) = jobs(folder, [name], run=str(run), resume=True)
        return job | {"name": run.name}

    begun = [
        job | {"name": f"{job['name']} on 4", "run": f"{job['run']} on 4"}
        for job in jobs(folder, names)
    ]
    resumed = [going_on(name, folder / name, "of 2 on 4") for name in names]
    resumed += [going_on(name, one(folder, name), "of 1 on 4") for name in names]
    four = processes.done(4, begun + resumed, folder / "four")
    again = [going_on(name, folder / f"{name} on 4", "of 4 on 2") for name in names]
    again += [going_on(name, one(folder, name), "of 1 on 2") for name in names]
    found = four + processes.done(2, again, folder / "again")
    assert [rank[name]["error"] for rank in found for name in rank] == [None] * (4 * 9 + 2 * 6)
    for name in names:
        alone = going_on(name, folder / f"{name} on 4", "of 4 on 1")
        train(alone["recipe"], alone["run"], cache=folder / "cache", resume=True)
        for label in ("on 4", "of 2 on 4", "of 1 on 4", "of 4 on 2", "of 1 on 2", "of 4 on 1"):
            alike(folder / f"{name} {label}", one(folder, name))


def test_a_single_process_does_not_communicate(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    with process_group("cpu", 1) as group:
        assert group is SINGLE_PROCESS
        assert group.all_gather([1.0, 2.0]) == [[1.0, 2.0]]
        group.check_equal({"anything": 1})


WRONG = {
    "no rank": {"WORLD_SIZE": "2"},
    "no number": {"WORLD_SIZE": "two", "RANK": "0", "LOCAL_RANK": "0"},
    "beyond the last": {"WORLD_SIZE": "2", "RANK": "2", "LOCAL_RANK": "0"},
}


@pytest.mark.parametrize("name", WRONG)
def test_an_environment_that_torchrun_did_not_make_is_refused(name, monkeypatch):
    for key in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(key, raising=False)
    for key, value in WRONG[name].items():
        monkeypatch.setenv(key, value)
    with (
        pytest.raises(
            InvalidArgument, match=r"ranks: wanted RANK, WORLD_SIZE, LOCAL_RANK in the environment"
        ),
        process_group("cpu", 1),
    ):
        pass


def test_missing_ranks_are_reported_in_time(monkeypatch):
    (port,) = processes.free_ports(1)
    there = {
        "WORLD_SIZE": "2",
        "RANK": "1",
        "LOCAL_RANK": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    for key, value in there.items():
        monkeypatch.setenv(key, value)
    with (
        pytest.raises(RegardError, match="rank 1 of 2: wanted to meet the others"),
        process_group("cpu", 1),
    ):
        pass


def test_store_keys_of_earlier_processes_are_ignored():
    """A store that outlived earlier processes holds their keys; here the other ranks connect before rank 0."""
    store = torch.distributed.HashStore()
    for key, value in {
        "name": "before",
        "before/1": "a",
        "before/2": "b",
        "before/answers": "a b",
    }.items():
        store.set(f"regard/{key}", value)
    with ThreadPoolExecutor() as pool:
        others = [pool.submit(module._private_store, store, rank, 3, 30) for rank in (1, 2)]
        while store.get("regard/before/1") == b"a" or store.get("regard/before/2") == b"b":
            time.sleep(0.01)
        first = module._private_store(store, 0, 3, 30)
        first.set("here", "now")
        assert [other.result(30).get("here") for other in others] == [b"now", b"now"]
    assert not store.check(["regard/before/here"])


def test_fsdp_needs_transformer_blocks():
    with pytest.raises(
        RegardError, match=r"train.fsdp: wanted false with model.encoder.kind = 'rnn'"
    ):
        read_recipe(table(RNN, RNN, fsdp=True))
    with pytest.raises(RegardError, match=r"train.fsdp: wanted nothing with unfreeze_after"):
        read_recipe(table(fsdp=True, freeze=["encoder.*"], unfreeze_after=1))


def test_gradient_buckets_depend_on_the_model_alone(monkeypatch):
    """Last layers first, within the size of a bucket, each weight once; also after unfreezing."""
    monkeypatch.setattr(module, "BUCKET", 4 * 230)
    model = torch.nn.Sequential(*(torch.nn.Linear(10, 20) for _ in range(5)))
    model[0].requires_grad_(False)
    gradients = module.GradientBuckets(model, SINGLE_PROCESS)
    gradients.expect()
    names = {parameter: name for name, parameter in model.named_parameters()}
    assert [[names[p] for p in bucket] for bucket in gradients.buckets] == [
        [f"{layer}.bias", f"{layer}.weight"] for layer in (4, 3, 2, 1)
    ]
    model.requires_grad_(True)
    gradients.expect()
    assert [names[p] for p in gradients.buckets[-1]] == ["0.bias", "0.weight"]


@pytest.mark.parametrize(("lanes", "refused"), [(1, True), (2, False), (3, False)])
def test_each_process_needs_a_lane_of_text(monkeypatch, tmp_path, lanes, refused):
    (tmp_path / "text.txt").write_text("some text\n")
    text = TEXT | {"train": str(tmp_path / "text.txt"), "valid": str(tmp_path / "text.txt")}
    settings = SHORT | {"carry_state": True, "batch_tokens": lanes * TEXT["context_length"]}
    recipe = read_recipe({"data": text, "model": {"decoder": STILL_RNN}, "train": settings})
    monkeypatch.setattr(module.ProcessGroup, "check_equal", lambda *given: None)
    with pytest.raises(RegardError, match="a lane of text in each") if refused else nullcontext():
        check_ranks(recipe, module.ProcessGroup(0, 2), "cpu")


def test_each_weight_announces_its_gradient_once():
    """Buckets are sent while others are still computed; weights that are arranged again do not announce it twice."""
    model = torch.nn.Sequential(torch.nn.Linear(10, 20), torch.nn.Linear(20, 5))
    model[0].requires_grad_(False)
    gradients = module.GradientBuckets(model, SINGLE_PROCESS)
    for trained in (model[1], model):
        trained.requires_grad_(True)
        gradients.expect()
        assert {
            len(parameter._post_accumulate_grad_hooks) for parameter in trained.parameters()
        } == {1}
