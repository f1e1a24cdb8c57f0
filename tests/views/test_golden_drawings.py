"""Every kind of drawing against the file that it was when somebody last looked at it (tests/golden/drawings).

After a change that is meant: PYTHONPATH=tests python -m views.test_golden_drawings, and look at what changed.
"""

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from regard.evaluation.comparison import AnswerAttention, ComparedExample, Comparison, SystemAnswer
from regard.evaluation.report import LengthGroup, MetricResult, Report, System
from regard.interpret.look import Look, Text
from regard.interpret.maps import AttentionMap
from regard.views import caption_overlay, charts, terminal
from regard.views.canvas import SvgCanvas
from regard.views.comparison import _points, comparison_figure, comparison_page, comparison_text
from regard.views.curves import curves_text, draw_curves
from regard.views.figures import heads, heat, lines
from regard.views.training_curves import curve_points, panels

GOLDEN = Path(__file__).parents[1] / "golden" / "drawings"
EVENTS = [
    *({"event": "train", "step": s, "loss": 4.5 / (1 + s), "nll": 4.0 / (1 + s), "rate": s / 64} for s in range(1, 9)),
    {"event": "train", "step": 9, "loss": math.inf, "rate": 0.25},
    {"event": "train", "loss": 1.0},
    *({"event": "validation", "step": s, "epoch": 1, "loss": 5.0 / (1 + s), "perplexity": 2.0, "bleu": 4.5 * s}
      for s in (4, 8)),
]  # fmt: skip
WEIGHTS = [[0.5, 0.25, 0.25], [0.0, 1.0, 0.0], [0.0625, 0.125, 0.8125], [0.003, 0.99, 0.007]]
ROWS, KEYS = (
    ["a", "<dog>", "& cats", "an unusually long word"],
    ["the", "cat", "sat on a mat, all day"],
)


@dataclass(frozen=True, repr=False, eq=False)
class FixedMap(AttentionMap):
    """Weights that no model has computed: the same on every processor. The second head has them in reverse order."""

    def weights(self, rows=None, heads=None):
        both = torch.tensor([WEIGHTS, [row[::-1] for row in WEIGHTS]])
        return both[self.shown_heads][:, self.shown_rows if rows is None else rows]

    def tiles(self):
        for first in (0, 2):
            rows = slice(first, first + 2)
            yield rows, 0, self.weights([*range(4)])[:, rows], None


def look() -> Look:
    maps = tuple(
        FixedMap(f"decoder {n} cross", "cross", "decoder", n, 2, (4, 3), False) for n in (1, 2)
    )
    return Look("a look", (Text(tuple(KEYS)),), None, maps, None)


def comparison() -> Comparison:
    def results(value: float, wide: float) -> dict[str, MetricResult]:
        return {
            "bleu": MetricResult(
                value, value - wide, value + wide, 1.5, 0.03125, signature="made up"
            ),
            "chrf": MetricResult(value + 20, value + 19, value + 22, -0.25, 0.5),
        }

    def system(name: str, value: float) -> System:
        groups = [
            LengthGroup(1, 1, 7, results(value, 4)),
            LengthGroup(2, 5, 20, results(value + 3, 2)),
        ]
        return System(name, results(value, 2), (), groups)

    seen = AnswerAttention(ROWS, KEYS, WEIGHTS)
    answers = [
        SystemAnswer("one two", {"bleu": 12.5}, seen),
        SystemAnswer("one <b>", {"bleu": 50.0}, None),
    ]
    report = Report(
        27,
        1000,
        0.95,
        0,
        [system("first", 20.0), system("a name of more than twenty-eight letters", 26.0)],
    )
    return Comparison(
        report, [ComparedExample(1234, "eins zwei", ["one 2", "1 2"], 0.625, answers)]
    )


def chart() -> SvgCanvas:
    drawn = [
        charts.ChartLine(
            f"line {n}",
            [
                (n - 0.5, n + 0.25, n + 1.0),
                None,
                (1.0, 1.0, 1.0),
                (0.0, math.nan, 1.0),
                (2.0, 3.0, 4.0),
            ],
        )
        for n in range(5)
    ]
    return charts.lines("lines", ["a", "b", "c", "d", "e"], drawn, lambda value: f"{value:.1f}")


def overlay() -> bytes:
    pixels = (np.arange(30 * 20 * 3).reshape(30, 20, 3) % 251).astype(np.uint8)
    weights = torch.tensor(WEIGHTS)[:, [0, 1, 2, 2, 1, 0]].view(4, 3, 2)
    words = [*ROWS, *ROWS[:3]]
    return caption_overlay.draw(
        caption_overlay.Overlay("a <file>", pixels, words, weights.repeat(2, 1, 1)[:7]), ".svg"
    )


def terminal_maps() -> str:
    weights = torch.tensor(WEIGHTS)
    parts = [
        terminal.heat_map(weights, ROWS, KEYS, width=width, numbers=numbers)
        for width in (44, 80)
        for numbers in (False, True)
    ]
    parts += [
        terminal.heat_map(weights, ROWS, KEYS, color=True, numbers=numbers)
        for numbers in (False, True)
    ]
    grids = torch.tensor(WEIGHTS)[:, [0, 1, 2, 2, 1, 0]]
    parts += [
        terminal.grid_maps(grids, ROWS, (2, 3), width=width, color=width == 60)
        for width in (40, 60)
    ]
    return "\n\n".join(parts)


CURVES = panels([point for event in EVENTS for point in curve_points(event)])
DRAWINGS = {
    "curves.svg": lambda: draw_curves(CURVES, SvgCanvas).decode(),
    "curves.txt": lambda: curves_text(CURVES, width=60),
    "lines.svg": lambda: chart().content().decode(),
    "heat-map.svg": lambda: charts.heat_map("a map", ROWS, KEYS, WEIGHTS).content().decode(),
    "comparison.svg": lambda: comparison_figure(comparison()),
    "comparison.html": lambda: comparison_page(comparison()),
    "comparison.txt": lambda: comparison_text(comparison()),
    "look-heat.svg": lambda: heat(look(), look().maps[1], ".svg").decode(),
    "look-heads.svg": lambda: heads(look(), look().maps[1], ".svg").decode(),
    "look-lines.svg": lambda: lines(look(), look().maps[1], ".svg").decode(),
    "terminal.txt": terminal_maps,
}


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_drawing_is_as_it_was(name, monkeypatch):
    monkeypatch.delenv("COLORTERM", raising=False)
    assert DRAWINGS[name]() == (GOLDEN / name).read_text("utf-8")


def test_words_on_an_image_are_where_they_were():
    """Without its pixels, which are those of an encoder of JPEG."""
    assert without_pixels(overlay().decode()) == (GOLDEN / "overlay.svg").read_text("utf-8")


def without_pixels(drawn: str) -> str:
    return "\n".join(line.partition(' href="data:')[0] for line in drawn.splitlines())


if __name__ == "__main__":
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for name, drawn in DRAWINGS.items():
        (GOLDEN / name).write_text(drawn(), "utf-8")
    (GOLDEN / "overlay.svg").write_text(without_pixels(overlay().decode()), "utf-8")


def test_grids_are_side_by_side_where_they_fit():
    weights = torch.tensor([[0.5, 0.5], [0.2, 0.8], [0.9, 0.1]])
    names, title = ("one", "two", "red"), "one 50%"
    fits = 3 * len(title) + 2 * 2  # two columns between grids
    for width, across in (
        (fits, 3),
        (fits - 1, 2),
        (2 * len(title) + 2, 2),
        (2 * len(title) + 1, 1),
        (1, 1),
    ):
        first = terminal.grid_maps(weights, names, (1, 2), width=width).splitlines()[0]
        assert sum(name in first for name in names) == across, width


def test_lengths_without_an_interval_have_no_point():
    """Where a group has too few examples to be resampled, or a system no such metric."""
    results = [MetricResult(3.0, 1.0, 4.0), MetricResult(3.0), None, MetricResult(2.0, 2.0, 2.0)]
    groups = [LengthGroup(1, 2, 5, {} if one is None else {"bleu": one}) for one in results]
    assert _points(System("s", {}, [], groups), "bleu") == [
        (1.0, 3.0, 4.0),
        None,
        None,
        (2.0, 2.0, 2.0),
    ]


@pytest.mark.parametrize(("letters", "shown"), [(40, "a" * 40), (41, "a" * 39 + "…")])
def test_names_of_curves_are_shortened(letters, shown):
    drawn = draw_curves({"loss": {"a" * letters: [(1.0, 2.0), (2.0, 1.0)]}}, SvgCanvas).decode()
    assert f">{shown}<" in drawn


@pytest.mark.parametrize("draw", [lines, heat])
def test_a_drawing_is_as_wide_as_its_title(draw):
    """Which may be wider than the map below it."""
    of = FixedMap("decoder 1 cross" + " and more" * 30, "cross", "decoder", 1, 2, (4, 3), False)
    drawn = draw(replace(look(), maps=(of,)), of, ".svg").decode()
    wide = float(re.search(r'width="([\d.]+)"', drawn)[1])
    title = re.search(r">(decoder 1 cross[^<]*)<", drawn)[1]
    assert wide >= charts.EDGE + charts.text_width([title]) - 1
