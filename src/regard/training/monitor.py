"""Validation during training: the monitored metric, its best value, early stopping."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any

from regard.core.metric_names import HIGHER_IS_BETTER
from regard.model.seq2seq import Model
from regard.training.config import TrainConfig


@dataclass(frozen=True)
class Validation:
    """Metrics of a model on the validation data, some of its outputs,
    and the means of its heads over their inputs.
    """

    values: dict[str, float]
    samples: list[dict[str, str]] = field(default_factory=list)
    heads: list[dict[str, Any]] = field(default_factory=list)


Validate = Callable[[Model], Validation]


@dataclass(frozen=True)
class ValidationHistory:
    """What early stopping, keeping the best checkpoint
    and the plateau schedule need of past validations.
    """

    best: float | None = None  # value of the monitored metric
    best_step: int | None = None
    waited: int = 0  # validations since the best
    factor: float = 1.0  # of the learning rate, halved by the plateau schedule

    def after(
        self, values: dict[str, float], step: int, config: TrainConfig
    ) -> "ValidationHistory":
        """The history with one more validation.

        Of equal values the last is the best: it has trained longest.

        A value that is not finite is never the best.
        """
        value = values[config.monitor]
        higher_is_better = HIGHER_IS_BETTER[config.monitor]
        if self.best is None:
            better = True
        elif higher_is_better:
            better = value > self.best
        else:
            better = value < self.best
        if better and isfinite(value):
            return replace(self, best=value, best_step=step, waited=0)
        waited = self.waited + 1
        halve = config.lr_schedule == "plateau" and waited % config.plateau == 0
        best_step = step if value == self.best else self.best_step
        factor = self.factor * 0.5 if halve else self.factor
        return replace(self, best_step=best_step, waited=waited, factor=factor)

    def exhausted(self, config: TrainConfig) -> bool:
        """Whether early stopping ends the run."""
        return config.patience is not None and self.waited >= config.patience
