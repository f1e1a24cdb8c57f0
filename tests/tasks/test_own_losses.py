"""Losses that [train] names: those of the package, and registered ones."""

import pytest
import torch
from torch.nn import functional as F

import regard
from regard.core.errors import InvalidArgument, InvalidRecipe
from regard.recipe.recipe import Recipe
from regard.tasks.output_losses import LOSSES
from support.regressions import label_splits, number_splits, recipe

TRAIN = {"max_steps": 6, "validate_every": 3}


def squared(outputs, targets):
    return (outputs - targets) ** 2


def binary(outputs, targets):
    return F.softplus(outputs) - targets * outputs


def negative_log_likelihood(outputs, targets):
    return -outputs.log_softmax(-1).gather(1, targets[:, None])[:, 0]


# By task: a function, the name of the loss that it repeats, and what trains it.
EQUAL = {
    "regress": (squared, "mse", "number", number_splits),
    "multi_label": (binary, "binary_cross_entropy", "labels", label_splits),
    "classify": (
        negative_log_likelihood,
        "cross_entropy",
        "label",
        lambda: {
            split: [(text, "long" if len(text) > 20 else "short") for text, _ in rows]
            for split, rows in number_splits().items()
        },
    ),
}


@pytest.fixture
def registered():
    names = []

    def register(name, loss, task):
        regard.register.loss(name, loss, task=task)
        names.append(name)

    yield register
    for name in names:
        LOSSES.unregister(name)


@pytest.mark.parametrize("task", EQUAL)
def test_a_registered_loss_trains_as_the_one_that_it_repeats(task, registered, tmp_path):
    loss, name, target, splits = EQUAL[task]
    registered("own", loss, task)
    models = []
    for chosen in (name, "own"):
        table = recipe(target, train={**TRAIN, "loss": chosen, "label_smoothing": 0.0})
        # The biases of an attention pool's keys have no gradient but rounding errors.
        table["model"]["pool"] = {"kind": "mean"}
        models.append(regard.train(table, tmp_path / chosen, data=splits()))
    built_in, own = (model.model.state_dict() for model in models)
    for key, weight in built_in.items():
        assert torch.allclose(own[key], weight, atol=1e-4), key
    values = [
        regard.evaluate(model, split="valid", metrics=["loss"])["loss"].value for model in models
    ]
    assert values[1] == pytest.approx(values[0], rel=1e-4)
    # Its checkpoint names the loss, and asks for what registers it.
    LOSSES.unregister("own")
    with pytest.raises(regard.CheckpointRefused, match="the loss 'own'"):
        regard.load(tmp_path / "own")
    LOSSES.register("own", LOSSES["mse"])


def test_a_loss_that_is_summed_already_is_refused(registered, tmp_path):
    registered("own", lambda outputs, targets: squared(outputs, targets).sum(), "regress")
    table = recipe(train={**TRAIN, "loss": "own"})
    with pytest.raises(InvalidArgument, match="an array of shape"):
        regard.train(table, tmp_path / "run", data=number_splits())


def test_a_loss_of_a_task_without_such_losses_is_refused():
    with pytest.raises(
        InvalidArgument,
        match=r"'classify', 'regress', .*; got 'tag'",
    ):
        regard.register.loss("own", squared, task="tag")


WRONG_BESIDE_A_LOSS = {
    "label smoothing": ("number", {"label_smoothing": 0.2}, r"train\.label_smoothing"),
    "R-Drop": ("label", {"r_drop": 1.0}, r"train\.r_drop"),
    "another task": ("labels", {}, r"train\.loss: wanted 'binary_cross_entropy'"),
}


@pytest.mark.parametrize("wrong", WRONG_BESIDE_A_LOSS)
def test_settings_that_a_registered_loss_does_not_have_are_refused(wrong, registered):
    target, settings, named = WRONG_BESIDE_A_LOSS[wrong]
    registered("own", squared, "regress" if target != "label" else "classify")
    table = recipe(target, train={**TRAIN, "loss": "own", **settings})
    table["data"] |= {"train": ["train.x", "train.y"], "valid": ["valid.x", "valid.y"]}
    with pytest.raises(InvalidRecipe, match=named):
        Recipe.of(table)
