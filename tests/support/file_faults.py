"""Saves a checkpoint while one file call after another fails, and records the calls of a save.

    LD_PRELOAD=file_faults.so python tests/support/file_faults.py FOLDER

file_faults.c counts, records and fails the calls. Prints one JSON object for each fault: the scenario, the call and how
it failed, the message of the error if one was raised, and the checkpoint that is then found.
"""

import ctypes
import errno
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from regard.checkpoint import store
from regard.core.atomic_io import saving
from regard.core.errors import RegardError
from regard.training.checkpointing import remove_leftovers

SHORT_WRITE, KILL = -1, -2
FAULTS = {errno.errorcode[code]: code for code in (
    errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ESTALE, errno.EROFS,
)} | {"short write": SHORT_WRITE, "SIGKILL": KILL}  # fmt: skip


def write(run: Path, step: int, value: float) -> None:
    texts = {
        "config.json": "{}\n",
        "training.json": f'{{"step": {step}}}',
        "README.md": "# A model\n" * 40,
    }
    weights = {"w": torch.full((300,), value), "b": torch.full((7,), value)}
    store.write(store.step_folder(run, step), texts, {"model.safetensors": weights})


def beside(run: Path) -> None:
    """The next checkpoint; the one before is removed."""
    write(run, 2, 2.0)
    store.prune(run, [2])


def again(run: Path) -> None:
    """The only checkpoint, saved again at the same step."""
    write(run, 1, 2.0)


SCENARIOS: dict[str, Callable[[Path], None]] = {"beside": beside, "again": again}


def begun(run: Path) -> Path:
    """A run with a checkpoint of ones at step 1."""
    shutil.rmtree(run, ignore_errors=True)
    run.mkdir(parents=True)
    write(run, 1, 1.0)
    return run


def found(run: Path) -> float | str:
    """The value of all weights of the checkpoint that a resumed run starts from."""
    try:
        remove_leftovers(run)
        newest = store.newest(run)
        if newest is None:
            return "none"
        weights = store.tensors(newest[1], "model.safetensors", run)
        (value,) = torch.cat(list(weights.values())).unique().tolist()
        return float(value)
    except (RegardError, OSError, ValueError) as error:
        return repr(error)


class Faults:
    """The preloaded library."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(None)
        self.library.faults_calls.restype = ctypes.c_long
        self.library.faults_last.restype = ctypes.c_char_p
        self.library.faults_arm.argtypes = [ctypes.c_long, ctypes.c_int]

    def watch(self, folder: Path | None, record: int = -1) -> None:
        self.library.faults_watch(b"" if folder is None else str(folder).encode(), record)

    def saved(
        self, save: Callable[[Path], None], run: Path, call: int, fault: int
    ) -> tuple[str | None, str]:
        """Save with a fault at a call. The message of the error, if one is raised, and the name of the call."""
        self.watch(run)
        self.library.faults_arm(call, fault)
        message = None
        try:
            with saving(run, "save a checkpoint"):
                save(run)
        except RegardError as error:
            message = str(error)
        except BaseException as error:
            message = f"NOT EXPECTED: {error!r}"
        self.watch(None)
        return message, self.library.faults_last().decode()


def outcomes(folder: Path) -> Iterator[dict[str, object]]:
    faults = Faults()
    for name, save in SCENARIOS.items():
        run = begun(folder / name)
        faults.saved(save, run, 0, 0)
        count = faults.library.faults_calls()
        for call in range(1, count + 1):
            for fault, code in FAULTS.items():
                begun(run)
                if code == KILL:
                    if not (child := os.fork()):
                        faults.saved(save, run, call, code)
                        os._exit(0)
                    message, which = f"status {os.waitpid(child, 0)[1]}", "killed"
                else:
                    message, which = faults.saved(save, run, call, code)
                yield {"save": name, "call": call, "of": count, "which": which, "fault": fault, "message": message} | {
                    "found": found(run), "left": sorted(path.name for path in run.glob(".*"))
                }  # fmt: skip


def recorded(folder: Path) -> None:
    """The calls of each scenario, one in a line (FOLDER/SCENARIO.calls), and the run before them (.before)."""
    faults = Faults()
    for name, save in SCENARIOS.items():
        run = begun(folder / name)
        shutil.copytree(run, folder / f"{name}.before")
        record = os.open(folder / f"{name}.calls", os.O_WRONLY | os.O_CREAT)
        faults.watch(run, record)
        save(run)
        faults.watch(None)
        os.close(record)


if __name__ == "__main__":
    (Path(sys.argv[1]) / "recorded").mkdir(parents=True)
    recorded(Path(sys.argv[1]) / "recorded")
    for outcome in outcomes(Path(sys.argv[1]) / "failing"):
        print(json.dumps(outcome))
