"""The folder of a run: created or reopened, writable, and visible to all ranks."""

import os
from pathlib import Path

from regard.checkpoint import store
from regard.core.atomic_io import named_os_errors, remove_leftovers
from regard.core.errors import InvalidArgument
from regard.training.distributed import ProcessGroup
from regard.training.telemetry.log_file import LOG_FILE

# The step of a checkpoint, its files by name, and the problems of damaged later checkpoints.
Checkpoint = tuple[int, dict[str, bytes], list[str]]


def open_run(run: Path, *, resume: bool, process_group: ProcessGroup) -> Checkpoint | None:
    """Create the folder of a run, or find the checkpoint to resume from. All ranks must see the same folder."""
    if process_group.single:
        return _open_run(run, resume)
    checkpoint = _open_run(run, resume) if process_group.is_main else None
    probe, mark = run / ".ranks.tmp", os.getpid()
    if process_group.is_main:
        probe.write_text(str(mark))
    try:
        mark, step = map(int, process_group.all_gather([mark, -1 if checkpoint is None else checkpoint[0]])[0])
        visible = probe.exists() and probe.read_text() == str(mark)
        blind = [str(rank) for rank, (sees,) in enumerate(process_group.all_gather([visible])) if not sees]
    finally:
        if process_group.is_main:
            probe.unlink(missing_ok=True)
    if blind:
        raise InvalidArgument(
            str(run),
            wanted="a folder that all processes see",
            got=f"one that rank {', '.join(blind)} does not",
            remedy="Put it on a disk that the machines share.",
        )
    if process_group.is_main or step < 0:
        return checkpoint
    return step, store.read(store.step_folder(run, step)), []


def _open_run(run: Path, resume: bool) -> Checkpoint | None:
    with named_os_errors(run, "a folder to write to"):
        run.mkdir(parents=True, exist_ok=True)
        probe = run / f".{os.getpid()}.tmp"
        probe.write_bytes(b"")
        probe.unlink()
    if resume:
        remove_leftovers(run)
        return store.newest(run)
    if store.steps(run):
        raise InvalidArgument(
            str(run),
            wanted="a folder without checkpoints",
            got=f"{len(store.steps(run))} of them",
            remedy="Continue with --resume, or choose another folder.",
        )
    (run / LOG_FILE).unlink(missing_ok=True)
    return None
