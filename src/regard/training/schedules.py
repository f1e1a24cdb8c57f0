"""The learning rate at each step: a pure function of the step, or of how validation went."""

from dataclasses import dataclass, field, replace
from math import cos, isnan, pi, sqrt
from typing import Any

from regard.training.config import TrainConfig


def rate_at(step: int, config: TrainConfig, factor: float = 1.0) -> float:
    """The rate of the step-th update, counted from 0: rising evenly to its peak, then falling as the schedule says."""
    warm = min(1.0, (step + 1) / config.warmup_steps) if config.warmup_steps else 1.0
    past = max(0, step + 1 - config.warmup_steps)
    match config.lr_schedule:
        case "inverse_root":
            fall = sqrt(max(1, config.warmup_steps) / max(1, config.warmup_steps, step + 1))
        case "cosine":
            fall = 0.5 * (1 + cos(pi * min(1.0, past / max(1, config.max_steps - config.warmup_steps))))
        case "linear":
            fall = 1 - min(1.0, past / max(1, config.max_steps - config.warmup_steps))
        case _:  # constant, and plateau, which falls by its factor
            fall = 1.0
    low = config.min_learning_rate if config.lr_schedule in ("cosine", "linear") else 0.0
    return (
        low + (config.learning_rate * factor - low) * warm * fall
        if warm == 1.0
        else config.learning_rate * factor * warm
    )


@dataclass(frozen=True)
class Validation:
    """How the model does on data it was not trained on."""

    values: dict[str, float]
    samples: list[dict[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class ValidationHistory:
    """How validation has gone: what early stopping, keep-best and the plateau schedule go by."""

    best: float | None = None  # the metric's best value
    best_step: int | None = None
    waited: int = 0  # validations since then
    factor: float = 1.0  # what the plateau schedule has made of the rate

    def after(self, value: float, step: int, config: TrainConfig, *, higher_is_better: bool) -> "ValidationHistory":
        known = None if self.best is None or isnan(self.best) else self.best
        better = known is None or (value > known if higher_is_better else value < known)
        if better:
            return replace(self, best=value, best_step=step, waited=0)
        waited = self.waited + 1
        falls = config.lr_schedule == "plateau" and waited % config.plateau == 0
        best_step = step if value == self.best else self.best_step  # of equals the last, which has learned for longest
        return replace(self, best_step=best_step, waited=waited, factor=self.factor * (0.5 if falls else 1.0))

    def over(self, config: TrainConfig) -> bool:
        return config.patience is not None and self.waited >= config.patience

    def as_dict(self) -> dict[str, Any]:
        return dict(vars(self))
