"""Metrics of a run for TensorBoard and Weights & Biases, in addition to log.jsonl.

Loggers are opened before any work, so a missing package is reported at once. A logger that fails
later never stops the run: it is reported once and not used again.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from regard.core.errors import InvalidArgument, MissingExtra
from regard.training.telemetry.log_file import Event, EventHandler


class Logger(NamedTuple):
    """An open experiment logger."""

    write: Callable[[int, Mapping[str, float]], object]  # the metrics of a step
    close: Callable[[], object]


def tensorboard(run: Path, settings: Mapping[str, Any], step: int | None) -> Logger:
    """Event files in the run's folder: tensorboard --logdir RUN."""
    try:
        writer_class = import_module("torch.utils.tensorboard").SummaryWriter
    except ImportError:
        raise MissingExtra(
            "tensorboard", "tensorboard", "train.loggers = ['tensorboard']"
        ) from None
    if step is None:
        # The events of a run that never had a checkpoint.
        shutil.rmtree(run / "tensorboard", ignore_errors=True)
    first_step = None if step is None else step + 1
    writer = writer_class(str(run / "tensorboard"), purge_step=first_step)

    def write(step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            writer.add_scalar(name, value, step)

    return Logger(write, writer.close)


def weights_and_biases(run: Path, settings: Mapping[str, Any], step: int | None) -> Logger:
    """A run of the project "regard" or $WANDB_PROJECT, resumed under its first id."""
    try:
        wandb = import_module("wandb")
    except ImportError:
        raise MissingExtra("wandb", "wandb", "train.loggers = ['wandb']") from None
    id_file = run / "wandb.id"
    if step is None or not id_file.exists():
        id_file.write_text(uuid4().hex[:8])
    project = os.environ.get("WANDB_PROJECT", "regard")
    run_id = id_file.read_text()
    try:
        logger = wandb.init(
            project=project,
            id=run_id,
            resume="allow",
            name=run.name,
            dir=str(run),
            config=dict(settings),
        )
    except Exception as error:
        got = " ".join(str(error).split()) or type(error).__name__
        remedy = "Log in with `wandb login`, set WANDB_MODE=offline, or leave it out."
        raise InvalidArgument(
            "train.loggers", wanted="Weights & Biases to answer", got=got, remedy=remedy
        ) from error
    return Logger(lambda step, metrics: logger.log(dict(metrics), step=step), logger.finish)


LOGGERS = {"tensorboard": tensorboard, "wandb": weights_and_biases}


@contextmanager
def logged(
    names: Sequence[str],
    run: Path,
    settings: Mapping[str, Any],
    step: int | None,
    on_event: EventHandler,
) -> Iterator[EventHandler]:
    """An event handler that calls `on_event` and writes metrics to these loggers.

    `step` is that of a resumed run.
    """
    active: dict[str, Logger] = {}

    def safely(name: str, call: Callable[[Logger], object]) -> None:
        try:
            call(active[name])
        except Exception as error:
            del active[name]
            on_event(
                {
                    "event": "warning",
                    "message": f"{name} failed and is not used any more: {error!r}",
                }
            )

    def handle(event: Event) -> None:
        on_event(event)
        if event["event"] in ("train", "validation"):
            metrics = dict(_metrics(event))
            for name in list(active):
                safely(name, lambda logger: logger.write(event["step"], metrics))

    try:
        for name in names:
            active[name] = LOGGERS[name](run, settings, step)
        yield handle
    finally:
        for name in list(active):
            safely(name, lambda logger: logger.close())


def _metrics(event: Event) -> Iterator[tuple[str, float]]:
    """The numbers of an event by name: train/loss, validation/bleu."""
    for key, value in event.items():
        if isinstance(value, int | float) and not isinstance(value, bool) and key != "step":
            yield f"{event['event']}/{key}", float(value)
