"""Losses of predicted numbers and of several labels, summed over predictions.

Like the losses of tokens (`regard.tasks.losses`), these are sums: an update divides the sums of
all its batches once, by the number of predictions in them. A prediction is one number, or one
decision about one label, of one example. A target that the mask rules out counts nothing and gives
no gradient, whatever it holds. Sums are computed in float32 at least, also under autocast.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch.nn import functional as F

from regard.core.errors import InvalidArgument
from regard.core.registry import Registry
from regard.core.shapes import Bool, Float, Int, Tensor

OF_NUMBERS = ("regress", "predict_vectors", "forecast", "generate_vectors")  # tasks
SMALLEST_VARIANCE = 1e-6  # as in torch.nn.functional.gaussian_nll_loss


class OutputLoss(NamedTuple):
    """Sums over predictions: the training loss, and the loss of validation, which has no gradient.

    They differ where training weights or smooths targets. `predictions` stays on the device: reading
    it waits for the device, which a caller that knows the number of targets need not do.
    """

    loss: Float[Tensor, ""]
    nll: Float[Tensor, ""]
    predictions: Int[Tensor, ""]


def squared_error_loss(
    predicted: Float[Tensor, "B K"],
    gold: Float[Tensor, "B K"],
    mask: Bool[Tensor, "B K"] | None = None,
) -> OutputLoss:
    """The sum of squared errors. `mask` is true for the targets that are known."""
    numbers, targets = _known(predicted, gold, mask)
    return _summed(F.mse_loss(numbers, targets, reduction="none"), mask)


def smooth_l1_loss(
    predicted: Float[Tensor, "B K"],
    gold: Float[Tensor, "B K"],
    mask: Bool[Tensor, "B K"] | None = None,
    *,
    beta: float = 1.0,
) -> OutputLoss:
    """The sum of absolute errors minus beta / 2; below beta, of their squares divided by 2 beta."""
    _check_at_least_zero("beta", beta)
    numbers, targets = _known(predicted, gold, mask)
    return _summed(F.smooth_l1_loss(numbers, targets, reduction="none", beta=beta), mask)


def huber_loss(
    predicted: Float[Tensor, "B K"],
    gold: Float[Tensor, "B K"],
    mask: Bool[Tensor, "B K"] | None = None,
    *,
    delta: float = 1.0,
) -> OutputLoss:
    """Huber's loss: half of the squared error up to `delta`, and linear beyond.

    https://doi.org/10.1214/aoms/1177703732
    """
    if not 0 < delta < float("inf"):
        raise InvalidArgument(
            "delta",
            wanted="a number above 0",
            got=f"{delta}",
            remedy="Use 1.0, in units of the targets that the model sees.",
        )
    numbers, targets = _known(predicted, gold, mask)
    return _summed(F.huber_loss(numbers, targets, reduction="none", delta=delta), mask)


def gaussian_loss(
    mean: Float[Tensor, "B K"],
    log_variance: Float[Tensor, "B K"],
    gold: Float[Tensor, "B K"],
    mask: Bool[Tensor, "B K"] | None = None,
) -> OutputLoss:
    """The negative log-likelihood of targets, in nats, under normal distributions.

    A variance below 1e-6 counts as 1e-6, but keeps its gradient: the model can leave this range.
    """
    means, targets = _known(mean, gold, mask)
    logs = _wide(log_variance)
    if mask is not None:
        logs = logs.masked_fill(~mask, 0.0)
    missing = (math.log(SMALLEST_VARIANCE) - logs.detach()).clamp(min=0.0)
    logs = logs + missing
    squared = (means - targets).square()
    return _summed(0.5 * (logs + squared * torch.exp(-logs) + math.log(2 * math.pi)), mask)


def multilabel_loss(
    logits: Float[Tensor, "B L"],
    gold: Float[Tensor, "B L"] | Int[Tensor, "B L"] | Bool[Tensor, "B L"],
    mask: Bool[Tensor, "B L"] | None = None,
    *,
    positive_weights: Float[Tensor, " L"] | None = None,
    label_smoothing: float = 0.0,
) -> OutputLoss:
    """The binary cross-entropy of every label, each a decision of its own; targets are 0 to 1.

    positive_weights   multiply the loss of each label where it is a target, against rare labels
    label_smoothing    the share of each target that is replaced by 1/2
    """
    if not 0 <= label_smoothing < 1:
        raise InvalidArgument(
            "label_smoothing",
            wanted="a number from 0 to below 1",
            got=f"{label_smoothing}",
            remedy="Use 0.1, or leave it out.",
        )
    scores, targets = _known(logits, gold, mask)
    plain = F.binary_cross_entropy_with_logits(scores, targets, reduction="none")
    if positive_weights is None and not label_smoothing:
        return _summed(plain, mask)
    smooth = targets * (1 - label_smoothing) + label_smoothing / 2
    weights = None if positive_weights is None else positive_weights.to(scores)
    weighted = F.binary_cross_entropy_with_logits(
        scores, smooth, reduction="none", pos_weight=weights
    )
    loss, _, predictions = _summed(weighted, mask)
    return OutputLoss(loss, _summed(plain, mask).nll, predictions)


def cross_entropy_loss(logits: Float[Tensor, "B L"], gold: Int[Tensor, " B"]) -> OutputLoss:
    """The cross-entropy of one label for each example."""
    return _summed(F.cross_entropy(_wide(logits), gold, reduction="none"), None)


@dataclass(frozen=True)
class TargetLosses:
    """A loss of the user's own.

    function   (outputs of the model, targets) -> the loss of each target, as an array of the same shape
    """

    function: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, outputs: Tensor, gold: Tensor, mask: Tensor | None = None) -> OutputLoss:
        given = _wide(outputs)
        if mask is not None:
            given, gold = _known(outputs, gold, mask)
        losses = self.function(given, gold)
        if not isinstance(losses, Tensor) or losses.shape != gold.shape:
            shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise InvalidArgument(
                "train.loss",
                wanted=f"a loss for each target, an array of shape {tuple(gold.shape)}",
                got=str(shape),
                remedy="Do not sum: Regard sums over the batch, and divides once.",
            )
        return _summed(losses, mask)


@dataclass(frozen=True)
class LossKind:
    """A loss that [train] names.

    tasks     the names of the tasks that it applies to
    compute   (outputs of the model, targets) -> the sums over a batch
    smooths   whether `compute` takes label_smoothing
    """

    tasks: tuple[str, ...]
    compute: Callable[..., OutputLoss]
    smooths: bool = False


LOSSES: Registry[LossKind] = Registry(
    "loss",
    {
        "mse": LossKind(OF_NUMBERS, squared_error_loss),
        "mae": LossKind(OF_NUMBERS, partial(smooth_l1_loss, beta=0.0)),
        "huber": LossKind(OF_NUMBERS, huber_loss),
        "binary_cross_entropy": LossKind(("multi_label",), multilabel_loss, smooths=True),
        "cross_entropy": LossKind(("classify",), cross_entropy_loss, smooths=True),
    },
)


def _wide(values: Tensor) -> Tensor:
    """In float32, or as they are where they are wider."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _known(predicted: Tensor, gold: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Predictions and targets, with 0 for both where the target is not known: it may be NaN."""
    wide = _wide(predicted)
    targets = gold.to(wide.dtype)
    if mask is None:
        return wide, targets
    return wide.masked_fill(~mask, 0.0), targets.masked_fill(~mask, 0.0)


def _summed(losses: Tensor, mask: Tensor | None) -> OutputLoss:
    if mask is None:
        predictions = torch.full((), losses.numel(), dtype=torch.int64, device=losses.device)
    else:
        losses = losses.masked_fill(~mask, 0.0)
        predictions = mask.sum()
    total = losses.sum()
    return OutputLoss(total, total.detach(), predictions)


def _check_at_least_zero(name: str, value: float) -> None:
    if not 0 <= value < float("inf"):
        raise InvalidArgument(
            name,
            wanted="a number of at least 0",
            got=f"{value}",
            remedy="Use 1.0, in units of the targets that the model sees.",
        )
