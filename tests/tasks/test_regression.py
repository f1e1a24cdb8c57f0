"""Regressions: numbers in the units of the data, from the recipe to the server's answer."""

import json
from math import isnan

import numpy as np
import pytest
import torch

import regard
from regard.core.errors import InvalidArgument, InvalidData, InvalidRecipe
from regard.data.fields.number import number_text
from regard.recipe.recipe import Recipe
from support.regressions import ENCODERS, number_splits, numbers, recipe

TEXTS = ["good film", "awful awful plot the actor", "a", "great great great great fine the film"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a model that is trained when it is first asked for."""
    folder = tmp_path_factory.mktemp("regressions")
    made = {}

    def get(size=1, **keys):
        name = f"{size} {keys}"
        if name not in made:
            made[name] = folder / str(len(made))
            regard.train(recipe(**keys), made[name], data=number_splits(size))
        return made[name]

    return get


def arrays(model, rows):
    """The predictions for these rows, and the references."""
    outputs = model.outputs([text for text, _ in rows])
    predicted = np.array([output.numbers for (output,) in outputs])
    gold = np.array([np.atleast_1d(target) for _, target in rows], dtype=float)
    return predicted, gold


@pytest.mark.parametrize("encoder", ENCODERS)
def test_a_regression_learns_numbers_in_the_units_of_the_data(trained, encoder):
    model = regard.load(trained(encoder=encoder))
    predicted, gold = arrays(model, numbers(40, 3))
    explained = 1 - ((predicted - gold) ** 2).sum() / ((gold - gold.mean()) ** 2).sum()
    assert explained > 0.8


def test_several_numbers_of_different_scale_are_learned_together(trained):
    model = regard.load(trained(size=2))
    predicted, gold = arrays(model, numbers(40, 3, 2))
    assert predicted.shape == (40, 2)
    explained = 1 - ((predicted - gold) ** 2).sum(0) / ((gold - gold.mean(0)) ** 2).sum(0)
    assert (explained > 0.6).all()


def test_without_normalization_the_model_gives_the_numbers_themselves(tmp_path):
    rows = [(text, target / 500) for text, target in numbers(100, 0)]
    model = regard.train(
        recipe(normalize=False), tmp_path / "run", data={"train": rows, "valid": rows[:20]}
    )
    _, batch = model.encode(TEXTS[1])
    with torch.inference_mode():
        expected = float(model.model(batch))
    [[output]] = model.outputs([TEXTS[1]])
    assert output.numbers == (pytest.approx(expected),)


def test_a_text_in_a_batch_has_the_numbers_that_it_has_alone(trained):
    model = regard.load(trained())
    for text, (together,) in zip(TEXTS, model.outputs(TEXTS), strict=True):
        [[alone]] = model.outputs([text])
        assert together.numbers == pytest.approx(alone.numbers, rel=1e-5)
        assert [float(part) for part in together.text.split()] == pytest.approx(
            together.numbers, rel=1e-6
        )


@pytest.mark.parametrize(("loss", "size"), [("mse", 1), ("mae", 1), ("huber", 1), ("mse", 2)])
def test_the_loss_is_that_of_normalized_numbers(trained, loss, size):
    """By its definition, from the outputs in the original units; of several numbers, the mean over them."""
    folder = trained(size, train={"loss": loss})
    model = regard.load(folder)
    report = regard.evaluate(model, split="test", metrics=["loss"])
    predicted, gold = arrays(model, numbers(40, 2, size))
    train = np.array([np.atleast_1d(target) for _, target in numbers(240, 0, size)])
    errors = np.abs(predicted - gold) / train.std(0)
    each = {
        "mse": errors**2,
        "mae": errors,
        "huber": np.where(errors < 1, errors**2 / 2, errors - 0.5),
    }
    assert report["loss"].value == pytest.approx(each[loss].mean(), rel=1e-4)


@pytest.mark.parametrize("size", [1, 2])
def test_metrics_equal_their_definitions(trained, size):
    model = regard.load(trained(size=size))
    report = regard.evaluate(model, split="test")
    predicted, gold = arrays(model, numbers(40, 2, size))
    errors = predicted - gold
    variance = ((gold - gold.mean(0)) ** 2).sum(0)
    ranked = []
    for column in range(size):
        one = _average_ranks(predicted[:, column])
        other = _average_ranks(gold[:, column])
        ranked.append(np.corrcoef(one, other)[0, 1])
    expected = {
        "mse": (errors**2).mean(),
        "mae": np.abs(errors).mean(),
        "r2": (1 - (errors**2).sum(0) / variance).mean(),
        "spearman": np.mean(ranked),
    }
    for name, value in expected.items():
        result = report[name]
        assert result.value == pytest.approx(value, rel=1e-5), name
        assert result.low < result.value < result.high


def _average_ranks(values):
    return np.array([(values < each).sum() + ((values == each).sum() + 1) / 2 for each in values])


def test_validation_logs_metrics_in_the_units_of_the_data_and_no_perplexity(trained):
    folder = trained(train={"monitor": "spearman"})
    events = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    last = [event for event in events if event["event"] == "validation"][-1]
    assert not [event for event in events if "perplexity" in event]
    model = regard.load(folder / f"step-{last['step']:08}")
    report = regard.evaluate(model, split="valid", metrics=["loss", "mse", "mae", "r2", "spearman"])
    for name in ("loss", "mse", "mae", "r2", "spearman"):
        assert last[name] == pytest.approx(report[name].value, rel=1e-4), name


def test_a_metric_that_is_undefined_is_none_and_not_nan(trained, tmp_path):
    (tmp_path / "sources").write_text("good film\nbad film\n")
    (tmp_path / "references").write_text("500\n500\n")
    report = regard.evaluate(
        str(trained()),
        sources=tmp_path / "sources",
        references=[tmp_path / "references"],
        metrics=["mse", "r2"],
    )
    assert report["r2"].value is None
    assert report["r2"].low is None
    assert report["mse"].value > 0
    assert not isnan(report["mse"].value)


def test_a_resumed_training_equals_an_uninterrupted_one(tmp_path):
    table = recipe(train={"validate_every": 10, "max_steps": 20})
    whole = regard.train(table, tmp_path / "whole", data=number_splits())
    shorter = recipe(train={"validate_every": 10, "max_steps": 10})
    regard.train(shorter, tmp_path / "parts", data=number_splits())
    parts = regard.train(table, tmp_path / "parts", data=number_splits(), resume=True)
    for name, weight in whole.model.state_dict().items():
        assert parts.model.state_dict()[name].equal(weight), name


def test_an_ensemble_gives_the_mean_of_its_members(trained):
    folders = [trained(), trained(train={"loss": "mae"})]
    together = regard.load(folders).outputs(TEXTS)
    each = [regard.load(folder).outputs(TEXTS) for folder in folders]
    for (output,), (one,), (other,) in zip(together, *each, strict=True):
        assert output.numbers[0] == pytest.approx((one.numbers[0] + other.numbers[0]) / 2, rel=1e-5)


def test_a_look_shows_the_numbers_and_attributes_them(trained):
    model = regard.load(trained(size=2))
    [[output]] = model.outputs([TEXTS[1]])
    seen = regard.look(model, TEXTS[1])
    assert seen.output.numbers == pytest.approx(output.numbers)
    assert seen.as_dict()["output"]["numbers"] == pytest.approx(output.numbers)
    assert seen.output.text in seen.to_html()
    assert seen["pool"].weights().shape == (1, 1, 6)
    both = seen.attributions()["pool"]
    parts = [seen.attributions(of=place)["pool"] for place in range(2)]
    assert torch.allclose(both, parts[0] + parts[1], atol=1e-6)
    assert both.abs().sum() > 0


def test_a_look_at_a_bare_model_shows_what_it_gives(trained):
    model = regard.load(trained())
    _, batch = model.encode(TEXTS[0])
    with torch.inference_mode():
        expected = float(model.model(batch))
    seen = regard.look(model.model, batch)
    assert seen.output.numbers == (pytest.approx(expected),)


WRONG_SETTINGS = {
    "label smoothing": ({"label_smoothing": 0.1}, "train.label_smoothing"),
    "R-Drop": ({"r_drop": 1.0}, "train.r_drop"),
    "a teacher": ({"distillation": {"teachers": ["runs/other"]}}, "train.distillation"),
    "another loss": ({"loss": "cross_entropy"}, "train.loss: wanted 'mse' or 'mae' or 'huber'"),
    "perplexity": ({"monitor": "perplexity"}, "train.monitor"),
}


@pytest.mark.parametrize("wrong", WRONG_SETTINGS)
def test_settings_without_meaning_are_refused(wrong):
    settings, named = WRONG_SETTINGS[wrong]
    table = recipe(train=settings)
    table["data"] |= {"train": ["train.x", "train.y"], "valid": ["valid.x", "valid.y"]}
    with pytest.raises(InvalidRecipe, match=named):
        Recipe.of(table)


@pytest.mark.parametrize("cell", ["nan", "inf", "-inf", "1e999", "", "many", "[1, [2]]", "true"])
def test_what_is_no_finite_number_is_refused_with_its_line(tmp_path, cell):
    lines = [f"{text}\t{target}" for text, target in numbers(8, 0)]
    lines[4] = f"good film\t{cell}"
    (tmp_path / "train.tsv").write_text("\n".join(["text\tscore", *lines]) + "\n")
    table = recipe(column="score")
    table["data"]["source"]["column"] = "text"
    table["data"]["train"] = str(tmp_path / "train.tsv")
    with pytest.raises(InvalidData, match=r"train\.tsv, line 6: wanted a number"):
        regard.train(table, tmp_path / "run")


def test_examples_with_other_counts_of_numbers_are_refused(tmp_path):
    rows = numbers(8, 0)
    rows[5] = ("good film", [1.0, 2.0])
    with pytest.raises(InvalidArgument, match="row 6: wanted 1 for each example"):
        regard.train(recipe(), tmp_path / "run", data={"train": rows})
    table = tmp_path / "train.csv"
    table.write_text("text,score\ngood,1\nbad,2\ngood film,1 2\nbad film,1\n")
    from_file = recipe(column="score")
    from_file["data"]["source"]["column"] = "text"
    from_file["data"]["train"] = str(table)
    with pytest.raises(InvalidData, match=r"train\.csv, line 4: wanted 1 for each .*; got 2\."):
        regard.train(from_file, tmp_path / "other")


def test_the_studio_measures_examples_and_heads(trained):
    """By the error in the units of the data, where other models have a log-probability."""
    pytest.importorskip("msgspec", reason="needs the extra `serve`")
    from regard.studio.data import AblationStep, DataSet, ExampleMeasurement

    model = regard.load(trained(encoder="transformer"))
    data = DataSet(("test",), (), trust_data_paths=True)
    rows = numbers(40, 2)
    work = ExampleMeasurement(input="", data=data, index=3)
    [example] = work.compute(model, [work])
    predicted, gold = arrays(model, rows[3:4])
    assert example.error == pytest.approx(abs(float(predicted[0, 0] - gold[0, 0])), rel=1e-4)
    assert example.score is None
    step = AblationStep(input="", data=data)
    left = [step.compute(model, [step])[0] for _ in range(4)]
    assert left == [3, 2, 1, 0]  # two heads of the encoder and one of the pool


def test_what_a_regression_does_not_give_is_refused(trained):
    model = regard.load(trained())
    with pytest.raises(InvalidArgument, match="num_hypotheses: wanted 1"):
        model.outputs(TEXTS, num_hypotheses=2)
    with pytest.raises(InvalidArgument, match="wanted one that gives probabilities"):
        model.score(TEXTS[:1], ["500"])
    with pytest.raises(InvalidArgument, match="output: wanted none"):
        regard.look(model, TEXTS[0], output="500")


@pytest.mark.parametrize(
    ("number", "scale"),
    [
        (3.14159265, 1.0),
        (1234567890.4, 1e7),
        (1e-9, 1.0),
        (-0.0, 1.0),
        (1e30, 1e28),
        (5e-300, 1e-299),
    ],
)
def test_the_text_of_a_number_has_the_digits_of_its_scale(number, scale):
    text = number_text(number, scale)
    assert float(text) == pytest.approx(number, rel=1e-6, abs=scale * 1e-6)
    assert not text.startswith("-0")
    assert not text.endswith(".0")
