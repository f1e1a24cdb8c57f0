"""The learning rate of each update:
a function of its number and of the plateau schedule's factor.
"""

from math import cos, pi, sqrt

from regard.training.config import TrainConfig


def learning_rate_at(
    step: int, config: TrainConfig, *, total_steps: int | None = None, plateau_factor: float = 1.0
) -> float:
    """The learning rate of update `step`, counted from 0: linear warm-up,
    then the configured decay.

    `total_steps` is where cosine and linear end: the run's length, `max_steps` unless epochs end
    it.
    """
    peak = config.learning_rate * plateau_factor
    warmup = config.warmup
    if step + 1 < warmup:
        return peak * ((step + 1) / warmup)
    total = total_steps or config.max_steps or 0
    done = min(1.0, max(0, step + 1 - warmup) / max(1, total - warmup))
    match config.lr_schedule:
        case "inverse_root":
            return peak * sqrt(max(1, warmup) / max(1, warmup, step + 1))
        case "cosine":
            decay = 0.5 * (1 + cos(pi * done))
        case "linear":
            decay = 1 - done
        case _:  # constant; plateau has its factor
            return peak
    return config.min_learning_rate + (peak - config.min_learning_rate) * decay
