"""The checkpoints of a run: its folder, saving, resuming bit-exactly,
and averaging the last ones.
"""

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path

from regard.checkpoint import store
from regard.checkpoint.format import TRAINING_STATE, TRAINING_TENSORS, WEIGHTS, regular_steps
from regard.core.atomic_io import displaced, file_lock, named_os_errors, saving
from regard.core.errors import CheckpointRefused, InvalidArgument
from regard.core.shapes import Tensor
from regard.model.weights import WeightSum, load_weights, weights_of
from regard.tasks.carried import CarriedStates
from regard.training.distributed import ProcessGroup
from regard.training.environment import changed_environment, environment
from regard.training.frozen_rows import FrozenRows
from regard.training.optimizers import WeightAverage
from regard.training.run_state import RunState
from regard.training.telemetry.log_file import LOG_FILE, EventHandler, truncate_log
from regard.training.update import Updater

LOCK = "run.lock"  # held while a process trains; marks a folder as that of a run
# Temporary files and folders of interrupted writes.
_LEFTOVER = re.compile(r"\.(step-\d{8}|averaged|log\.jsonl|ranks)(\.\d+)?\.tmp")
# The step of a checkpoint, its files by name, and the problems of damaged later checkpoints.
Checkpoint = tuple[int, dict[str, bytes], list[str]]


@contextmanager
def open_run(
    run: Path, *, resume: bool, process_group: ProcessGroup
) -> Iterator[Checkpoint | None]:
    """Create and lock the folder of a run, and find the checkpoint to resume from.

    All ranks must see the same folder.

    A folder of other files, and one that another process trains in, is refused.
    """
    with _locked(run) if process_group.is_main else nullcontext():
        checkpoint = None
        if process_group.is_main:
            checkpoint = _find_checkpoint(run, resume)
        if process_group.single:
            yield checkpoint
            return
        step = _agree(run, checkpoint, process_group)
        if not process_group.is_main and step >= 0:
            checkpoint = step, store.read(store.step_folder(run, step)), []
        yield checkpoint


def _agree(run: Path, checkpoint: Checkpoint | None, process_group: ProcessGroup) -> int:
    """The step that rank 0 resumes from, or -1. A folder that not all ranks see is refused."""
    probe = run / ".ranks.tmp"
    mark = os.getpid()
    if process_group.is_main:
        probe.write_text(str(mark))
    try:
        own_step = -1 if checkpoint is None else checkpoint[0]
        mark, step = map(int, process_group.all_gather([mark, own_step])[0])
        visible = probe.exists() and probe.read_text() == str(mark)
        blind = [
            str(rank)
            for rank, (sees,) in enumerate(process_group.all_gather([visible]))
            if not sees
        ]
    finally:
        if process_group.is_main:
            probe.unlink(missing_ok=True)
    if blind:
        wanted = "a folder that all processes see"
        got = f"one that rank {', '.join(blind)} does not"
        raise InvalidArgument(
            str(run), wanted=wanted, got=got, remedy="Put it on a disk that the machines share."
        )
    return step


@contextmanager
def _locked(run: Path) -> Iterator[None]:
    with ExitStack() as stack:
        with named_os_errors(run, "a folder to write to"):
            is_new = not run.exists()
            run.mkdir(parents=True, exist_ok=True)
            other = None
            is_run = (run / LOCK).exists() or bool(store.steps(run))
            if not is_run:
                other = next(run.iterdir(), None)
            if other is not None:
                wanted = "the folder of a run, or an empty or a new one"
                got = f"one that holds {other.name!r}"
                raise InvalidArgument(
                    str(run), wanted=wanted, got=got, remedy="Choose another folder."
                )
            stack.enter_context(file_lock(run / LOCK, wait=False, keep=True))
        try:
            yield
        except BaseException:
            if is_new:
                _remove_unused(run)
            raise


def _remove_unused(run: Path) -> None:
    """Remove the folder of a run in which nothing was saved, while its lock is held."""
    with suppress(OSError):
        if [path.name for path in run.iterdir()] == [LOCK]:
            (run / LOCK).unlink()
            run.rmdir()


def _find_checkpoint(run: Path, resume: bool) -> Checkpoint | None:
    if resume:
        remove_leftovers(run)
        return store.newest(run)
    if steps := store.steps(run):
        wanted = "a folder without checkpoints"
        remedy = "Continue it with resume=True (--resume), or choose another folder."
        raise InvalidArgument(str(run), wanted=wanted, got=f"{len(steps)} of them", remedy=remedy)
    (run / LOG_FILE).unlink(missing_ok=True)
    return None


def remove_leftovers(run: Path) -> None:
    """Remove temporary files and folders of interrupted writes, and nothing else.

    A checkpoint that was being replaced when the process ended gets its name back.
    """
    for step in store.displaced_steps(run):
        displaced(store.step_folder(run, step)).rename(store.step_folder(run, step))
    for leftover in [path for path in run.iterdir() if _LEFTOVER.fullmatch(path.name)]:
        if leftover.is_dir() and not leftover.is_symlink():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)


class Checkpointer:
    """Writes and reads the checkpoints of a run: weights, optimizer state, moving average,
    carried state, progress.
    """

    def __init__(
        self,
        run: Path,
        texts: Mapping[str, str],  # of every checkpoint: configuration, vocabularies, card
        data_key: str,
        updater: Updater,
        ema: WeightAverage | None,
        frozen_rows: FrozenRows,
        lanes: int | None,
        on_event: EventHandler,
    ) -> None:
        self.run = run
        self.texts = texts
        self.data_key = data_key
        self.lanes = lanes or 0
        self.on_event = on_event
        self.updater = updater
        self.ema = ema
        self.frozen_rows = frozen_rows
        self.model = updater.model
        self.process_group = updater.process_group
        self.sharded = updater.sharded
        distillation = updater.objective.distillation
        self.teachers = [] if distillation is None else list(distillation.fingerprints)
        self.environment = environment(updater.device, updater.process_group.world_size)

    def save(self, state: RunState, carried: CarriedStates | None) -> None:
        """Write a checkpoint and remove those that are not kept.

        All ranks call this; rank 0 writes.
        """
        tensors = self.updater.optimizer.state_tensors()
        tensors |= self.frozen_rows.tensors()
        if carried is not None:
            gather = self.process_group.gather_lanes
            tensors |= {
                f"carried.{name}": gather(tensor, self.lanes)
                for name, tensor in carried.tensors().items()
            }
        if self.ema is not None:
            tensors |= {
                f"weight.{name}": tensor.detach().clone()
                for name, tensor in self.model.named_parameters()
            }
        averaged = nullcontext() if self.ema is None else self.ema.swapped(self.model)
        with averaged:
            weights = weights_of(self.model)
            if self.sharded is not None:
                tensors = self.sharded.gather(tensors)
                weights = self.sharded.gather(weights)
            if self.process_group.is_main:
                self._write(state, {WEIGHTS: weights, TRAINING_TENSORS: tensors})

    def _write(self, state: RunState, tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        folder = store.step_folder(self.run, state.step)
        best = state.history.best_step
        progress = asdict(state) | {"data": self.data_key, "environment": self.environment}
        if self.teachers:
            progress["teachers"] = self.teachers
        texts = {**self.texts, TRAINING_STATE: store.as_json(progress)}
        with saving(folder, "save a checkpoint"):
            store.write(folder, texts, tensors)
            regular = regular_steps(self.run)[-self.updater.config.keep_checkpoints :]
            kept = regular if best is None else [*regular, best]
            store.prune(self.run, kept)
        self.on_event({"event": "checkpoint", "step": state.step, "folder": str(folder)})

    def resume(
        self, content: Mapping[str, bytes], folder: Path, carried: CarriedStates | None
    ) -> tuple[RunState, CarriedStates | None]:
        """Restore weights, moving average and optimizer from a checkpoint;
        its progress and carried states.
        """
        state = store.document(content, TRAINING_STATE, folder)
        state.pop("data", None)
        if (before := state.pop("teachers", [])) != self.teachers:
            raise CheckpointRefused(
                f"{folder}: wanted the teachers that the run began with, whose weights have the "
                f"hashes {before!r:.200}; got {self.teachers!r:.200}. Put them back: "
                "train.distillation.teachers."
            )
        changed = changed_environment(
            state.pop("environment", None), self.environment, folder / TRAINING_STATE
        )
        run_state = RunState.from_dict(state, folder / TRAINING_STATE)
        saved = store.tensors(content, TRAINING_TENSORS, folder)
        weights = store.tensors(content, WEIGHTS, folder)
        wanted = []
        if self.ema is not None:
            wanted += [f"weight.{name}" for name in self.ema.names]
        if carried is not None:
            wanted += [f"carried.{name}" for name in carried.tensors()]
        if missing := [name for name in wanted if name not in saved]:
            raise CheckpointRefused(
                f"{folder / TRAINING_TENSORS}: wanted {missing[0]}; got "
                "none. Use another checkpoint."
            )
        if self.sharded is not None:
            saved = self.sharded.scatter(saved)
            weights = self.sharded.scatter(weights)
        if self.ema is not None:
            for mean, name in zip(self.ema.means, self.ema.names, strict=True):
                mean.copy_(weights[name])
            weights |= {name: saved[f"weight.{name}"] for name in self.ema.names}
        load_weights(self.model, weights, folder)
        self.updater.optimizer.load_state_tensors(saved, folder / TRAINING_TENSORS)
        self.frozen_rows.load(saved, folder / TRAINING_TENSORS)
        if run_state.tokens and not self.updater.optimizer.state_tensors():
            raise CheckpointRefused(
                f"{folder / TRAINING_TENSORS}: wanted optimizer state; got none. Use another one."
            )
        if carried is not None:
            device = self.updater.device
            lanes = {name: saved[f"carried.{name}"].to(device) for name in carried.tensors()}
            carried = carried.with_tensors(lanes).reorder(
                self.process_group.own_lanes(self.lanes).to(device)
            )
        if self.process_group.is_main:
            truncate_log(self.run, run_state.step)
            if changed is not None:
                self.on_event({"event": "warning", "message": changed})
        return run_state, carried


def average_checkpoints(run: Path, count: int, on_event: EventHandler) -> dict[str, Tensor]:
    """The mean of the weights of a run's last `count` regular checkpoints;
    damaged ones are left out.
    """
    total = WeightSum()
    for step in regular_steps(run)[-count:]:
        folder = store.step_folder(run, step)
        try:
            content = store.read(folder)
        except CheckpointRefused as error:
            on_event({"event": "warning", "message": f"left out of the average: {error}"})
            continue
        total.add(store.tensors(content, WEIGHTS, folder))
    return total.mean()
