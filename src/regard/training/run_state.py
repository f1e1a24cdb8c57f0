"""The progress of a run between two updates, and the update whose result is still on the device."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

from regard.core.config import fits
from regard.core.errors import CheckpointRefused
from regard.core.host_future import HostFuture
from regard.tasks.carried import CarriedStates
from regard.training.monitor import ValidationHistory


@dataclass(frozen=True)
class RunState:
    """The progress of a run between two updates, as training.json stores it."""

    step: int = 0  # updates made
    epoch: int = 0
    batch: int = 0  # batches of this epoch consumed
    tokens: int = 0  # predictions trained on
    skipped: int = 0  # consecutive updates without a finite gradient
    grad_norm: float | None = 0.0  # of the last update; None: not finite
    loss_since: float = 0.0  # summed since the last line of the log
    # Of it, the negative log-likelihood: without label smoothing, R-Drop and penalties.
    nll_since: float = 0.0
    tokens_since: int = 0
    history: ValidationHistory = field(default_factory=ValidationHistory)
    validated: bool = True  # whether the validation due at this step, if any, is done

    def counting(self, tokens: int, loss: float, nll: float, grad_norm: float) -> "RunState":
        """The state after an update that changed the weights, on so many tokens."""
        return replace(
            self,
            tokens=self.tokens + tokens,
            skipped=0,
            grad_norm=grad_norm,
            loss_since=self.loss_since + loss,
            nll_since=self.nll_since + nll,
            tokens_since=self.tokens_since + tokens,
        )

    @staticmethod
    def from_dict(values: Mapping[str, Any], where: Path) -> "RunState":
        """From the content of training.json, the file `where`.

        Values of other types are refused.
        """
        history = ValidationHistory(**_checked(ValidationHistory, values.get("history"), where))
        return RunState(**_checked(RunState, {**values, "history": history}, where))


def _checked(part: type, values: object, where: Path) -> dict[str, Any]:
    """The values of a dataclass's fields, each of its type, and no whole number below 0."""
    hints = get_type_hints(part)
    if not isinstance(values, Mapping) or values.keys() != hints.keys():
        raise CheckpointRefused(
            f"{where}: wanted {', '.join(hints)}; got {values!r:.80}. It was changed."
        )
    checked = dict(values)
    for key, hint in hints.items():
        value = values[key]
        real = float in (hint, *get_args(hint))
        if not fits(value, hint) or (type(value) is int and value < 0 and not real):
            raise CheckpointRefused(
                f"{where}: wanted {key} of a run; got {value!r:.80}. It was changed."
            )
        if type(value) is int and real:
            value = float(value)
        checked[key] = value
    return checked


@dataclass(frozen=True)
class PendingUpdate:
    """An update that the device may still be computing."""

    step: int  # counted from 1
    tokens: int
    result: HostFuture  # loss, negative log-likelihood, gradient norm
    # The recurrent states for the next update, unless this one is skipped.
    carried: CarriedStates | None
