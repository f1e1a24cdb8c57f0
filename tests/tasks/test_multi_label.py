"""Several labels for each example: decisions, probabilities, metrics, looks."""

import json
import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import regard
from regard.core.errors import InvalidArgument, InvalidData, InvalidRecipe
from regard.data.fields.base import make_field
from regard.recipe.recipe import Recipe
from support.regressions import ENCODERS, label_splits, labelled, recipe

TEXTS = ["the film", "vote goal plot", "a new", "law"]
WEAK = {"max_steps": 12, "validate_every": 6}  # training that leaves errors to measure


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a model that is trained when it is first asked for."""
    folder = tmp_path_factory.mktemp("several labels")
    made = {}

    def get(**keys):
        name = f"{keys}"
        if name not in made:
            made[name] = folder / str(len(made))
            regard.train(recipe("labels", **keys), made[name], data=label_splits())
        return made[name]

    return get


def logits_of(model, text):
    _, batch = model.encode(text)
    with torch.inference_mode():
        return model.model(batch)[0]


@pytest.mark.parametrize("encoder", ENCODERS)
def test_a_model_learns_all_labels_of_a_text(trained, encoder):
    model = regard.load(trained(encoder=encoder))
    rows = labelled(40, 5)
    outputs = model.outputs([text for text, _ in rows])
    right = sum(
        list(output.labels) == labels for (output,), (_, labels) in zip(outputs, rows, strict=True)
    )
    assert right >= 38
    assert any(not labels for _, labels in rows)


@pytest.mark.parametrize("threshold", [0.05, 0.5, 0.9])
def test_the_labels_are_those_whose_probability_reaches_the_threshold(trained, threshold):
    model = regard.load(trained(train=WEAK))
    names = model.target.names
    outputs = model.outputs(TEXTS, threshold=threshold, scores=True)
    for text, (output,) in zip(TEXTS, outputs, strict=True):
        logits = logits_of(model, text)
        probabilities = {name: float(p) for name, p in zip(names, logits.sigmoid(), strict=True)}
        chosen = tuple(name for name in names if probabilities[name] >= threshold)
        assert output.labels == chosen
        assert output.text == "|".join(chosen)
        assert output.probabilities == pytest.approx(probabilities, rel=1e-4)
        shares = list(output.probabilities.values())
        assert shares == sorted(shares, reverse=True)
        each = [p if name in chosen else 1 - p for name, p in probabilities.items()]
        assert output.score == pytest.approx(sum(map(math.log, each)), rel=1e-4)


def test_scores_are_the_log_probabilities_of_the_decisions(trained):
    model = regard.load(trained(train=WEAK))
    [score, none] = model.score(TEXTS[:2], ["cinema|sport", ""])
    signs = torch.tensor([1.0, -1.0, 1.0])
    assert score.tokens == ("cinema", "law and order", "sport")
    expected = F.logsigmoid(signs * logits_of(model, TEXTS[0])).tolist()
    assert score.log_probabilities == pytest.approx(expected, abs=1e-5)
    absent = F.logsigmoid(-logits_of(model, TEXTS[1])).tolist()
    assert none.log_probabilities == pytest.approx(absent, abs=1e-5)
    with pytest.raises(InvalidArgument, match="wanted one of the 3 labels"):
        model.score(TEXTS[:1], ["cinema|weather"])


def test_metrics_equal_their_definitions(trained):
    model = regard.load(trained(train=WEAK))
    names = model.target.names
    rows = labelled(60, 2)
    outputs = model.outputs([text for text, _ in rows])
    predicted = np.array([[name in output.labels for name in names] for (output,) in outputs])
    gold = np.array([[name in labels for name in names] for _, labels in rows])
    both = (predicted & gold).sum(0)
    of_each = 2 * both / (predicted.sum(0) + gold.sum(0))
    precisions = []
    for column, name in enumerate(names):
        scores = np.array([output.probabilities[name] for (output,) in outputs])
        found = [gold[scores >= score, column].mean() for score in scores[gold[:, column]]]
        precisions.append(np.mean(found))
    logits = torch.stack([logits_of(model, text) for text, _ in rows])
    expected = {
        "loss": float(F.binary_cross_entropy_with_logits(logits, torch.tensor(gold).float())),
        "accuracy": (predicted == gold).all(1).mean(),
        "f1": of_each.mean(),
        "f1_micro": 2 * both.sum() / (predicted.sum() + gold.sum()),
        "hamming_loss": (predicted != gold).mean(),
        "average_precision": np.mean(precisions),
    }
    report = regard.evaluate(model, split="test", metrics=list(expected))
    for name, value in expected.items():
        assert report[name].value == pytest.approx(value, rel=1e-4), name
    assert 0 < report["f1"].low < report["f1"].value < report["f1"].high <= 1
    assert [row["label"] for row in report.systems[0].classes] == list(names)
    assert [row["references"] for row in report.systems[0].classes] == gold.sum(0).tolist()


@pytest.mark.parametrize("monitor", ["f1", "average_precision", "accuracy"])
def test_a_validation_has_the_monitored_metric(trained, monitor):
    folder = trained(train={**WEAK, "monitor": monitor})
    events = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    last = [event for event in events if event["event"] == "validation"][-1]
    model = regard.load(folder / f"step-{last['step']:08}")
    report = regard.evaluate(model, split="valid", metrics=["loss", monitor, "average_precision"])
    for name in ("loss", monitor, "average_precision"):
        assert last[name] == pytest.approx(report[name].value, rel=1e-4), name


def test_a_file_of_outputs_is_evaluated_like_the_model(trained, tmp_path):
    model = regard.load(trained(train=WEAK))
    written = tmp_path / "outputs.txt"
    names = ["accuracy", "f1", "f1_micro"]
    report = regard.evaluate(model, split="test", metrics=names, outputs=written)
    both = regard.evaluate([model, written], split="test", metrics=names)
    for name in names:
        assert both.systems[1].metrics[name].value == report[name].value
    with pytest.raises(InvalidArgument, match="which a file of outputs does not have"):
        regard.evaluate([model, written], split="test", metrics=["average_precision"])


def test_label_smoothing_moves_targets_towards_one_half(trained):
    plain = regard.load(trained(train=WEAK))
    smooth = regard.load(trained(train={**WEAK, "label_smoothing": 0.5}))
    assert logits_of(smooth, TEXTS[1]).abs().mean() < logits_of(plain, TEXTS[1]).abs().mean()


def test_a_resumed_training_equals_an_uninterrupted_one(tmp_path):
    table = recipe("labels", train={"validate_every": 10, "max_steps": 20})
    whole = regard.train(table, tmp_path / "whole", data=label_splits())
    shorter = recipe("labels", train={"validate_every": 10, "max_steps": 10})
    regard.train(shorter, tmp_path / "parts", data=label_splits())
    parts = regard.train(table, tmp_path / "parts", data=label_splits(), resume=True)
    for name, weight in whole.model.state_dict().items():
        assert parts.model.state_dict()[name].equal(weight), name


def test_an_ensemble_has_the_mean_of_the_probabilities(trained):
    folders = [trained(train=WEAK), trained(encoder="bag", train=WEAK)]
    together = regard.load(folders).outputs(TEXTS)
    each = [regard.load(folder).outputs(TEXTS) for folder in folders]
    for (output,), (one,), (other,) in zip(together, *each, strict=True):
        for name, probability in output.probabilities.items():
            mean = (one.probabilities[name] + other.probabilities[name]) / 2
            assert probability == pytest.approx(mean, rel=1e-4)


def test_a_look_shows_the_labels_with_their_probabilities(trained):
    model = regard.load(trained())
    seen = regard.look(model, "vote goal")
    [[output]] = model.outputs(["vote goal"])
    assert seen.output.tokens == output.labels == ("law and order", "sport")
    shares = [math.exp(score) for score in seen.output.scores]
    assert shares == pytest.approx([output.probabilities[name] for name in output.labels])
    of_sport = regard.look(model, "vote goal", output="sport")
    assert of_sport.output.tokens == ("sport",)
    assert torch.allclose(
        of_sport.attributions()["pool"], seen.attributions(of=1)["pool"], atol=1e-6
    )
    nothing = regard.look(model, "the a")
    assert nothing.output.tokens == ()
    assert nothing.as_dict()["output"]["labels"] == ()
    assert "vote" in seen.to_html()


def test_a_look_at_a_bare_model_shows_the_likely_labels(trained):
    model = regard.load(trained())
    _, batch = model.encode("vote goal")
    assert regard.look(model.model, batch).output.tokens == ("1", "2")


WRONG_SETTINGS = {
    "R-Drop": ({"train": {"r_drop": 1.0}}, "train.r_drop"),
    "another loss": ({"train": {"loss": "mse"}}, "train.loss: wanted 'binary_cross_entropy'"),
    "perplexity": ({"train": {"monitor": "perplexity"}}, "train.monitor"),
    "a threshold of 1": ({"decode": {"threshold": 1.0}}, "decode.threshold"),
}


@pytest.mark.parametrize("wrong", WRONG_SETTINGS)
def test_settings_without_meaning_are_refused(wrong):
    settings, named = WRONG_SETTINGS[wrong]
    table = recipe("labels", train=settings.get("train"))
    table["data"] |= {"train": ["train.x", "train.y"], "valid": ["valid.x", "valid.y"]}
    with pytest.raises(InvalidRecipe, match=named):
        Recipe.of(table | {"decode": settings.get("decode", {})})


def test_only_a_model_of_several_labels_has_a_threshold(tmp_path):
    table = recipe("label")
    table["data"] |= {"train": ["train.x", "train.y"], "valid": ["valid.x", "valid.y"]}
    with pytest.raises(InvalidRecipe, match=r"decode\.threshold: wanted nothing"):
        Recipe.of(table | {"decode": {"threshold": 0.3}})


def test_a_label_that_is_not_in_the_training_data_is_refused(tmp_path):
    data = label_splits(20)
    data["valid"][3] = ("the film", ["cinema", "weather"])
    with pytest.raises(InvalidData, match="'weather'"):
        regard.train(recipe("labels"), tmp_path / "run", data=data)


@pytest.mark.parametrize(
    "names", [(), ("a",), ("a", "b c"), ("a|b", "c"), ("[a", "b"), (" a",), ("a", "ü\n")]
)
def test_the_text_of_labels_is_read_as_the_same_labels(names):
    field = make_field("labels")
    spelled = field.spell(names)
    assert field.parse(spelled) == tuple(name.strip() for name in names)
