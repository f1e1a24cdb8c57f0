"""Forecasts from the recipe to the table of an evaluation, on a generated series and on a file."""

import json

import numpy as np
import pytest
import torch

import regard
from regard.api.look import pairs_of
from regard.core.errors import InvalidArgument, InvalidData
from regard.data.corpus import Prepared
from regard.data.sources import examples
from regard.inference.example_inputs import example_inputs
from regard.tasks.vector_task import seasonal_naive_errors

FIELD = {"kind": "vectors"}
WINDOW = 48
HORIZON = 12


def recipe(encoder=None, head=None, steps=6, **data):
    series = {"window": WINDOW, "horizon": HORIZON, "split": [0.7, 0.1, 0.2], "season": 24}
    series |= {"evaluation_stride": 7}
    return {
        "data": {"synthetic": "waves", "source": FIELD, "target": FIELD, "series": series} | data,
        "model": {
            "encoder": encoder
            or {
                "kind": "transformer",
                "dim": 16,
                "layers": 1,
                "heads": 2,
                "ffn_dim": 32,
                "input": {"kind": "vectors", "kernel": 8, "stride": 4, "padding": "end"},
            },
            "head": {
                "kind": "horizon",
                "channels": "independent",
                "instance_norm": "mean_std",
                **(head or {}),
            },
        },
        "train": {
            "max_steps": steps,
            "warmup_steps": 2,
            "batch_tokens": 48 * 64,
            "learning_rate": 0.01,
            "device": "cpu",
            "validate_every": 3,
            "log_samples": 0,
            "monitor": "normalized_mse",
        },
    }


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def model(tmp_path_factory, cache):
    run = tmp_path_factory.mktemp("run")
    return regard.train(recipe(), run / "r", cache=cache, progress=False)


def test_it_learns_more_than_the_mean(model, cache):
    found = regard.evaluate(model, split="valid", cache=cache, progress=False, resamples=10)
    assert found["normalized_mse"].value < 0.8
    assert found["loss"].value == pytest.approx(found["normalized_mse"].value, rel=1e-4)


def test_the_seasonal_baseline_is_in_the_table(model, cache):
    """It is computed anew here, from the windows in the units of the data."""
    found = regard.evaluate(model, split="valid", cache=cache, progress=False, resamples=10)
    scale = np.array(model.target.scale)
    errors = []
    for example in examples(model.recipe.data, "valid"):
        source = np.asarray(example.source)
        target = np.asarray(example.target)
        errors.append((source[-24 : -24 + HORIZON] - target) / scale)
    assert found["seasonal_naive_mse"].value == pytest.approx(np.square(errors).mean(), rel=1e-4)
    assert found["seasonal_naive_mae"].value == pytest.approx(np.abs(errors).mean(), rel=1e-4)


def test_a_season_is_repeated_until_the_end_of_the_horizon(model, cache):
    data: Prepared = regard.prepare(model.recipe, cache)
    found = seasonal_naive_errors(data.valid, model.target, 5)
    every = np.arange(len(data.valid))
    source = data.valid.source.gather(every).values
    target = data.valid.target.gather(every).values
    repeated = torch.cat([source[:, -5:]] * 3, 1)[:, :HORIZON]
    assert found["mse"] == pytest.approx((repeated - target).square().mean().item(), rel=1e-5)


def test_a_longer_past_is_read_from_its_end_and_a_shorter_one_is_refused(model):
    past = np.asarray(next(examples(model.recipe.data, "test")).source)
    ((output,),) = model.outputs([past])
    assert np.shape(output.vectors) == (HORIZON, 3)
    np.testing.assert_allclose(json.loads(output.text), output.vectors, atol=1e-4)
    longer = np.concatenate([past + 5, past])
    assert model.outputs([longer])[0][0].vectors == output.vectors
    with pytest.raises(InvalidArgument, match=r"wanted at least 48 vectors.*got 47"):
        model.outputs([past[1:]])


def test_a_look_shows_the_attention_over_the_past(model):
    past = np.asarray(next(examples(model.recipe.data, "test")).source)
    look = regard.look(model, past)
    weights = look.maps[0].weights()
    assert weights.shape == (2, 12, 12)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 12))
    assert look.title == "48 vectors of 3 numbers: attention of channel 1"
    ((output,),) = model.outputs([past])
    np.testing.assert_allclose(look.output.vectors, output.vectors, rtol=1e-4)
    written = json.loads(look.to_json())
    # Weights and measures are those of the first channel alone.
    assert written["maps"][0]["weights"]["shape"] == [2, 12, 12]
    (first, _) = written["maps"][0]["summary"]
    entropy = -(weights[0] * weights[0].log()).sum(-1)  # (N,)
    assert first["entropy"] == pytest.approx(entropy.mean().item(), rel=1e-4)
    assert first["evenness"] == pytest.approx(entropy.mean().item() / np.log(12), rel=1e-4)


def test_examples_are_windows_one_after_the_other(model):
    found = example_inputs(model)
    windows = [np.array(json.loads(text)) for (text,) in found]
    assert len(windows) == 6
    first = np.asarray(next(examples(model.recipe.data, "test")).source)
    np.testing.assert_allclose(windows[0], first, rtol=1e-5, atol=1e-6)
    assert all(window.shape == (WINDOW, 3) for window in windows)
    assert not np.isin(windows[1][:, 0], windows[0][:, 0]).any()


def captured(model, past):
    """The weights (channels, heads, rows, keys) of all channels, without a look."""
    with regard.capture_attention() as calls, torch.inference_mode():
        model.model.encode(model.inputs.collate(model.inputs.encode([past])))
    return calls[0].weights()


def test_a_look_shows_the_channel_that_is_chosen(model):
    past = np.asarray(next(examples(model.recipe.data, "test")).source)
    every = captured(model, past)
    assert len(every) == 3
    assert not torch.allclose(every[0], every[2], atol=1e-3)
    for channel, place in ((None, 0), (1, 0), (2, 1), ("3", 2)):
        look = regard.look(model, past, channel=channel)
        torch.testing.assert_close(look.maps[0].weights(), every[place])
        assert look.title.endswith(f"attention of channel {place + 1}")
        (source,) = look.as_dict()["sources"]
        assert (source["channel"], source["separate"]) == (place + 1, 3)
        assert source["channels"] == ("1", "2", "3")
        # A number of the first step of the forecast depends on the attention of its own channel.
        for number in range(3):
            shares = look.attributions(of=number)[look.maps[0].name]
            assert bool(shares.abs().max() > 0) == (number == place)


@pytest.mark.parametrize("channel", [0, 4, "a", "", True, -1])
def test_a_channel_that_is_not_there_is_refused(model, channel):
    past = np.asarray(next(examples(model.recipe.data, "test")).source)
    with pytest.raises(InvalidArgument, match="channel: wanted numbers from 1 to 3"):
        regard.look(model, past, channel=channel)


def test_channels_that_are_read_together_are_not_chosen(tmp_path, cache):
    keys = recipe(head={"channels": "together"}, steps=2)
    together = regard.train(keys, tmp_path / "r", cache=cache, progress=False)
    past = np.asarray(next(examples(together.recipe.data, "test")).source)
    look = regard.look(together, past)
    assert look.title == "48 vectors of 3 numbers"
    assert look.as_dict()["sources"][0]["channel"] is None
    with pytest.raises(InvalidArgument, match="channel: wanted none"):
        regard.look(together, past, channel=1)


def test_the_look_of_a_bare_model_has_channels_too(model):
    past = np.asarray(next(examples(model.recipe.data, "test")).source)
    batch = model.inputs.collate(model.inputs.encode([past]))
    look = regard.look(model.model, batch, channel=2)
    torch.testing.assert_close(look.maps[0].weights(), captured(model, past)[1])
    assert look.title == "attention of channel 2"


def limited(folder, cache):
    """A model with as many positions as its window has patches."""
    encoder = {"kind": "transformer", "dim": 16, "layers": 1, "heads": 2, "ffn_dim": 32}
    patches = {"kind": "vectors", "kernel": 8, "stride": 4, "padding": "end"}
    encoder |= {"positions": "learned", "max_positions": 12, "input": patches}
    return regard.train(recipe(encoder, steps=2), folder / "r", cache=cache, progress=False)


def test_a_look_at_a_longer_past_is_one_at_its_end(model, tmp_path, cache):
    for each in (model, limited(tmp_path, cache)):
        past = np.asarray(next(examples(each.recipe.data, "test")).source)
        longer = np.concatenate([past[:20] + 5, past])
        assert each.outputs([longer]) == each.outputs([past])
        np.testing.assert_array_equal(each.embed([longer]), each.embed([past]))
        whole = regard.look(each, past)
        look = regard.look(each, longer)
        torch.testing.assert_close(look.maps[0].weights(), whole.maps[0].weights())
        assert look.output == whole.output
        assert look.title == (
            "68 vectors of 3 numbers: the last 48 of 68 vectors, attention of channel 1"
        )
        assert look.as_dict()["sources"][0]["skipped"] == 20
        # The first vector that is read is the 21st.
        assert look.sources[0].tokens[:2] == ("21", "25")
        with pytest.raises(InvalidArgument, match=r"at least 48 vectors.*got 47"):
            regard.look(each, past[1:])


def test_a_look_at_a_split_shows_the_forecast_of_the_model(model):
    (source, output), *_ = pairs_of(model.recipe, ["test"])
    assert output is None
    assert regard.look(model, source, output=output).output.vectors


def test_a_window_has_one_embedding(model):
    past = np.asarray(next(examples(model.recipe.data, "test")).source)
    both = model.embed([past, past + 1])
    assert both.shape == (2, 16)
    torch.testing.assert_close(model.embed([past])[0], both[0], atol=1e-5, rtol=1e-4)


def test_an_interrupted_run_ends_with_the_same_weights(model, tmp_path, cache):
    half = recipe()
    half["train"]["max_steps"] = 3
    regard.train(half, tmp_path / "r", cache=cache, progress=False)
    resumed = regard.train(recipe(), tmp_path / "r", resume=True, cache=cache, progress=False)
    for name, weight in model.model.state_dict().items():
        assert weight.equal(resumed.model.state_dict()[name]), name


def test_windows_of_files_must_have_one_length(tmp_path):
    """Without [data.series], each example is a window of its own."""
    rows = [(np.ones((6, 1)) * i, np.ones((2, 1)) * i) for i in range(4)]
    tables = recipe(head={"channels": "together"})
    tables["data"] = {"source": FIELD, "target": FIELD}
    tables["train"] |= {"max_steps": 2, "monitor": "loss", "validate_every": 1}
    folder = tmp_path / "a"
    model = regard.train(tables, folder / "r", data={"train": rows}, cache=folder, progress=False)
    assert np.shape(model.outputs([np.ones((6, 1))])[0][0].vectors) == (2, 1)
    rows.append((np.ones((5, 1)), np.ones((2, 1))))
    with pytest.raises(InvalidData, match="row 5: wanted 6 vectors, as in the first example"):
        regard.train(tables, tmp_path / "r", data={"train": rows}, cache=tmp_path, progress=False)


def test_outputs_of_other_files_are_evaluated(model, tmp_path, cache):
    values = np.random.default_rng(0).normal(size=(80, 3))
    path = tmp_path / "new.csv"
    path.write_text("a,b,c\n" + "\n".join(",".join(map(str, row)) for row in values) + "\n")
    found = regard.evaluate(model, data=str(path), cache=cache, progress=False, resamples=10)
    assert found.examples == (80 - WINDOW - HORIZON) // 7 + 1


def test_as_many_patches_as_positions_are_read(tmp_path, cache):
    """The limit of learned positions is one of patches, not of the vectors that they are made of."""
    encoder = recipe()["model"]["encoder"] | {"positions": "learned", "max_positions": 12}
    model = regard.train(recipe(encoder, steps=2), tmp_path / "r", cache=cache, progress=False)
    past = np.asarray(next(examples(model.recipe.data, "test")).source)
    assert np.shape(model.outputs([past])[0][0].vectors) == (HORIZON, 3)
    assert model.inputs._limit(1024) == WINDOW
