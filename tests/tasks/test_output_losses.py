"""Losses of numbers and of several labels equal PyTorch's in value and gradient, with and without a mask."""

import math

import pytest
import torch
from torch.nn import functional as F

from regard.core.errors import InvalidArgument
from regard.tasks.output_losses import (
    gaussian_loss,
    huber_loss,
    multilabel_loss,
    smooth_l1_loss,
    squared_error_loss,
)

WEIGHTS = torch.tensor([1.0, 3.0, 0.5])


def torch_gaussian(predicted, gold):
    mean, log_variance = predicted
    return F.gaussian_nll_loss(mean, gold, log_variance.exp(), full=True, reduction="none")


def torch_multilabel(logits, gold, smoothing=0.0, weights=None):
    smooth = gold * (1 - smoothing) + smoothing / 2
    return F.binary_cross_entropy_with_logits(logits, smooth, reduction="none", pos_weight=weights)


# name: (our loss, PyTorch's for each prediction)
NUMBER_LOSSES = {
    "squared": (squared_error_loss, lambda p, g: F.mse_loss(p, g, reduction="none")),
    "smooth l1": (smooth_l1_loss, lambda p, g: F.smooth_l1_loss(p, g, reduction="none")),
    "smooth l1, 0.3": (
        lambda *args: smooth_l1_loss(*args, beta=0.3),
        lambda p, g: F.smooth_l1_loss(p, g, reduction="none", beta=0.3),
    ),
    "absolute": (
        lambda *args: smooth_l1_loss(*args, beta=0.0),
        lambda p, g: F.l1_loss(p, g, reduction="none"),
    ),
    "huber": (huber_loss, lambda p, g: F.huber_loss(p, g, reduction="none")),
    "huber, 2.5": (
        lambda *args: huber_loss(*args, delta=2.5),
        lambda p, g: F.huber_loss(p, g, reduction="none", delta=2.5),
    ),
    "gaussian": (lambda predicted, *args: gaussian_loss(*predicted, *args), torch_gaussian),
}
LABEL_LOSSES = {
    "plain": (multilabel_loss, torch_multilabel),
    "weighted": (
        lambda *args: multilabel_loss(*args, positive_weights=WEIGHTS),
        lambda p, g: torch_multilabel(p, g, weights=WEIGHTS.to(p.dtype)),
    ),
    "smoothed": (
        lambda *args: multilabel_loss(*args, label_smoothing=0.2),
        lambda p, g: torch_multilabel(p, g, 0.2),
    ),
    "both": (
        lambda *args: multilabel_loss(*args, positive_weights=WEIGHTS, label_smoothing=0.2),
        lambda p, g: torch_multilabel(p, g, 0.2, WEIGHTS.to(p.dtype)),
    ),
}
LOSSES = NUMBER_LOSSES | LABEL_LOSSES


def inputs(name, dtype=torch.float32):
    """Predictions, targets, and a mask that rules some targets out."""
    if name == "gaussian":
        predicted = torch.randn(2, 7, 3).to(dtype).requires_grad_()
    else:
        predicted = (2 * torch.randn(7, 3)).to(dtype).requires_grad_()
    gold = torch.randn(7, 3)
    if name in LABEL_LOSSES:
        gold = (gold > 0).float()
    return predicted, gold, torch.rand(7, 3) < 0.6


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("masked", [False, True])
def test_sums_and_gradients_equal_pytorchs(name, masked):
    ours, theirs = LOSSES[name]
    predicted, gold, mask = inputs(name)
    elements = theirs(predicted, gold)
    wanted = elements[mask].sum() if masked else elements.sum()
    (wanted_gradient,) = torch.autograd.grad(0.3 * wanted, predicted)
    found = ours(predicted, gold, *([mask] if masked else []))
    (gradient,) = torch.autograd.grad(0.3 * found.loss, predicted)
    torch.testing.assert_close(found.loss, wanted, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(gradient, wanted_gradient, rtol=1e-6, atol=1e-6)
    assert found.predictions == (mask.sum() if masked else 21)


@pytest.mark.parametrize("name", LOSSES)
def test_what_is_masked_may_be_anything(name):
    ours, _ = LOSSES[name]
    predicted, gold, mask = inputs(name)
    wanted = ours(predicted, gold, mask)
    (wanted_gradient,) = torch.autograd.grad(wanted.loss, predicted)
    broken = predicted.detach().masked_fill(~mask, math.inf).requires_grad_()
    found = ours(broken, gold.masked_fill(~mask, math.nan), mask)
    (gradient,) = torch.autograd.grad(found.loss, broken)
    assert found.loss == wanted.loss
    assert found.nll == wanted.nll
    torch.testing.assert_close(gradient, wanted_gradient, rtol=0, atol=0)


@pytest.mark.parametrize("name", LOSSES)
def test_a_mask_without_targets_gives_zero(name):
    ours, _ = LOSSES[name]
    predicted, gold, mask = inputs(name)
    found = ours(predicted, gold, torch.zeros_like(mask))
    found.loss.backward()
    assert found.loss == found.predictions == predicted.grad.abs().sum() == 0


@pytest.mark.parametrize("name", LOSSES)
def test_low_precision_is_summed_in_float32(name):
    ours, theirs = LOSSES[name]
    predicted, gold, _ = inputs(name, torch.bfloat16)
    found = ours(predicted, gold)
    assert found.loss.dtype == torch.float32
    torch.testing.assert_close(found.loss, theirs(predicted.float(), gold).sum())
    with torch.autocast("cpu", torch.bfloat16):
        again = ours(predicted, gold)
    torch.testing.assert_close(again.loss, found.loss, rtol=0, atol=0)
    again.loss.backward()
    assert predicted.grad.dtype == torch.bfloat16


@pytest.mark.parametrize("name", LOSSES)
def test_the_loss_of_validation_has_no_weights_and_no_gradient(name):
    ours, theirs = LOSSES[name]
    plain = torch_multilabel if name in LABEL_LOSSES else theirs
    predicted, gold, mask = inputs(name)
    for chosen in (None, mask):
        found = ours(predicted, gold, chosen)
        wanted = plain(predicted, gold)
        wanted = wanted.sum() if chosen is None else wanted[chosen].sum()
        assert not found.nll.requires_grad
        torch.testing.assert_close(found.nll, wanted.detach(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_equal_finite_differences(name):
    ours, _ = LOSSES[name]
    predicted, gold, mask = inputs(name, torch.float64)
    assert torch.autograd.gradcheck(lambda p: ours(p, gold.double(), mask).loss, predicted)


def test_parts_of_a_batch_add_up():
    for name, (ours, _) in LOSSES.items():
        predicted, gold, mask = inputs(name)
        parts = [
            ours(predicted[..., rows, :], gold[rows], mask[rows])
            for rows in (slice(0, 2), slice(2, 7))
        ]
        whole = ours(predicted, gold, mask)
        for found, wanted in zip(map(sum, zip(*parts, strict=True)), whole, strict=True):
            torch.testing.assert_close(found, wanted, msg=name)


def test_integer_and_boolean_targets_are_labels():
    logits, gold, _ = inputs("plain")
    wanted = multilabel_loss(logits, gold).loss
    assert multilabel_loss(logits, gold.bool()).loss == wanted
    assert multilabel_loss(logits, gold.long()).loss == wanted


def test_certain_predictions_have_finite_losses():
    logits = torch.tensor([[1e4, -1e4]], requires_grad=True)
    assert multilabel_loss(logits, torch.tensor([[1.0, 0.0]])).loss == 0
    wrong = multilabel_loss(logits, torch.tensor([[0.0, 1.0]])).loss
    assert wrong == 2e4
    wrong.backward()
    assert logits.grad.tolist() == [[1.0, -1.0]]


@pytest.mark.parametrize("log_variance", [-1e4, -50.0, 200.0])
def test_a_gaussian_of_extreme_variance_is_finite_and_can_recover(log_variance):
    spread = torch.tensor([[log_variance]], requires_grad=True)
    loss = gaussian_loss(torch.tensor([[1.0]]), spread, torch.tensor([[1.5]])).loss
    loss.backward()
    assert loss.isfinite()
    # The variance grows where the error is larger than it, and shrinks where it is smaller.
    assert (spread.grad < 0) == (log_variance < 0)


def test_a_gaussian_is_a_density():
    points = torch.linspace(-30, 30, 501, dtype=torch.float64)
    mean = torch.tensor([[0.7]], dtype=torch.float64)
    spread = torch.tensor([[1.1]], dtype=torch.float64)
    losses = [gaussian_loss(mean, spread, point.view(1, 1)).loss for point in points]
    density = torch.stack(losses).neg().exp()
    assert torch.trapezoid(density, points).item() == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_unusable_settings_are_refused(value):
    predicted = torch.zeros(1, 1)
    with pytest.raises(InvalidArgument, match="beta"):
        smooth_l1_loss(predicted, predicted, beta=value)
    with pytest.raises(InvalidArgument, match="delta"):
        huber_loss(predicted, predicted, delta=value)
    with pytest.raises(InvalidArgument, match="label_smoothing"):
        multilabel_loss(predicted, predicted, label_smoothing=value)


def test_settings_at_their_limits_are_refused():
    predicted = torch.zeros(1, 1)
    with pytest.raises(InvalidArgument, match="delta"):
        huber_loss(predicted, predicted, delta=0.0)
    with pytest.raises(InvalidArgument, match="label_smoothing"):
        multilabel_loss(predicted, predicted, label_smoothing=1.0)
