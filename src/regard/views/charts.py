"""Charts as SVG, and pages of charts and tables: self-contained files without scripts.

All text is escaped. A page's content security policy forbids scripts and requests.
"""

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite, log10

from regard.core.sanitize import printable
from regard.views.canvas import SvgCanvas, mixed, shortened
from regard.views.html import PAGE_END, page_start

WIDE, HIGH = 640, 300  # of a line chart
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 34, 70  # margins
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")  # safe for the color-blind
DASHES = ("", "6 3", "2 3", "8 3 2 3")
CELL, LETTER = 16, 7.5  # pixels of a heat map's cell, and of a letter's width
LONGEST = 14  # letters of a label
TICKS = 5  # at most

STYLE = """
body { margin: 2rem auto; max-width: 72rem; padding: 0 1rem; background: #fff; color: #1b1b1b;
  font: 16px/1.5 system-ui, sans-serif; }
table { border-collapse: collapse; margin: 0 0 1.5rem; }
th, td { padding: 0.2rem 0.8rem; border-bottom: 1px solid #ccc; text-align: right; vertical-align: top; }
th:first-child, td:first-child { text-align: left; }
.text th, .text td { text-align: left; overflow-wrap: anywhere; }
.maps { display: flex; flex-wrap: wrap; gap: 1.5rem; }
figure { margin: 0 0 1rem; overflow-x: auto; }
pre { white-space: pre-wrap; color: #555; }
"""


@dataclass(frozen=True)
class ChartLine:
    """A name, and a value with its interval at each position; None where there is none."""

    name: str
    points: Sequence[tuple[float, float, float] | None]  # low, value, high


def page(title: str, parts: Sequence[str]) -> str:
    """A self-contained HTML page."""
    return page_start(title, STYLE) + "\n".join([f"<h1>{text(title)}</h1>", *parts, PAGE_END])


def text(content: str) -> str:
    """Text between tags or in an attribute; control characters are replaced by a visible sign."""
    return html.escape(printable(content, also="\n\t"))


def table(rows: Sequence[Sequence[str]], *, of_texts: bool = False) -> str:
    """An HTML table; the first row has the headings."""
    first, *rest = rows
    head = "".join(f'<th scope="col">{text(cell)}</th>' for cell in first)
    body = "".join(f"<tr>{''.join(f'<td>{text(cell)}</td>' for cell in row)}</tr>\n" for row in rest)
    kind = ' class="text"' if of_texts else ""
    return f"<table{kind}>\n<tr>{head}</tr>\n{body}</table>"


def lines(
    title: str, positions: Sequence[str], drawn: Sequence[ChartLine], format_value: Callable[[float], str]
) -> SvgCanvas:
    """A line chart with intervals over named positions."""
    low, high = _range([number for line in drawn for point in line.points if point is not None for number in point])
    across = (WIDE - LEFT - RIGHT) / max(1, len(positions))
    canvas = SvgCanvas(WIDE, HIGH, title=title)

    def x(position: int, line: int) -> float:
        return LEFT + across * (position + 0.5) + 5 * (line - (len(drawn) - 1) / 2)  # intervals side by side

    def y(value: float) -> float:
        return TOP + (HIGH - TOP - BOTTOM) * (high - value) / (high - low)

    canvas.text((LEFT, 16), title, bold=True)
    for value in _ticks(low, high):
        canvas.line((LEFT, y(value)), (WIDE - RIGHT, y(value)), 1, "#dddddd")
        canvas.text((LEFT - 8, y(value)), format_value(value), anchor="end")
    for i, name in enumerate(positions):
        canvas.text((LEFT + across * (i + 0.5), HIGH - BOTTOM + 14), name, anchor="middle")
    for number, line in enumerate(drawn):
        color, dash = COLORS[number % len(COLORS)], DASHES[number % len(DASHES)]
        points = [(x(i, number), *point) for i, point in enumerate(line.points) if point and all(map(isfinite, point))]
        canvas.polyline([(at, y(value)) for at, _, value, _ in points], 2, color, dash=dash)
        for at, least, value, most in points:
            tooltip = f"{line.name}: {format_value(value)} ({format_value(least)} to {format_value(most)})"
            canvas.line((at, y(least)), (at, y(most)), 1, color)
            canvas.circle((at, y(value)), 4, color, tooltip=tooltip)
        key = LEFT + number * (WIDE - LEFT - RIGHT) / max(1, len(drawn))
        canvas.line((key, HIGH - 20), (key + 24, HIGH - 20), 2, color, dash=dash)
        canvas.text((key + 30, HIGH - 20), shortened(line.name, 28))
    return canvas


def heat_map(title: str, rows: Sequence[str], keys: Sequence[str], weights: Sequence[Sequence[float]]) -> SvgCanvas:
    """A square for each weight, the darker the larger; a tooltip has the number."""
    row_names, key_names = ([shortened(name, LONGEST) for name in names] for names in (rows, keys))
    left = LETTER * max(map(len, row_names), default=0) + 12
    top = LETTER * max(map(len, key_names), default=0) + 36
    wide = max(left + CELL * len(keys) + 8, 12 + LETTER * len(shortened(title, 40)))
    canvas = SvgCanvas(wide, top + CELL * len(rows) + 8, title=title)
    canvas.text((4, 12), shortened(title, 40), bold=True)
    for i, name in enumerate(key_names):
        canvas.slanted((left + CELL * (i + 0.5) + 4, top - 6), name, angle=90)
    for i, (name, row) in enumerate(zip(rows, weights, strict=True)):
        y = top + CELL * i
        canvas.text((left - 6, y + CELL / 2), row_names[i], anchor="end")
        for key, weight in enumerate(row):
            tooltip = f"{name} → {keys[key]}: {weight:.0%}"
            canvas.box((left + CELL * key, y), (CELL - 1, CELL - 1), _shade(weight), tooltip=tooltip)
    return canvas


def below(title: str, drawings: Sequence[SvgCanvas]) -> SvgCanvas:
    """Drawings one below the other, as one."""
    canvas = SvgCanvas(max(each.width for each in drawings), sum(each.height for each in drawings), title=title)
    top = 0
    for each in drawings:
        canvas.nested((0, top), each)
        top += each.height
    return canvas


def _range(numbers: Sequence[float]) -> tuple[float, float]:
    finite = [number for number in numbers if isfinite(number)] or [0.0]
    low, high = min(finite), max(finite)
    margin = (high - low) * 0.05 or max(abs(high), 1.0) * 0.05
    return low - margin, high + margin


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers between two others."""
    least = (high - low) / TICKS
    power = 10.0 ** floor(log10(least))
    step = next(step for step in (power, 2 * power, 5 * power, 10 * power) if step >= least)
    return [step * count for count in range(ceil(low / step), floor(high / step) + 1)]


def _shade(weight: float) -> str:
    """From nearly white to dark blue."""
    return mixed((240, 244, 250), (0, 45, 112), min(1.0, max(0.0, weight)) if isfinite(weight) else 0.0)
