"""Attention over time: the series in JSON, in a terminal and in drawings, and the weights that are drawn of it."""

import base64
import json
import re

import numpy as np
import pytest
import torch

import regard
from regard.data.time_axis import TimeAxis, stamps_of
from regard.interpret.series import COLUMNS, ROWS, Series, span_means
from regard.views.canvas import SvgCanvas
from regard.views.figures import draw
from regard.views.series_drawing import NAMED, Strip, draw_points, spans_of_largest, tick_places
from regard.views.series_text import series_map, sparkline
from regard.views.terminal import look_text
from support.series import DIM, LABELS, trained


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def strided(tmp_path_factory):
    folder = tmp_path_factory.mktemp("strided")
    return trained(folder, input={"kind": "vectors", "kernel": 4, "stride": 4})


def waves(length: int, dimension: int = DIM) -> np.ndarray:
    steps = np.arange(length)[:, None] + np.arange(dimension)
    return np.sin(0.1 * steps).astype(np.float32) * 100


def unpacked(told: dict) -> np.ndarray:
    """The numbers of a series in JSON."""
    shares = np.frombuffer(base64.b64decode(told["data"]), "<u2").reshape(told["shape"]) / 65534
    least, most = (np.array(told[name]).reshape(1, -1, 1) for name in ("least", "most"))
    return least + shares * (most - least)


def test_a_look_has_the_series_in_its_own_units(model):
    given = waves(9)
    look = regard.look(model, given)
    assert look.title == "9 vectors of 3 numbers"
    (source,) = look.sources
    np.testing.assert_allclose(source.values, given, atol=1e-3)
    assert source.tokens == tuple("123456789")
    told = json.loads(look.to_json())["sources"][0]
    both = unpacked(told)
    assert (told["kind"], told["length"], told["picture"]) == ("series", 9, False)
    # Each point of time is one vector: the least and the largest number are the same.
    np.testing.assert_allclose(both[0], given.T, atol=0.01)
    np.testing.assert_allclose(both[1], given.T, atol=0.01)


def test_a_long_series_keeps_its_extremes_in_json():
    values = waves(5 * COLUMNS)
    values[777, 1] = 1e4
    told = Series(values).as_dict()
    low, high = unpacked(told)
    spans = values.T.reshape(DIM, COLUMNS, 5)
    np.testing.assert_allclose(low, spans.min(2), atol=0.2)
    np.testing.assert_allclose(high, spans.max(2), atol=0.2)
    assert high[1].argmax() == 777 // 5


def test_a_picture_has_means():
    values = waves(3 * COLUMNS, 4 * ROWS)
    series = Series(values)
    told = series.as_dict()
    assert (told["picture"], told["shape"]) == (True, [1, ROWS, COLUMNS])
    wanted = values.T.reshape(ROWS, 4, COLUMNS, 3).mean((1, 3))
    np.testing.assert_allclose(unpacked(told)[0], wanted, atol=0.01)


def test_missing_numbers_are_gaps():
    values = waves(6)
    values[2, 0] = np.nan
    values[:, 1] = np.nan
    told = Series(values).as_dict()
    numbers = np.frombuffer(base64.b64decode(told["data"]), "<u2").reshape(told["shape"])
    assert (numbers == 65535).tolist() == np.isnan(np.stack([values.T] * 2)).tolist()
    assert json.dumps(told, allow_nan=False)
    assert sparkline(values[:, 0])[2] == " "
    assert sparkline(values[:, 1]) == " " * 6
    assert span_means(values, 3)[1, 0] == values[3, 0]


def test_a_missing_number_is_no_point_of_a_drawing(model, tmp_path):
    look = regard.look(model, waves(12))
    values = waves(12)
    values[3:5] = np.nan
    shown = regard.Look(look.title, (Series(values),), look.output, look.maps, look.forward)
    draw(shown, tmp_path / "x.svg")
    assert '"nan' not in (tmp_path / "x.svg").read_text()


def test_a_constant_series_is_drawn():
    told = Series(np.full((4, 2), 7.0, np.float32)).as_dict()
    np.testing.assert_allclose(unpacked(told), 7.0)
    assert sparkline(np.full(3, 7.0, np.float32)) == "▄▄▄"


@pytest.mark.parametrize("length", [4, 5, 8, 11])
def test_positions_of_a_convolution_have_the_time_of_their_first_vector(strided, length):
    look = regard.look(strided, waves(length))
    assert look.sources[0].tokens == tuple(str(number) for number in range(1, length + 1, 4))
    for each in look.maps:
        assert each.size[1] == len(look.sources[0].tokens)


@pytest.mark.parametrize(
    ("axis", "names"),
    [
        (TimeAxis(), ("1", "3")),
        (TimeAxis(step=0.01), ("0 s", "0.02 s")),
        (TimeAxis(step=0.5, start=-1.0, unit="h"), ("-1 h", "0 h")),
        (stamps_of(["Mon", "Tue", "Wed"]), ("Mon", "Wed")),
    ],
)
def test_positions_are_named_by_their_time(axis, names):
    assert Series(waves(3), axis, stride=2).tokens == names
    assert Series(waves(3), axis, stride=2, units=1).tokens == ("[CLS]", *names)


@pytest.mark.parametrize(("length", "points"), [(NAMED - 2, 240), (NAMED + 20, 240), (300, 16)])
def test_what_is_drawn_is_the_largest_mean_weight(model, length, points):
    """Of few rows each; of many the largest of several, in one pass over tiles."""
    look = regard.look(model, waves(length))
    of = look["encoder 1"]
    strip = Strip.of(look, of, look.sources[0], points)
    whole = of.weights().mean(0).numpy()
    columns = min(points, length)
    if length > NAMED:
        rows = np.arange(length) * len(strip.weights) // length
        whole = np.stack([whole[rows == row].max(0) for row in range(len(strip.weights))])
    starts = np.arange(length) * columns // length
    wanted = np.stack([whole[:, starts == column].max(1) for column in range(columns)], 1)
    if length % columns == 0:
        np.testing.assert_allclose(strip.weights, wanted, atol=1e-6)
    assert strip.weights.max() == pytest.approx(whole.max(), abs=1e-6)
    assert bool(strip.names) == (length <= NAMED)


def test_spans():
    line = np.array([[1.0, 5.0, 2.0, 3.0, 9.0]], np.float32)
    assert spans_of_largest(line, 2).tolist() == [[5.0, 9.0]]
    assert span_means(line.T, 2)[:, 0].tolist() == [3.0, pytest.approx(14 / 3)]
    assert span_means(line.T, 9) is line.T or span_means(line.T, 9).tolist() == line.T.tolist()


def test_a_series_in_a_terminal(model):
    given = waves(20)
    look = regard.look(model, given)
    lines = look_text(look, map="encoder 1", width=60).split("\n")
    assert lines[0].startswith("20 vectors of 3 numbers → ")
    assert any(label in lines[0] for label in LABELS)
    channels = lines[3 : 3 + DIM]
    assert [line[:3] for line in channels] == [" 1 ", " 2 ", " 3 "]
    assert channels[0][3:] == sparkline(given[:, 0])
    weights = look["encoder 1"].weights().mean(0)
    for row, line in enumerate(lines[3 + DIM : 3 + DIM + 20]):
        best = int(weights[row].argmax())
        assert line.endswith(f"→ {best + 1} {float(weights[row].max()):.1%}")
        assert line[3 + best] == "█"
    assert lines[3 + DIM + 20].split() == ["1", "20"]


def test_many_channels_are_few_lines_in_a_terminal():
    series = Series(waves(500, 80))
    lines = series_map(series, torch.eye(500)[:2], ["a", "b"], width=80).split("\n")
    assert len(lines) == 8 + 2 + 1
    assert all(len(line) <= 80 for line in lines)
    assert (lines[0].split()[0], lines[7].split()[0]) == ("80", "1")


@pytest.mark.parametrize("dimension", [2, 40])
def test_a_drawing_has_the_signal_and_the_times(model, tmp_path, dimension):
    look = regard.look(model, waves(50))
    source = Series(waves(50, dimension), TimeAxis(step=0.1))
    shown = regard.Look(look.title, (source,), look.output, look.maps, look.forward)
    draw(shown, tmp_path / "x.svg")
    svg = (tmp_path / "x.svg").read_text()
    assert ("<line" in svg, "0 s</text>" in svg, "pool, head 0; darkest" in svg) == (True,) * 3
    places = [float(x) for x in re.findall(r'x="([\d.]+)"[^>]*>[\d.]+ s<', svg)]
    assert places == sorted(places)
    assert len(places) == len(tick_places(source, 720))
    draw(shown, tmp_path / "y.svg", map="encoder 1")
    assert "rows</text>" in (tmp_path / "y.svg").read_text()


def test_a_drawing_as_png(model, tmp_path):
    image = pytest.importorskip("PIL.Image", reason="needs the extra `images`")
    draw(regard.look(model, waves(30)), tmp_path / "x.png")
    with image.open(tmp_path / "x.png") as opened:
        # Two lines of attention have other colors than the white ground.
        assert len(np.unique(np.asarray(opened.convert("RGB")).reshape(-1, 3), axis=0)) > 5


def test_another_view_is_refused(model, tmp_path):
    look = regard.look(model, waves(5))
    with pytest.raises(regard.InvalidArgument, match="keys are regions of an image"):
        draw(look, tmp_path / "x.svg", view="image")
    draw(look, tmp_path / "x.svg", view="heat")


def test_boxes_of_one_color_are_one():
    drawn = []

    class Recorder(SvgCanvas):
        def box(self, at, size, fill):
            drawn.append((at, size, fill))

    shares = np.array([[0, 0, 1, 1, 0.5]], np.float32)
    draw_points(Recorder(50, 10), shares, (0, 0), (50, 10))
    assert [(at[0], size[0]) for at, size, _ in drawn] == [(0, 50), (20, 20), (40, 10)]
