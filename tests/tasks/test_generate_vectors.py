"""The task `generate_vectors`: its loss, generation, options and metrics by their definitions."""

import json

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import regard
from regard.core.errors import InvalidArgument, InvalidRecipe
from regard.core.sequence import PackedVectors, Vectors
from regard.data.batching import Batch, PackedCapacity, pack_batch
from regard.data.statistics import Statistics
from regard.model.scheduled_sampling import ScheduledSampling, force
from regard.model.vector_embedding import packed_inputs, shifted_inputs, start_inputs
from regard.recipe.recipe import Recipe
from regard.tasks.objective import Objective
from regard.training.graphed_update import batch_tensors
from support.tasks import CASES, waves

SIDE = {"kind": "transformer", "dim": 16, "layers": 1, "heads": 2, "ffn_dim": 24, "dropout": 0.0}
RNN = {"kind": "rnn", "dim": 16, "dropout": 0.0}
CONV = {"kind": "conv", "dim": 16, "dilations": [1, 2], "dropout": 0.0}
PAIRS = {  # encoder and decoder
    "transformers": (SIDE, SIDE),
    "rotary": (SIDE | {"positions": "rotary"}, SIDE | {"positions": "rotary"}),
    "convolutions": (CONV, CONV),
    "without attention": (RNN, RNN | {"attention": "none"}),
    "Bahdanau": (RNN, RNN),
    "Luong": (RNN, RNN | {"attention": "luong"}),
    "input feeding": (RNN, RNN | {"attention": "luong", "input_feeding": True}),
}
GENERATOR = torch.Generator().manual_seed(4)
SOURCES = [torch.randn(length, 3, generator=GENERATOR) for length in (5, 1, 3, 7)]
TARGETS = [torch.randn(length, 2, generator=GENERATOR) for length in (3, 5, 1, 4)]


def model_of(name="transformers"):
    torch.manual_seed(0)
    encoder, decoder = PAIRS[name]
    sides = {"encoder": encoder | {"input": {"kind": "vectors"}}, "decoder": decoder}
    return regard.build(sides | {"source_dim": 3, "target_dim": 2, "horizon": 4})


def batch(targets=TARGETS):
    count = sum(int((~target.isnan()).sum()) for target in targets)
    return Batch(Vectors.of(SOURCES), Vectors.of(targets), count, torch.arange(len(targets)))


def gradients(model, given, objective, step=0):
    model.zero_grad()
    result = objective(model, given, step=step)
    result.loss.backward()
    found = {name: weight.grad.clone() for name, weight in model.named_parameters()}
    return result, found


@pytest.mark.parametrize(
    ("loss", "function"),
    [(None, F.mse_loss), ("mse", F.mse_loss), ("mae", F.l1_loss), ("huber", F.huber_loss)],
)
@pytest.mark.parametrize("name", ["transformers", "Bahdanau"])
def test_the_loss_is_a_sum_over_the_numbers_of_the_targets(name, loss, function):
    """Of each example alone, without padding, given the gold vectors before each."""
    model = model_of(name)
    wanted = 0.0
    for source, target in zip(SOURCES, TARGETS, strict=True):
        start = torch.tensor([[0.0, 0.0, 1.0]])
        inputs = torch.cat((start, F.pad(target[:-1], (0, 1))))[None]
        outputs = model(Vectors.of([source]), inputs)[0]
        wanted += function(outputs, target, reduction="sum")
    found, _ = gradients(model, batch(), Objective(output_loss=loss))
    torch.testing.assert_close(found.loss, wanted, rtol=1e-5, atol=1e-5)
    assert found.predictions == 2 * sum(map(len, TARGETS))


def test_missing_numbers_of_a_target_count_nothing():
    """Neither in the loss, nor as an input: it is read as 0, the mean."""
    model = model_of()
    targets = [target.clone() for target in TARGETS]
    targets[1][2, 1] = torch.nan
    found, changes = gradients(model, batch(targets), Objective())
    assert all(change.isfinite().all() for change in changes.values())
    zeroed = [target.nan_to_num(0.0) for target in targets]
    inputs = shifted_inputs(Vectors.of(zeroed).values)
    outputs = model(Vectors.of(SOURCES), inputs)
    errors = [
        (output[: len(target)] - target).square().nan_to_num(0.0).sum()
        for output, target in zip(outputs, targets, strict=True)
    ]
    torch.testing.assert_close(found.loss, sum(errors), rtol=1e-5, atol=1e-5)
    assert found.predictions == 2 * sum(map(len, TARGETS)) - 1


@pytest.mark.parametrize("filled", [False, True], ids=["exact", "filled"])
@pytest.mark.parametrize("name", PAIRS)
def test_packed_equals_padded(name, filled):
    model = model_of(name)
    capacity = PackedCapacity((24, 20), (7, 5), 6, filled)
    packed = pack_batch(batch(), capacity)
    assert isinstance(packed.targets, PackedVectors)
    assert len(packed.targets.values) == (20 if filled else 13)
    found, changes = gradients(model, packed, Objective())
    expected, others = gradients(model, batch(), Objective())
    torch.testing.assert_close(found.loss, expected.loss, rtol=1e-5, atol=1e-5)
    for parameter, change in changes.items():
        torch.testing.assert_close(change, others[parameter], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["transformers", "convolutions", "Bahdanau"])
def test_packed_equals_padded_with_own_outputs_alone(name):
    model = model_of(name).eval()
    objective = Objective(scheduled_sampling=ScheduledSampling(teacher_forcing=0.0, passes=2))
    packed = pack_batch(batch(), PackedCapacity((24, 20), (7, 5), 6, True))
    found, changes = gradients(model, packed, objective)
    expected, others = gradients(model, batch(), objective)
    torch.testing.assert_close(found.loss, expected.loss, rtol=1e-5, atol=1e-5)
    assert found.loss != gradients(model, batch(), Objective())[0].loss
    for parameter, change in changes.items():
        torch.testing.assert_close(change, others[parameter], rtol=1e-4, atol=1e-4)


def test_filled_batches_have_one_shape():
    """As CUDA graphs need: every tensor that a recording reads."""
    shapes = set()
    for chosen in ([0, 1, 2, 3], [1], [3, 0], [2]):
        given = Batch(
            Vectors.of([SOURCES[i] for i in chosen]),
            Vectors.of([TARGETS[i] for i in chosen]),
            2 * sum(len(TARGETS[i]) for i in chosen),
            torch.tensor(chosen),
        )
        packed = pack_batch(given, PackedCapacity((24, 20), (7, 5), 6, True))
        shapes.add(tuple(each.shape for each in batch_tensors(packed)))
    (shape,) = shapes
    assert [*map(tuple, shape)] == [(24, 3), (7,), (24,), (20, 2), (7,), (20,)]


def test_packed_inputs_are_the_padded_ones():
    packed = pack_batch(batch(), PackedCapacity((24, 20), (7, 5), 6, False)).targets
    padded = shifted_inputs(Vectors.of(TARGETS).values)
    expected = torch.cat([row[: len(target)] for row, target in zip(padded, TARGETS, strict=True)])
    assert torch.equal(packed_inputs(packed).values, expected)


@pytest.mark.parametrize("name", PAIRS)
@torch.no_grad()
def test_generated_vectors_are_those_of_a_loop_without_a_state(name):
    """One pass over the outputs so far for each step, of each source alone."""
    model = model_of(name).eval()
    together = model.generate(Vectors.of(SOURCES), 4)
    assert torch.equal(model(Vectors.of(SOURCES)), together)
    for source, found in zip(SOURCES, together, strict=True):
        inputs = start_inputs(1, found)[None]
        for step in range(4):
            outputs = model(Vectors.of([source]), inputs)
            torch.testing.assert_close(found[step], outputs[0, -1], rtol=1e-4, atol=1e-5)
            inputs = torch.cat((inputs, F.pad(outputs[:, -1:], (0, 1))), 1)


@pytest.mark.parametrize("name", ["transformers", "convolutions", "Bahdanau", "without attention"])
@torch.no_grad()
def test_own_outputs_alone_are_what_is_generated(name):
    """By a recurrent decoder in one pass, by a parallel one in as many as there are steps."""
    model = model_of(name).eval()
    source = Vectors.of(SOURCES)
    inputs = shifted_inputs(torch.randn(4, 5, 2))
    sampling = ScheduledSampling(teacher_forcing=0.0, passes=5)
    forced = force(model.decoder, inputs, model.encode(source), sampling)
    torch.testing.assert_close(forced.logits, model.generate(source, 5), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["token", "ratio"])
@pytest.mark.parametrize("name", ["transformers", "Bahdanau"])
def test_inputs_are_gold_or_the_models_own(name, mode):
    model = model_of(name).eval()
    gold = shifted_inputs(torch.randn(4, 9, 2))
    sampling = ScheduledSampling(teacher_forcing=0.5, mode=mode)
    generator = torch.Generator().manual_seed(0)
    memory = model.encode(Vectors.of(SOURCES))
    forced = force(model.decoder, gold, memory, sampling, generator=generator)
    is_gold = (forced.inputs == gold).all(-1)  # (B, T)
    assert is_gold[:, 0].all()
    assert 0.3 < is_gold[:, 1:].float().mean() < 0.7
    assert (forced.inputs[:, 1:, 2] == 0).all()
    if mode == "ratio":
        assert (is_gold[:, 1:].sum(1) == 4).all()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    case = CASES["generate_vectors"]
    folder = tmp_path_factory.mktemp("run") / "run"
    model = regard.train(
        case.recipe(max_steps=40, validate_every=20, monitor="mse"), folder, data=case.splits()
    )
    return model, folder


def test_an_output_has_the_longest_length_of_training_or_that_asked_for(trained):
    model, _ = trained
    (source, _), *_ = waves(1, 9)
    assert model.target.longest == model.model.horizon == 4
    assert np.array(json.loads(model.predict([source])[0])).shape == (4, 2)
    longer = json.loads(model.predict([source], horizon=7)[0])
    np.testing.assert_allclose(longer[:4], json.loads(model.predict([source])[0]), rtol=1e-5)
    assert len(longer) == 7
    look = regard.look(model, source, horizon=7)
    np.testing.assert_allclose(look.output.vectors, longer, rtol=1e-4, atol=1e-4)
    with pytest.raises(InvalidArgument, match="horizon"):
        regard.look(model, source, output=model.predict([source])[0], horizon=7)


def test_outputs_are_in_the_units_of_the_data(trained):
    model, _ = trained
    (source, _), *_ = waves(1, 9)
    encoded = torch.as_tensor(model.source.normalize(np.array(source)))
    with torch.no_grad():
        generated = model.model(Vectors.of([encoded]))[0].double().numpy()
    (output,) = model.outputs([source])[0]
    np.testing.assert_allclose(output.vectors, model.target.restore(generated), rtol=1e-5)
    np.testing.assert_allclose(json.loads(output.text), output.vectors, rtol=1e-4, atol=1e-4)


def test_metrics_compare_what_is_generated_up_to_the_end_of_each_target(trained):
    model, folder = trained
    rows = CASES["generate_vectors"].splits()["valid"]
    errors = []
    for source, target in rows:
        output = np.array(json.loads(model.predict([source])[0]))
        errors.append(output[: len(target)] - np.array(target))
    both = np.concatenate(errors)
    scaled = both / np.array(model.target.scale)
    metrics = regard.evaluate(folder, split="valid").systems[0].metrics
    assert metrics["mse"].value == pytest.approx((both**2).mean(), rel=1e-4)
    assert metrics["mae"].value == pytest.approx(np.abs(both).mean(), rel=1e-4)
    assert metrics["normalized_mse"].value == pytest.approx((scaled**2).mean(), rel=1e-4)
    assert metrics["normalized_mae"].value == pytest.approx(np.abs(scaled).mean(), rel=1e-4)
    events = map(json.loads, (folder / "log.jsonl").read_text("utf-8").splitlines())
    validations = [event for event in events if event["event"] == "validation"]
    best = min(event["mse"] for event in validations)
    assert best == pytest.approx((both**2).mean(), rel=1e-4)


def test_a_look_shows_every_step_over_the_source_and_the_steps_before(trained):
    model, _ = trained
    (source, _), *_ = waves(1, 9)
    look = regard.look(model, source)
    maps = {each.name: each.weights() for each in look.maps}
    assert maps["decoder 1 cross"].shape == (2, 4, len(source))
    own = maps["decoder 1 self"]
    assert own.shape == (2, 4, 4)
    assert (own.triu(1) == 0).all()
    (output,) = model.outputs([source])[0]
    np.testing.assert_allclose(look.output.vectors, output.vectors, rtol=1e-4)


def test_a_look_at_a_given_output_reads_that_output(trained):
    model, _ = trained
    (source, target), *_ = waves(1, 9)
    look = regard.look(model, source, output=json.dumps(target))
    maps = {each.name: each.weights() for each in look.maps}
    assert maps["decoder 1 cross"].shape == (2, len(target), len(source))
    encoded = torch.as_tensor(model.source.normalize(np.array(source)))
    gold = torch.as_tensor(model.target.normalize(np.array(target)))[None]
    with torch.no_grad():
        expected = model.model(Vectors.of([encoded]), shifted_inputs(gold))[0].double().numpy()
    np.testing.assert_allclose(look.output.vectors, model.target.restore(expected), rtol=1e-4)


def recipe(**model):
    return {
        "model": {"encoder": SIDE, "decoder": SIDE} | model,
        "data": {
            "train": "rows.jsonl",
            "source": {"kind": "vectors", "column": "past"},
            "target": {"kind": "vectors", "column": "ahead"},
        },
    }


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ({"tie_embeddings": "none"}, "model.tie_embeddings"),
        ({"output_bias": False}, "model.output_bias"),
        ({"horizon": 3}, "model.horizon"),
    ],
)
def test_keys_of_tokens_are_refused(table, key):
    with pytest.raises(InvalidRecipe, match=key):
        Recipe.of(recipe(**table))


def test_a_decoder_over_vectors_needs_an_encoder():
    table = {"model": {"decoder": SIDE}, "data": recipe()["data"]}
    with pytest.raises(InvalidRecipe, match=r"model\.encoder|data\.source"):
        Recipe.of(table)


@pytest.mark.parametrize(
    "train", [{"label_smoothing": 0.1}, {"r_drop": 1.0}, {"doubly_stochastic": 0.1}]
)
def test_terms_of_distributions_are_refused(train):
    table = recipe() | {"train": train}
    table["model"] = {"encoder": RNN, "decoder": RNN}
    (key,) = train
    with pytest.raises(InvalidRecipe, match=rf"train\.{key}"):
        Recipe.of(table)


def test_a_horizon_beyond_the_learned_positions_is_refused(trained, tmp_path):
    case = CASES["generate_vectors"]
    table = case.recipe(max_steps=2, validate_every=2)
    learned = {"positions": "learned", "max_positions": 12}
    table["model"] = {"encoder": SIDE | learned, "decoder": SIDE | learned}
    model = regard.train(table, tmp_path / "run", data=case.splits())
    (source, _), *_ = waves(1, 9)
    assert len(json.loads(model.predict([source], horizon=12)[0])) == 12
    with pytest.raises(InvalidArgument, match="at most 12 vectors"):
        model.predict([source], horizon=13)


def test_a_horizon_means_nothing_to_other_models(tmp_path):
    case = CASES["predict_vectors"]
    model = regard.train(case.recipe(max_steps=2), tmp_path / "run", data=case.splits())
    with pytest.raises(InvalidArgument, match="horizon"):
        model.predict([[[1.0, 2.0]]], horizon=3)


def test_statistics_keep_the_longest_length():
    found = Statistics([1.0], [2.0], 7)
    assert Statistics.from_json(found.to_json()).longest == 7
    assert Statistics.from_json(Statistics([1.0], [2.0]).to_json()).longest is None
    with pytest.raises(ValueError, match="longest"):
        Statistics.from_json('{"mean": [0.0], "scale": [1.0], "longest": "many"}')
