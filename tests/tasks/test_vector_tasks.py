"""Tasks whose outputs are sequences of vectors, with every encoder of sequences."""

import json
import math

import numpy as np
import pytest
import torch

import regard
from regard.core.errors import InvalidData, InvalidRecipe
from regard.core.sequence import Vectors
from regard.data.batching import Batch
from regard.data.statistics import Statistics
from regard.evaluation.metrics import score
from regard.recipe.recipe import Recipe
from regard.tasks.kinds import TASKS
from regard.tasks.objective import Objective
from support.predictors import PARTS

ENCODERS = {
    "bag": {"kind": "bag", "dim": 16},
    "mlp": {"kind": "mlp", "dim": 16, "ffn_dim": 32},
    "rnn": PARTS["rnn"],
    "conv": PARTS["conv"],
    "transformer": PARTS["transformer"],
}
FIELD = {"kind": "vectors"}
NAN = math.nan


def recipe(encoder="mlp", steps=4, **changes):
    tables = {
        "data": {"source": FIELD, "target": FIELD},
        "model": {"encoder": ENCODERS[encoder], "head": {"kind": "vectors"}},
        "train": {
            "max_steps": steps,
            "warmup_steps": 1,
            "batch_tokens": 64,
            "learning_rate": 0.01,
            "device": "cpu",
            "validate_every": 2,
            "log_samples": 0,
        },
    }
    for name, table in changes.items():
        tables[name] = tables[name] | table
    return tables


def examples(count=24, seed=0):
    rng = np.random.default_rng(seed)
    found = []
    for length in rng.integers(2, 7, count):
        clean = rng.normal(size=(length, 2)) * [10, 1] + [100, 0]
        found.append((clean + rng.normal(size=clean.shape), clean))
    return found


def trained(folder, encoder="mlp", data=None, **changes):
    splits = data or {"train": examples(), "valid": examples(6, 1), "test": examples(6, 2)}
    return regard.train(
        recipe(encoder, **changes), folder / "run", data=splits, cache=folder / "c", progress=False
    )


@pytest.mark.parametrize("encoder", ENCODERS)
def test_every_encoder_gives_a_vector_for_each_of_the_source(tmp_path, encoder):
    model = trained(tmp_path, encoder, steps=2)
    inputs = [source for source, _ in examples(5, 3)]
    together = model.outputs(inputs)
    for source, (output,) in zip(inputs, together, strict=True):
        assert np.shape(output.vectors) == source.shape
        ((alone,),) = model.outputs([source])
        np.testing.assert_allclose(alone.vectors, output.vectors, rtol=1e-5, atol=1e-4)
        np.testing.assert_allclose(json.loads(output.text), output.vectors, atol=1e-4)


def test_outputs_are_in_the_units_of_the_data(tmp_path):
    """An output of zeros is the mean of the training targets."""
    model = trained(tmp_path, steps=1)
    with torch.no_grad():
        for parameter in model.model.head.parameters():
            parameter.zero_()
    ((output,),) = model.outputs([np.zeros((3, 2))])
    gold = np.concatenate([target for _, target in examples()])
    np.testing.assert_allclose(output.vectors, np.tile(gold.mean(0), (3, 1)), rtol=1e-4)


def test_the_metrics_are_means_over_all_numbers(tmp_path):
    model = trained(tmp_path, steps=3)
    found = regard.evaluate(model, split="test", cache=tmp_path / "c", progress=False, resamples=10)
    test = examples(6, 2)
    outputs = [np.array(output.vectors) for (output,) in model.outputs([x for x, _ in test])]
    errors = np.concatenate([out - y for out, (_, y) in zip(outputs, test, strict=True)])
    scale = np.array(model.target.scale)
    assert found["mse"].value == pytest.approx(np.square(errors).mean(), rel=1e-4)
    assert found["mae"].value == pytest.approx(np.abs(errors).mean(), rel=1e-4)
    normalized = errors / scale
    assert found["normalized_mse"].value == pytest.approx(np.square(normalized).mean(), rel=1e-4)
    assert found["normalized_mae"].value == pytest.approx(np.abs(normalized).mean(), rel=1e-4)
    # The loss of validation is the same number.
    assert found["loss"].value == pytest.approx(found["normalized_mse"].value, rel=1e-4)
    assert found["mse"].low <= found["mse"].value <= found["mse"].high


def test_validation_computes_the_same_metrics_without_outputs(tmp_path):
    model = trained(tmp_path, steps=2)
    recipe_of = model.recipe
    data = regard.prepare(recipe_of, tmp_path / "c")
    task = TASKS[model.model.task]
    values = task.validation_values(model.model, data.test, model.target, budget=64)
    found = regard.evaluate(model, split="test", cache=tmp_path / "c", progress=False, resamples=10)
    for name, value in values.items():
        assert found[name].value == pytest.approx(value, rel=1e-4), name


def test_a_missing_number_counts_in_no_loss_and_no_metric(tmp_path):
    torch.manual_seed(0)
    model = regard.build(
        {"encoder": ENCODERS["mlp"] | {"input": {"kind": "vectors"}}, "head": {"kind": "vectors"}}
        | {"source_dim": 2, "num_labels": 2}
    )
    source = Vectors.of([torch.randn(3, 2), torch.randn(2, 2)])
    gold = torch.randn(2, 3, 2)
    holed = gold.clone()
    holed[0, 1, 0] = NAN
    known = torch.tensor([[[1, 1], [0, 1], [1, 1]], [[1, 1], [1, 1], [0, 0]]]).bool()
    batch = Batch(source, Vectors(holed, torch.tensor([3, 2])), int(known.sum()), torch.arange(2))
    found = Objective()(model.eval(), batch)
    expected = (model(source) - gold)[known].square().sum()
    torch.testing.assert_close(found.loss, expected)
    found.loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    texts = ["[[1, 2], [3, 4]]"], [["[[null, 2], [3, 6]]"]]
    options = {"scale": (1.0, 2.0)}
    assert score("mse", *texts, "vectors", options) == pytest.approx(4 / 3)
    assert score("normalized_mse", *texts, "vectors", options) == pytest.approx(1 / 3)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_nothing_attends_to_a_missing_vector(encoder):
    """Its other numbers may not reach another position of a Transformer."""
    torch.manual_seed(0)
    model = regard.build(
        {"encoder": ENCODERS[encoder] | {"input": {"kind": "vectors"}}, "pool": {"kind": "mean"}}
        | {"source_dim": 2, "num_labels": 2}
    ).eval()
    values = torch.randn(1, 4, 2)
    values[0, 2] = torch.tensor([NAN, 1.0])
    other = values.clone()
    other[0, 2, 1] = -5.0
    lengths = torch.tensor([4])
    memory = model.encode(Vectors(values, lengths))
    assert memory.mask.tolist() == [[True, True, False, True]]
    assert memory.states.isfinite().all()
    if encoder in ("transformer", "mlp", "bag"):
        torch.testing.assert_close(model(Vectors(other, lengths)), model(Vectors(values, lengths)))
    else:
        assert model(Vectors(values, lengths)).isfinite().all()


def test_the_last_state_is_that_of_the_last_vector_that_is_there():
    model = regard.build(
        {"encoder": ENCODERS["conv"] | {"input": {"kind": "vectors"}}, "pool": {"kind": "last"}}
        | {"source_dim": 1, "num_labels": 2}
    ).eval()
    values = torch.tensor([[[1.0], [NAN], [3.0], [NAN]]])
    memory = model.encode(Vectors(values, torch.tensor([4])))
    torch.testing.assert_close(model.pool(memory), memory.states[:, 2])


def test_a_target_of_another_length_is_refused_with_its_line_and_both_lengths(tmp_path):
    rows = [*examples(3), (np.zeros((4, 2)), np.zeros((5, 2)))]
    with pytest.raises(InvalidData, match=r"row 4: wanted 4 vectors.*got 5") as error:
        trained(tmp_path, data={"train": rows})
    assert error.value.line == 4


@pytest.mark.parametrize(("name", "expected"), [("mse", 4.0), ("mae", 2.0), ("huber", 1.5)])
def test_the_loss_is_chosen_by_its_name(name, expected):
    model = regard.build(
        {"encoder": ENCODERS["mlp"] | {"input": {"kind": "vectors"}}, "head": {"kind": "vectors"}}
        | {"source_dim": 1, "num_labels": 1}
    ).eval()
    for parameter in model.head.parameters():
        torch.nn.init.zeros_(parameter)
    batch = Batch(Vectors.of([[[1.0]]]), Vectors.of([[[2.0]]]), 1, torch.arange(1))
    assert Objective(output_loss=name)(model, batch).loss.item() == expected


def test_what_means_nothing_to_vectors_is_refused():
    for changes, key in [
        ({"train": {"label_smoothing": 0.1}}, "train.label_smoothing"),
        ({"train": {"monitor": "accuracy"}}, "train.monitor"),
        ({"train": {"loss": "cross_entropy"}}, "train.loss"),
        ({"data": {"source": {"kind": "text"}}}, "data.source.kind"),
        ({"data": {"target": {"kind": "number"}}}, "data.target.kind"),
    ]:
        with pytest.raises(InvalidRecipe) as error:
            Recipe.of(recipe(**changes))
        assert key in [problem.key for problem in error.value.problems]
    halved = ENCODERS["mlp"] | {"input": {"kind": "vectors", "kernel": 2, "stride": 2}}
    with pytest.raises(InvalidRecipe, match=r"model.encoder.input.stride"):
        Recipe.of(recipe() | {"model": {"encoder": halved, "head": {"kind": "vectors"}}})


def test_a_look_has_the_attention_of_the_encoder_and_the_vectors(tmp_path):
    model = trained(tmp_path, "transformer", steps=1)
    source = examples(1, 5)[0][0]
    look = regard.look(model, source)
    of_layer = look.maps[0].weights()
    assert of_layer.shape[1:] == (len(source), len(source))
    torch.testing.assert_close(of_layer.sum(-1), torch.ones(of_layer.shape[:2]))
    ((output,),) = model.outputs([source])
    np.testing.assert_allclose(look.output.vectors, output.vectors, rtol=1e-5)
    assert json.loads(look.to_json())["output"]["vectors"] == [
        pytest.approx(row) for row in look.output.vectors
    ]


def test_an_ensemble_gives_the_mean(tmp_path):
    one = trained(tmp_path / "1", steps=1)
    two = trained(tmp_path / "2", steps=3)
    both = regard.load([one.folder, two.folder], device="cpu")
    source = examples(1, 6)[0][0]
    expected = np.mean([model.outputs([source])[0][0].vectors for model in (one, two)], axis=0)
    np.testing.assert_allclose(both.outputs([source])[0][0].vectors, expected, rtol=1e-5)


def test_statistics_of_constant_numbers_do_not_divide_by_zero():
    found = Statistics.of([np.array([[5.0, 1.0], [5.0, 3.0]])])
    assert np.isfinite(found.normalize(np.array([[5.0, 2.0]]))).all()
    assert found.restore(found.normalize(np.array([[5.0, 2.0]]))).tolist() == [[5.0, 2.0]]
