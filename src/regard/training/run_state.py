"""Where a run stands, and what of it is not known yet."""

from dataclasses import dataclass, field, replace

from regard.kernels.triton_launch import HostFuture
from regard.model.interfaces import CarriedState
from regard.training.schedules import ValidationHistory


@dataclass(frozen=True)
class RunState:
    """Where a run stands between two updates."""

    step: int = 0  # updates made
    epoch: int = 0
    batch: int = 0  # batches of this epoch taken
    tokens: int = 0  # predictions trained on, in all
    skipped: int = 0  # updates in a row that gave no finite gradient
    loss_since: float = 0.0  # summed since the last line of the log
    tokens_since: int = 0
    course: ValidationHistory = field(default_factory=ValidationHistory)
    checked: bool = True  # whether all is done that was due at this step: validation, where there is one

    def counting(self, tokens: int, loss: float) -> "RunState":
        """With an update that changed the weights, on so many tokens."""
        return replace(
            self,
            tokens=self.tokens + tokens,
            skipped=0,
            loss_since=self.loss_since + loss,
            tokens_since=self.tokens_since + tokens,
        )


@dataclass(frozen=True)
class PendingUpdate:
    """An update whose loss and gradient's norm nobody has looked at yet."""

    step: int  # its number
    tokens: int
    told: HostFuture
    carried: CarriedState | None  # into the next, if it counts
