"""Figures of a run for TensorBoard and Weights & Biases, beside the log.jsonl that is always written.

A logger is opened before any work is done, so what is missing is told at once. Later nothing that goes wrong in one can
stop a run: it is told once, and that logger is left alone from then on.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from regard.core.errors import InvalidArgument, MissingExtra

Event = dict[str, Any]
Tell = Callable[[Event], None]


class Logger(Protocol):
    def write(self, step: int, figures: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files in the run's own folder: tensorboard --logdir RUN."""

    def __init__(self, run: Path, settings: Mapping[str, Any], step: int | None) -> None:
        try:
            writer = import_module("torch.utils.tensorboard").SummaryWriter
        except ImportError:
            raise MissingExtra("tensorboard", "tensorboard", "train.loggers = ['tensorboard']") from None
        if step is None:
            shutil.rmtree(run / "tensorboard", ignore_errors=True)  # of a run that never came to a checkpoint
        self.writer = writer(str(run / "tensorboard"), purge_step=None if step is None else step + 1)

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class WeightsAndBiases:
    """A run of the project "regard" there, or of $WANDB_PROJECT; resumed under the name that it began with."""

    def __init__(self, run: Path, settings: Mapping[str, Any], step: int | None) -> None:
        try:
            wandb = import_module("wandb")
        except ImportError:
            raise MissingExtra("wandb", "wandb", "train.loggers = ['wandb']") from None
        known = run / "wandb.id"
        if step is None or not known.exists():
            known.write_text(uuid4().hex[:8])
        try:
            self.run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", "regard"),
                id=known.read_text(),
                resume="allow",
                name=run.name,
                dir=str(run),
                config=dict(settings),
            )
        except Exception as error:
            raise InvalidArgument(
                "train.loggers",
                wanted="Weights & Biases to answer",
                got=" ".join(str(error).split()) or type(error).__name__,
                remedy="Log in with `wandb login`, set WANDB_MODE=offline, or leave it out.",
            ) from error

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        self.run.log(dict(figures), step=step)

    def close(self) -> None:
        self.run.finish()


LOGGERS: dict[str, Callable[[Path, Mapping[str, Any], int | None], Logger]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
}


@contextmanager
def logged(
    names: Sequence[str], run: Path, settings: Mapping[str, Any], step: int | None, tell: Tell
) -> Iterator[Tell]:
    """`tell`, and beside it these loggers; `step` is where a resumed run goes on."""
    open_: dict[str, Logger] = {}

    def safely(name: str, call: Callable[[Logger], None]) -> None:
        try:
            call(open_[name])
        except Exception as error:
            del open_[name]
            tell({"event": "warning", "message": f"{name} is left alone from here on: {error!r}"})

    def told(event: Event) -> None:
        tell(event)
        if event["event"] in ("train", "validation"):
            figures = dict(_figures(event))
            for name in list(open_):
                safely(name, lambda logger: logger.write(event["step"], figures))

    try:
        for name in names:
            open_[name] = LOGGERS[name](run, settings, step)
        yield told
    finally:
        for name in list(open_):
            safely(name, lambda logger: logger.close())


def _figures(event: Event) -> Iterator[tuple[str, float]]:
    """Numbers by name: train/loss, validation/bleu."""
    for key, value in event.items():
        if isinstance(value, int | float) and not isinstance(value, bool) and key != "step":
            yield f"{event['event']}/{key}", float(value)
