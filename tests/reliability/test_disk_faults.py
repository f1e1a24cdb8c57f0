"""Every file call of a save fails in every way, and the power fails after every one: a whole checkpoint is found."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from support import file_faults
from support.file_faults import FAULTS, SCENARIOS
from support.power_loss import Disk, write_tree

COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        sys.platform != "linux" or COMPILER is None,
        reason="preloads a library that is compiled here",
    ),
]
SOURCE = Path(file_faults.__file__)
MEMORY = Path("/dev/shm")  # where a thousand saves need no disk


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The recorded calls of each save, and what became of a save with each fault."""
    name = tmp_path_factory.mktemp("faults").name
    folder = (
        MEMORY / f"{name}-{os.getpid()}"
        if os.access(MEMORY, os.W_OK)
        else tmp_path_factory.mktemp("saves")
    )
    folder.mkdir(exist_ok=True)
    library = folder / "file_faults.so"
    flags = ["-O1", "-shared", "-fPIC", "-o", library, SOURCE.with_suffix(".c"), "-ldl"]
    subprocess.run([COMPILER, *map(str, flags)], check=True, timeout=120)
    environment = os.environ | {"LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1"}
    try:
        ended = subprocess.run(
            [sys.executable, str(SOURCE), str(folder)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert ended.returncode == 0, ended.stderr[-2000:]
        (folder / "outcomes.jsonl").write_text(ended.stdout)
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def outcomes(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / "outcomes.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_at_every_call_of_a_save_leaves_a_whole_checkpoint(fault, outcomes):
    """An error is told, with its remedy, and the checkpoint before is found; or the save went on, and is found."""
    for scenario in SCENARIOS:
        rows = [each for each in outcomes if (each["save"], each["fault"]) == (scenario, fault)]
        assert len(rows) == rows[0]["of"] > 50
        assert {each["found"] for each in rows} <= ({1.0, 2.0} if fault != "short write" else {2.0})
        assert [each["left"] for each in rows if each["left"]] == []
        told = [each["message"] for each in rows if each["message"] is not None]
        if fault == "short write":
            assert told == []
        elif fault == "SIGKILL":
            assert told == ["status 9"] * len(rows)
        else:
            assert [
                each
                for each in told
                if "Earlier checkpoints are intact: make room, and resume." not in each
            ] == []
            assert [each for each in rows if each["message"] is None and each["found"] != 2.0] == []
            assert len(told) > len(rows) / 2


def test_every_kind_of_call_is_made_to_fail(outcomes):
    kinds = Counter(each["which"] for each in outcomes)
    assert {"open", "read", "write", "fsync", "close", "rename", "mkdir", "unlink"} <= set(kinds)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_after_a_power_loss_at_any_moment_the_newest_whole_checkpoint_loads(
    scenario, folder, tmp_path
):
    recorded = folder / "recorded"
    disk = Disk.of(recorded / f"{scenario}.before", str(recorded / scenario))
    calls = (recorded / f"{scenario}.calls").read_text().splitlines()
    seen, found = set(), []
    for number, call in enumerate(["sync\t" + disk.root + "\t\t0\t", *calls]):
        disk.call(call)
        for tree in disk.after_power_loss():
            if (key := str(sorted(tree.items()))) in seen:
                continue
            seen.add(key)
            run = tmp_path / str(len(seen))
            run.mkdir()
            write_tree(tree, run)
            found.append((number, file_faults.found(run)))
    assert {value for _, value in found} == {1.0, 2.0}, found
    (at_the_end,) = {
        file_faults.found(_written(tree, tmp_path / f"end {i}"))
        for i, tree in enumerate(disk.after_power_loss())
    }
    assert at_the_end == 2.0
    assert len(seen) > 20


def _written(tree, run: Path) -> Path:
    run.mkdir()
    write_tree(tree, run)
    return run
