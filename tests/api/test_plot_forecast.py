"""Forecasts beside what is true and what was before: the values of the curves, in a drawing and in a terminal."""

import json
from datetime import datetime, timedelta

import numpy as np
import pytest

import regard
from regard.api.plot_forecast import forecast_panels
from support.command_line import command
from support.series import trained

WINDOW = 12
HORIZON = 4


@pytest.fixture(scope="module")
def forecaster(tmp_path_factory):
    """A table of 60 rows, and a model of windows of them."""
    folder = tmp_path_factory.mktemp("forecaster")
    steps = np.arange(60)
    rows = np.stack([np.sin(steps / 3), steps / 10], 1)
    lines = ["a,b", *(",".join(map(str, row)) for row in rows.round(4).tolist())]
    (folder / "t.csv").write_text("\n".join(lines) + "\n")
    keys = {
        "data": {
            "train": str(folder / "t.csv"),
            "series": {"window": WINDOW, "horizon": HORIZON, "split": [0.4, 0.3, 0.3]},
            "source": {"kind": "vectors"},
            "target": {"kind": "vectors"},
        },
        "model": {"encoder": {"kind": "rnn", "dim": 8}, "head": "horizon"},
        "train": {"max_steps": 2, "batch_tokens": 400},
    }
    model = regard.train(keys, folder / "run", cache=folder / "cache")
    return model, rows.round(4)


def test_a_panel_has_the_past_the_truth_and_the_forecast(forecaster):
    model, rows = forecaster
    # The test split is the last 18 rows, with the window before them.
    first = 42 - WINDOW
    past = rows[first : first + WINDOW]
    truth = rows[first + WINDOW : first + WINDOW + HORIZON]
    predicted = np.array(model.outputs([past])[0][0].vectors)
    panels = forecast_panels(predicted, truth, past)
    assert [*panels] == ["channel 1", "channel 2"]
    for number, curves in enumerate(panels.values()):
        assert curves["look-back"][0] == (1.0 - WINDOW, past[0, number])
        assert curves["look-back"][-1] == (0.0, past[-1, number])
        assert curves["truth"] == [(1.0 + i, truth[i, number]) for i in range(HORIZON)]
        assert curves["forecast"] == [(1.0 + i, predicted[i, number]) for i in range(HORIZON)]
    text = regard.plot_forecast(model, "test", width=60)
    assert text.splitlines()[0] == "channel a   • look-back   + truth   x forecast"
    assert text.splitlines()[14].split() == [str(1 - WINDOW), str(HORIZON)]
    assert all(len(line) <= 60 for line in text.splitlines())
    whole = [value for curve in panels["channel 2"].values() for _, value in curve]
    panel = text.split("\n\n")[1].splitlines()
    assert float(panel[1].split()[0]) == pytest.approx(max(whole), rel=1e-3)
    assert float(panel[12].split()[0]) == pytest.approx(min(whole), rel=1e-3)


def test_what_is_shown_is_chosen(forecaster, tmp_path):
    model, _ = forecaster
    run = model.folder
    shown = command("plot", run, "--data", "test", "--channel", "2", "--look-back", "3").stdout
    assert shown.splitlines()[0].startswith("channel b")
    assert command("plot", run, "--data", "test", "--channel", "b", "--look-back", "3").stdout == (
        shown
    )
    assert shown.splitlines()[-1].split() == ["-2", str(HORIZON)]
    other = command("plot", run, "--data", "test", "--channel", "2", "--example", "5").stdout
    assert other != command("plot", run, "--data", "test", "--channel", "2").stdout
    drawn = tmp_path / "x.svg"
    assert command("plot", run, "--data", "test", "--out", drawn).stdout == ""
    svg = drawn.read_text()
    assert "forecast of example 1" in svg
    assert svg.count("<line") > 2 * (WINDOW + 2 * HORIZON - 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--data", "test", "--channel", "3"],
            "channels: wanted one of a, b, or numbers from 1 to 2",
        ),
        (["--data", "test", "--example", "1000"], "example: wanted one of the data; got 1000"),
        (["--data", "test", "--out", "x.pdf"], "out: wanted a name in .svg, .png"),
        (["--channel", "1"], "--channel: wanted --data, of which it is"),
        (["--data", "none.csv"], "none.csv"),
    ],
)
def test_wrong_options_are_refused(forecaster, options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    failed = command("plot", forecaster[0].folder, *options)
    assert failed.returncode
    assert message in failed.stderr
    assert not list(tmp_path.iterdir())


def hour(number):
    return (datetime(2024, 1, 1) + timedelta(hours=number)).isoformat(sep=" ")


@pytest.fixture(scope="module")
def generator(tmp_path_factory):
    """A table of 60 hours, and a model that generates step by step what follows windows of them."""
    folder = tmp_path_factory.mktemp("generator")
    steps = np.arange(60)
    values = np.sin(steps / 3).round(4)
    lines = ["date,a", *(f"{hour(i)},{value}" for i, value in enumerate(values.tolist()))]
    (folder / "t.csv").write_text("\n".join(lines) + "\n")
    series = {"time": "date", "window": WINDOW, "horizon": HORIZON, "split": [0.4, 0.3, 0.3]}
    keys = {
        "data": {
            "train": str(folder / "t.csv"),
            "series": series,
            "source": {"kind": "vectors"},
            "target": {"kind": "vectors"},
        },
        "model": {"encoder": {"kind": "rnn", "dim": 8}, "decoder": {"kind": "rnn", "dim": 8}},
        "train": {"max_steps": 2, "batch_tokens": 400},
    }
    return regard.train(keys, folder / "run", cache=folder / "cache")


def test_a_series_that_is_generated_step_by_step_has_its_past(generator, tmp_path):
    text = regard.plot_forecast(generator, "test", width=70)
    first, *_, last = text.splitlines()
    assert first == "channel a   • look-back   + truth   x forecast"
    # The test split begins with row 42; times are those of the table.
    assert last.split() == [*hour(42 - WINDOW).split(), *hour(42 + HORIZON - 1).split()]
    drawn = tmp_path / "x.svg"
    regard.plot_forecast(generator, "test", drawn)
    svg = drawn.read_text()
    assert f"forecast of example 1, after {hour(41)}" in svg
    # Ticks have their times without the year.
    assert hour(41 - 5)[5:-3] in svg


def test_the_json_of_a_forecast_has_its_times(generator):
    table = generator.recipe.data.train
    (line,) = command("predict", generator.folder, table, "--json").stdout.splitlines()
    told = json.loads(line)
    assert told["input"].endswith(f"t.csv, {hour(60 - WINDOW)} to {hour(59)}")
    assert told["times"] == [hour(60 + i) for i in range(HORIZON)]
    assert len(told["outputs"][0]["vectors"]) == HORIZON


def test_a_source_is_drawn_where_rows_of_it_are_asked_for(tmp_path_factory):
    model = trained(tmp_path_factory.mktemp("asked"), "vectors")
    text = regard.plot_forecast(model, "test", look_back=2)
    assert text.splitlines()[0] == "channel 1   • look-back   + truth   x forecast"
    assert text.splitlines()[14].split()[0] == "-1"


def test_outputs_of_the_length_of_their_source_have_no_past(tmp_path_factory):
    model = trained(tmp_path_factory.mktemp("vectors"), "vectors")
    text = regard.plot_forecast(model, "test")
    assert text.splitlines()[0] == "channel 1   • truth   + forecast"


def test_a_model_without_vectors_is_refused(tmp_path_factory):
    model = trained(tmp_path_factory.mktemp("labels"))
    with pytest.raises(regard.InvalidArgument, match="one that gives labels"):
        regard.plot_forecast(model, "test")
