"""The head of forecasts: instance normalization, independent channels, patches, and what they compute exactly."""

import numpy as np
import pytest
import torch

import regard
from regard.core.errors import InvalidArgument, InvalidRecipe
from regard.core.sequence import Vectors
from support.predictors import PARTS

ENCODERS = {
    "bag": {"kind": "bag", "dim": 16},
    "mlp": {"kind": "mlp", "dim": 16, "ffn_dim": 32},
    "rnn": PARTS["rnn"],
    "conv": PARTS["conv"],
    "transformer": PARTS["transformer"],
}
LENGTH = 12
HORIZON = 5
CHANNELS = 3


def model_of(encoder="mlp", head=None, input=None, source_dim=CHANNELS):
    torch.manual_seed(0)
    table = {
        "encoder": {**ENCODERS[encoder], "input": {"kind": "vectors", **(input or {})}},
        "head": {"kind": "horizon", **(head or {})},
        "source_dim": source_dim,
        "num_labels": CHANNELS,
        "horizon": HORIZON,
        "source_length": LENGTH,
    }
    return regard.build(table).eval()


def windows(batch=2, dim=CHANNELS):
    torch.manual_seed(1)
    return torch.randn(batch, LENGTH, dim)


def of(values):
    return Vectors(values, torch.full((len(values),), values.shape[1]))


@pytest.mark.parametrize("channels", ["together", "independent"])
@pytest.mark.parametrize("read", ["flatten", "mean", "last"])
@pytest.mark.parametrize("encoder", ENCODERS)
def test_every_encoder_forecasts_all_steps(encoder, read, channels):
    model = model_of(encoder, {"read": read, "channels": channels})
    together = model(of(windows()))
    assert together.shape == (2, HORIZON, CHANNELS)
    for window, forecast in zip(windows(), together, strict=True):
        torch.testing.assert_close(model(of(window[None]))[0], forecast, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_independent_channels_do_not_read_one_another(encoder):
    model = model_of(encoder, {"channels": "independent", "instance_norm": "mean_std"})
    values = windows()
    changed = values.clone()
    changed[:, :, 1] += torch.randn(LENGTH)
    before, after = model(of(values)), model(of(changed))
    torch.testing.assert_close(before[..., [0, 2]], after[..., [0, 2]])
    assert not torch.allclose(before[..., 1], after[..., 1])
    # Their weights are shared: permuted channels have permuted forecasts.
    permuted = model(of(values[..., [2, 0, 1]]))
    torch.testing.assert_close(permuted, before[..., [2, 0, 1]], atol=1e-5, rtol=1e-4)


def test_channels_that_are_not_forecast_are_read_beside_each():
    model = model_of("mlp", {"channels": "independent"}, source_dim=CHANNELS + 2)
    assert model.encoder.input_module.source_dim == 3
    values = windows(dim=CHANNELS + 2)
    changed = values.clone()
    changed[..., -1] += 1
    assert model(of(values)).shape == (2, HORIZON, CHANNELS)
    assert not torch.isclose(model(of(values)), model(of(changed))).any()


@pytest.mark.parametrize("norm", ["last", "mean", "mean_std"])
@pytest.mark.parametrize("channels", ["together", "independent"])
def test_a_shifted_window_has_the_shifted_forecast(norm, channels):
    model = model_of("rnn", {"instance_norm": norm, "channels": channels})
    values = windows()
    shift = torch.tensor([10.0, -3.0, 0.5])
    expected = model(of(values)) + shift
    torch.testing.assert_close(model(of(values + shift)), expected, atol=1e-4, rtol=1e-4)


def test_a_scaled_window_has_the_scaled_forecast():
    model = model_of("rnn", {"instance_norm": "mean_std", "affine": True})
    values = windows()
    with torch.no_grad():
        model.head.gain += torch.randn(CHANNELS) * 0.1
        model.head.bias += torch.randn(CHANNELS)
    expected = model(of(values)) * 3.0
    torch.testing.assert_close(model(of(values * 3.0)), expected, atol=1e-3, rtol=1e-3)


def test_a_head_without_weights_repeats_what_was_subtracted():
    for norm, repeated in (("last", windows()[:, -1]), ("mean", windows().mean(1))):
        model = model_of("mlp", {"instance_norm": norm})
        with torch.no_grad():
            for parameter in model.head.proj.parameters():
                parameter.zero_()
        expected = repeated[:, None].expand(-1, HORIZON, -1)
        torch.testing.assert_close(model(of(windows())), expected)


def test_a_window_that_never_changes_is_not_divided_by_zero():
    model = model_of("mlp", {"instance_norm": "mean_std"})
    assert model(of(torch.full((1, LENGTH, CHANNELS), 7.0))).isfinite().all()


def test_missing_values_are_left_out_of_the_levels():
    model = model_of("mlp", {"instance_norm": "mean_std"})
    values = windows()
    values[0, 3, 1] = torch.nan
    _, levels = model.head.normalized(of(values))
    known = np.delete(values[0, :, 1].numpy(), 3)
    assert levels.shift[0, 0, 1].item() == pytest.approx(known.mean(), abs=1e-6)
    assert levels.scale[0, 0, 1].item() == pytest.approx(np.sqrt(known.var() + 1e-5), abs=1e-6)
    values[:, -1, 0] = torch.nan
    of_last = model_of("mlp", {"instance_norm": "last"})
    _, levels = of_last.head.normalized(of(values))
    torch.testing.assert_close(levels.shift[:, 0, 0], values[:, -2, 0])
    values[1] = torch.nan
    assert model(of(values)).isfinite().all()


def test_a_linear_model_of_the_whole_window_is_its_matrix():
    """One patch of the whole window, a bag of one state, and a flattened head: a product of two matrices."""
    input = {"kernel": LENGTH, "stride": LENGTH, "padding": "end"}
    model = model_of("bag", {"channels": "independent"}, input)
    values = windows()
    patch, head = model.encoder.input_module.proj, model.head.proj
    first = patch.weight[:, 0]  # (W, L)
    hidden = torch.einsum("wl,blc->bcw", first, values) + patch.bias
    expected = (hidden @ head.weight.T + head.bias).mT
    torch.testing.assert_close(model(of(values)), expected, atol=1e-5, rtol=1e-4)


def test_patches_begin_at_the_strides_and_repeat_the_last_vector_at_the_end():
    input = {"kernel": 4, "stride": 2, "padding": "end"}
    model = model_of("bag", input=input)
    module = model.encoder.input_module
    rows = [torch.randn(length, CHANNELS) for length in (7, 12)]
    read = module.read(Vectors.of(rows))
    assert read.lengths.tolist() == [4, 6]
    for row, states, count in zip(rows, read.states(), (4, 6), strict=True):
        padded = torch.cat((row, row[-1:].expand(3, -1)))
        for i in range(count):
            patch = padded[2 * i : 2 * i + 4]  # (4, C)
            expected = torch.einsum("wck,kc->w", module.proj.weight, patch) + module.proj.bias
            torch.testing.assert_close(states[i], expected, atol=1e-5, rtol=1e-4)


def test_windows_of_another_length_are_refused_by_a_flattened_head():
    model = model_of("mlp")
    with pytest.raises(InvalidArgument, match="of which the encoder makes 12 states; got 9"):
        model(of(windows()[:, :9]))
    assert model_of("mlp", {"read": "mean"})(of(windows()[:, :9])).shape == (2, HORIZON, CHANNELS)


def test_keys_without_effect_are_refused():
    with pytest.raises(InvalidRecipe, match="affine: wanted false unless instance_norm"):
        model_of("mlp", {"affine": True})
    with pytest.raises(InvalidRecipe, match=r"model.horizon: wanted nothing here"):
        regard.build(
            {"encoder": ENCODERS["mlp"] | {"input": {"kind": "vectors"}}, "source_dim": 2}
            | {"head": {"kind": "vectors"}, "num_labels": 2, "horizon": 3}
        )
