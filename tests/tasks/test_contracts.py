"""What holds for every task: training, prediction, looks and the server, over one table."""

import json
from pathlib import Path

import pytest
import torch

import regard
from regard.core.errors import InvalidArgument, InvalidRecipe
from regard.inference.example_inputs import example_inputs
from regard.tasks.kinds import TASKS
from regard.tasks.pipeline import OF_SOME_OUTPUTS
from support.command_line import command
from support.servers import served
from support.tasks import CASES

WITH_OUTPUTS = [name for name, case in CASES.items() if case.has_outputs]
NO_ENSEMBLES = ("tag, crf",)
WITH_SOURCE = [name for name in WITH_OUTPUTS if "source" in CASES[name].fields]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """What `regard.train` returned for a task, and the folder of its run."""
    made = {}

    def get(name: str):
        if name not in made:
            folder = tmp_path_factory.mktemp("run") / "run"
            case = CASES[name]
            made[name] = regard.train(case.recipe(), folder, data=case.splits()), folder
        return made[name]

    return get


def values(outputs) -> list[list[dict]]:
    return [[each.as_json() for each in listed] for listed in outputs]


def assert_same_values(found, expected, *, tolerance: float):
    """Equal in every part, and numbers within a tolerance."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert_same_values(found[key], value, tolerance=tolerance)
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same_values(one, other, tolerance=tolerance)
    elif isinstance(expected, str) and isinstance(found, str) and expected.startswith("[["):
        # Vectors, of which the same holds.
        assert_same_values(json.loads(found), json.loads(expected), tolerance=tolerance)
    elif isinstance(expected, str) and isinstance(found, str) and are_numbers(expected):
        # The text of a number has all digits that the model computes, of which the last depends on the processor.
        numbers = [float(part) for part in found.split()]
        assert numbers == pytest.approx([float(part) for part in expected.split()], rel=tolerance)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=tolerance, abs=tolerance)
    else:
        assert found == expected


def are_numbers(text: str) -> bool:
    """Whether a text consists of numbers between spaces."""
    try:
        return bool([float(part) for part in text.split()])
    except ValueError:
        return False


def test_every_task_is_in_the_table():
    tested = {name.partition(",")[0] for name in CASES}
    assert tested == {name for name in TASKS if not TASKS.is_extension(name)}


@pytest.mark.parametrize("name", CASES)
def test_a_recipe_determines_its_task(trained, name):
    model, _ = trained(name)
    assert model.task.name == name.partition(",")[0]
    assert model.model.task == model.task.name


@pytest.mark.parametrize("name", WITH_OUTPUTS)
def test_padded_is_alone(trained, name):
    model, _ = trained(name)
    inputs = CASES[name].inputs
    together = values(model.outputs(inputs, scores=True))
    alone = [values(model.outputs([each], scores=True))[0] for each in inputs]
    assert_same_values(together, alone, tolerance=1e-4)


@pytest.mark.parametrize("name", WITH_OUTPUTS)
def test_saved_is_loaded(trained, name):
    model, folder = trained(name)
    loaded = regard.load(folder)
    inputs = CASES[name].inputs
    for key, weight in model.model.state_dict().items():
        assert loaded.model.state_dict()[key].equal(weight), key
    expected = values(model.outputs(inputs, scores=True))
    assert_same_values(values(loaded.outputs(inputs, scores=True)), expected, tolerance=0)


@pytest.mark.parametrize("name", CASES)
def test_resumed_is_uninterrupted(trained, tmp_path, name):
    whole, _ = trained(name)
    case = CASES[name]
    half = case.recipe(max_steps=3)
    regard.train(half, tmp_path / "run", data=case.splits())
    resumed = regard.train(case.recipe(), tmp_path / "run", data=case.splits(), resume=True)
    for key, weight in whole.model.state_dict().items():
        assert resumed.model.state_dict()[key].equal(weight), key


@pytest.mark.parametrize("name", CASES)
def test_packed_is_padded_or_refused(trained, tmp_path, name):
    """One update, with all examples in one batch: what it leaves does not depend on their order."""
    case = CASES[name]
    settings = {"max_steps": 1, "validate_every": 1, "warmup_steps": 1, "batch_tokens": 4000}
    packed = case.recipe(**settings, packed=True)
    if not name.startswith("generate") or "head" in case.model:
        with pytest.raises(InvalidRecipe, match=r"train\.packed"):
            regard.train(packed, tmp_path / "packed", data=case.splits())
        return
    regard.train(case.recipe(**settings), tmp_path / "padded", data=case.splits())
    regard.train(packed, tmp_path / "packed", data=case.splits())
    assert losses(tmp_path / "packed") == pytest.approx(losses(tmp_path / "padded"), rel=1e-4)


def losses(run: Path) -> list[float]:
    """The losses on the validation examples that a run logged."""
    events = map(json.loads, (run / "log.jsonl").read_text("utf-8").splitlines())
    found = [event["loss"] for event in events if event["event"] == "validation"]
    assert found
    return found


@pytest.mark.parametrize("name", WITH_OUTPUTS)
def test_served_is_predicted(trained, name):
    model, _ = trained(name)
    inputs = CASES[name].inputs
    predicted = model.outputs(inputs)
    given = [list(each) if isinstance(each, tuple) else each for each in inputs]
    if CASES[name].fields.get("source", {}).get("kind") == "vectors":
        # A request has the lists themselves, of which Python and the command line also read the JSON.
        given = [json.loads(each) for each in inputs]
    with served({"mine": model}) as server:
        status, _, answer = server.ask("/predict", {"input": given})
        health, _, _ = server.ask("/health/ready")
        page, _, _ = server.ask("/")
    assert (status, health, page) == (200, 200, 200), answer
    for (expected, *_), result in zip(predicted, answer["results"], strict=True):
        (output, *_) = result["outputs"]
        json.dumps(output, allow_nan=False)
        wanted = json.loads(json.dumps(expected.as_json()))
        shared = {key: wanted[key] for key in wanted.keys() & output.keys()}
        # What only some tasks have, the server always sends.
        assert {"text", *(wanted.keys() & {*OF_SOME_OUTPUTS})} <= shared.keys()
        compared = {key: output[key] for key in shared}
        # Generated vectors are made from those before them, whose rounding depends on the batch: in float32,
        # either is up to 2.5e-5 from what float64 gives.
        tolerance = 1e-4 if name.startswith("generate_vectors") else 1e-5
        assert_same_values(compared, shared, tolerance=tolerance)


@pytest.mark.parametrize("name", WITH_SOURCE)
def test_a_look_shows_the_output_and_weights_that_sum_to_one(trained, name):
    model, _ = trained(name)
    source = CASES[name].inputs[0]
    (best,) = model.outputs([source])[0][:1]
    look = regard.look(model, source)
    assert look.output is not None
    assert_same_values(look.output.text, best.text, tolerance=1e-5)
    assert look.maps
    for each in look.maps:
        weights = each.weights()
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))


@pytest.mark.parametrize("name", WITH_SOURCE)
def test_an_ensemble_of_one_model_twice_is_that_model(trained, name):
    model, folder = trained(name)
    inputs = CASES[name].inputs
    expected = values(model.outputs(inputs))
    if name in NO_ENSEMBLES:
        with pytest.raises(InvalidArgument, match="ensemble"):
            regard.load([folder, folder])
        return
    both = regard.load([folder, folder])
    assert_same_values(values(both.outputs(inputs)), expected, tolerance=1e-4)


@pytest.mark.parametrize("name", WITH_SOURCE)
def test_embeddings_do_not_depend_on_the_batch(trained, name):
    model, _ = trained(name)
    inputs = CASES[name].inputs
    together = model.embed(inputs)
    alone = torch.cat([torch.as_tensor(model.embed([each])) for each in inputs])
    assert torch.as_tensor(together).isfinite().all()
    torch.testing.assert_close(torch.as_tensor(together), alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_evaluation_reports_the_metrics_of_the_task(trained, name):
    model, folder = trained(name)
    report = regard.evaluate(folder, split="valid")
    (system,) = report.systems
    assert system.metrics
    target = model.target
    monitor = model.recipe.train.monitor
    expected = model.task.default_metrics(model.recipe.data, monitor, target)
    assert set(expected) <= set(system.metrics)


@pytest.mark.parametrize("name", WITH_OUTPUTS)
def test_no_input_at_all_has_no_output(trained, name):
    model, _ = trained(name)
    assert model.outputs([]) == []
    assert model.predict([]) == []


@pytest.mark.parametrize("name", WITH_SOURCE)
def test_options_without_effect_are_refused_on_the_command_line(trained, name):
    model, folder = trained(name)
    given = CASES[name].inputs[0]
    line = "\t".join(given) if isinstance(given, tuple) else given
    for option, value in (("--beam", "4"), ("--max-length", "9"), ("--sample", None)):
        arguments = [option] if value is None else [option, value]
        done = command("predict", folder, *arguments, text=f"{line}\n")
        if model.task.searches or (model.task.has_beam and option == "--beam"):
            assert done.returncode == 0, done.stderr
        else:
            assert done.returncode == 2
            assert f"{option}: wanted nothing for a model that gives" in done.stderr
    scored = command("predict", folder, "--scores", text=f"{line}\n")
    assert scored.returncode == (0 if model.task.has_scores else 2), scored.stderr


@pytest.mark.parametrize("name", WITH_OUTPUTS)
def test_options_without_effect_are_refused_by_the_server(trained, name):
    model, _ = trained(name)
    given = CASES[name].inputs[0]
    listed = [list(given) if isinstance(given, tuple) else given]
    if CASES[name].fields.get("source", {}).get("kind") == "vectors":
        listed = [json.loads(given)]
    with served({"mine": model}) as server:
        options = {"beam_size": 4, "max_length": 9, "sample": True, "min_length": 2}
        for option, value in options.items():
            status, _, answer = server.ask("/predict", {"input": listed, option: value})
            if model.task.searches or (model.task.has_beam and option == "beam_size"):
                assert status == 200, answer
            else:
                refusal = f"{option}: wanted nothing for a model that gives {model.task.gives}"
                assert status == 400
                assert answer["detail"] == f"{refusal}; got {value}. Leave it out."


@pytest.mark.parametrize("name", [name for name in WITH_OUTPUTS if "sources" in CASES[name].fields])
def test_how_several_sources_are_requested_is_described(trained, name):
    """In the refusal of another form, and in the example of the description, which is answered."""
    model, _ = trained(name)
    with served({"mine": model}) as server:
        status, _, answer = server.ask("/predict", {"input": list(CASES[name].inputs[0])})
        assert status == 400
        assert answer["detail"].endswith('in the list of inputs: {"input": [["...", "..."]]}.')
        _, _, description = server.ask("/openapi.json")
        body = description["paths"]["/predict"]["post"]["requestBody"]
        example = body["content"]["application/json"]["example"]
        status, _, answer = server.ask("/predict", example)
        assert status == 200, answer
        assert len(answer["results"]) == 1


def test_a_forecaster_begins_with_a_series_of_its_length(trained):
    """Of any other length, it refuses to read one."""
    model, _ = trained("forecast")
    ((first,),) = example_inputs(model)
    vectors = json.loads(first)
    (expected,) = {len(json.loads(each)) for each in CASES["forecast"].inputs}
    assert len(vectors) == expected
    assert model.predict([vectors])
    (field,) = model.recipe.data.source_fields
    assert len(field.example(model.sources[0])) == expected
