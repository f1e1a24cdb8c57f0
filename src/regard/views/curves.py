"""Curves over training steps, or over rows of a series: in a terminal, or drawn as SVG or PNG."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import isfinite

from rich.cells import cell_len

from regard.views.canvas import Canvas, shortened
from regard.views.charts import COLORS, number_range, ticks

Curve = Sequence[tuple[float, float]]  # steps and values
StepName = Callable[[float], str]
# Pixels of a panel, and its margins.
WIDE = 640
HIGH = 260
LEFT = 76
RIGHT = 20
TOP = 30
BOTTOM = 28
ROWS = 12  # lines of a panel in a terminal
MARKS = "•+x*o#@"  # one for each curve
BRIEF = 40  # letters of a curve's name, at most


def step_name(step: float) -> str:
    """The number of a step, as it is written below curves."""
    return f"{step:,.0f}"


def curves_text(
    panels: Mapping[str, Mapping[str, Curve]], *, width: int = 80, name: StepName = step_name
) -> str:
    """A panel for each title, with its curves by name, as lines of text.

    name   what is written of the first and the last step
    """
    shown = [_panel_text(title, curves, width, name) for title, curves in panels.items()]
    return "\n\n".join(shown)


def _panel_text(title: str, curves: Mapping[str, Curve], width: int, name: StepName) -> str:
    finite = {curve: _finite(points) for curve, points in curves.items()}
    points = [point for curve in finite.values() for point in curve]
    low, high = number_range([value for _, value in points], margin=0.0)
    first, last = number_range([step for step, _ in points], margin=0.0)
    labels = [f"{high:.4g}", *[""] * (ROWS - 2), f"{low:.4g}"]
    margin = max(map(cell_len, labels))
    across = max(10, width - margin - 3)
    grid = [[" "] * across for _ in range(ROWS)]
    for mark, curve in zip(_marks(len(finite)), finite.values(), strict=True):
        for step, value in curve:
            x = round((step - first) / (last - first) * (across - 1))
            grid[round((high - value) / (high - low) * (ROWS - 1))][x] = mark
    keys = "   ".join(
        f"{mark} {curve}" for mark, curve in zip(_marks(len(finite)), finite, strict=True)
    )
    lines = [
        f"{label:>{margin}} │{''.join(row)}".rstrip()
        for label, row in zip(labels, grid, strict=True)
    ]
    steps = name(first).ljust(across - len(name(last))) + name(last)
    return "\n".join(
        [f"{title}   {keys}", *lines, f"{'':>{margin}} └{'─' * across}", f"{'':>{margin}}  {steps}"]
    )


def draw_curves(
    panels: Mapping[str, Mapping[str, Curve]],
    canvas_type: type[Canvas],
    *,
    title: str = "training curves",
    name: StepName = step_name,
) -> bytes:
    """The panels one below the other, as an image.

    name   what is written of a step
    """
    every = [step for curves in panels.values() for curve in curves.values() for step, _ in curve]
    steps = number_range(every, margin=0.0)
    legend = 18 * max((len(curves) for curves in panels.values()), default=0)
    canvas = canvas_type(WIDE, (HIGH + legend) * len(panels), title=title)
    for number, (title, curves) in enumerate(panels.items()):
        _draw_panel(canvas, number * (HIGH + legend), title, curves, steps, name)
    return canvas.content()


def _draw_panel(
    canvas: Canvas,
    above: int,
    title: str,
    given: Mapping[str, Curve],
    steps: tuple[float, float],
    name: StepName,
) -> None:
    curves = {label: _finite(curve) for label, curve in given.items()}
    low, high = number_range([value for curve in curves.values() for _, value in curve])
    first, last = steps

    def place(step: float, value: float) -> tuple[float, float]:
        x = LEFT + (WIDE - LEFT - RIGHT) * (step - first) / (last - first)
        return x, above + TOP + (HIGH - TOP - BOTTOM) * (high - value) / (high - low)

    canvas.text((LEFT, above + 14), title)
    for value in ticks(low, high):
        start = place(first, value)
        end = place(last, value)
        canvas.line(start, end, 1, "#dddddd")
        canvas.text((start[0] - 8, start[1]), f"{value:.4g}", anchor="end")
    for step in ticks(first, last):
        canvas.text((place(step, low)[0], above + HIGH - BOTTOM + 14), name(step), anchor="middle")
    for number, (label, curve) in enumerate(curves.items()):
        color = COLORS[number % len(COLORS)]
        row = above + HIGH + 18 * number
        for start, end in pairwise(curve):
            canvas.line(place(*start), place(*end), 2, color)
        for point in curve if len(curve) < 30 else ():
            x, y = place(*point)
            canvas.box((x - 2.5, y - 2.5), (5, 5), color)
        canvas.line((LEFT, row), (LEFT + 24, row), 2, color)
        canvas.text((LEFT + 32, row), shortened(label, BRIEF))


def _finite(curve: Curve) -> Curve:
    return [(step, value) for step, value in curve if isfinite(value)]


def _marks(count: int) -> str:
    return (MARKS * (count // len(MARKS) + 1))[:count]
