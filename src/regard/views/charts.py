"""Charts as SVG, and pages of charts and tables: self-contained files without scripts.

All text is escaped. A page's content security policy forbids scripts and requests.
"""

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite, log10

from rich.cells import cell_len

from regard.core.sanitize import printable
from regard.views.canvas import SIZE, Canvas, SvgCanvas, mixed, shortened
from regard.views.html import PAGE_END, page_start

# Pixels of a line chart, and its margins.
WIDE = 640
HIGH = 300
LEFT = 70
RIGHT = 20
TOP = 34
BOTTOM = 70
# Safe for the color-blind.
COLORS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#e69f00",
    "#000000",
)
DASHES = ("", "6 3", "2 3", "8 3 2 3")
# From white to dark blue in steps about equal to the eye, with falling brightness,
# so that it also reads in gray and for the color-blind; as in page/colours.js.
STOPS = (
    "fffef8 faf7e1 f6efca f2e8b3 e9dd9d d1c58a b9ae78 a8a075 989375 888674 777973 686b71 555d6d "
    "3f4e65 2a3f5e 153056 00224e"
)
RAMP = tuple(tuple(bytes.fromhex(stop)) for stop in STOPS.split())
LIGHT = 0.64  # letters on a darker cell are white
EDGE = 12  # pixels around a heat map
CELL = 32  # pixels of a weight
LETTERS = 18  # of a name, at most
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
    body = "".join(
        f"<tr>{''.join(f'<td>{text(cell)}</td>' for cell in row)}</tr>\n" for row in rest
    )
    kind = ' class="text"' if of_texts else ""
    return f"<table{kind}>\n<tr>{head}</tr>\n{body}</table>"


def lines(
    title: str,
    positions: Sequence[str],
    drawn: Sequence[ChartLine],
    format_value: Callable[[float], str],
) -> SvgCanvas:
    """A line chart with intervals over named positions."""
    low, high = number_range(
        [number for line in drawn for point in line.points if point is not None for number in point]
    )
    across = (WIDE - LEFT - RIGHT) / max(1, len(positions))
    canvas = SvgCanvas(WIDE, HIGH, title=title)

    def x(position: int, line: int) -> float:
        # Intervals of several lines stand side by side.
        aside = 5 * (line - (len(drawn) - 1) / 2)
        return LEFT + across * (position + 0.5) + aside

    def y(value: float) -> float:
        return TOP + (HIGH - TOP - BOTTOM) * (high - value) / (high - low)

    canvas.text((LEFT, 16), title, bold=True)
    for value in ticks(low, high):
        canvas.line((LEFT, y(value)), (WIDE - RIGHT, y(value)), 1, "#dddddd")
        canvas.text((LEFT - 8, y(value)), format_value(value), anchor="end")
    for i, name in enumerate(positions):
        canvas.text((LEFT + across * (i + 0.5), HIGH - BOTTOM + 14), name, anchor="middle")
    for number, line in enumerate(drawn):
        color = COLORS[number % len(COLORS)]
        dash = DASHES[number % len(DASHES)]
        points = [
            (x(i, number), *point)
            for i, point in enumerate(line.points)
            if point and all(map(isfinite, point))
        ]
        canvas.polyline([(at, y(value)) for at, _, value, _ in points], 2, color, dash=dash)
        for at, least, value, most in points:
            interval = f"{format_value(least)} to {format_value(most)}"
            tooltip = f"{line.name}: {format_value(value)} ({interval})"
            canvas.line((at, y(least)), (at, y(most)), 1, color)
            canvas.circle((at, y(value)), 4, color, tooltip=tooltip)
        key = LEFT + number * (WIDE - LEFT - RIGHT) / max(1, len(drawn))
        canvas.line((key, HIGH - 20), (key + 24, HIGH - 20), 2, color, dash=dash)
        canvas.text((key + 30, HIGH - 20), shortened(line.name, 28))
    return canvas


def heat_map(
    title: str,
    rows: Sequence[str],
    keys: Sequence[str],
    weights: Sequence[Sequence[float]],
    canvas_type: type[Canvas] = SvgCanvas,
) -> Canvas:
    """A cell for each weight, with its percentage; the darker the larger,
    relative to the largest.
    """
    rows, keys = ([shortened(name, LETTERS) for name in names] for names in (rows, keys))
    most = max((weight for row in weights for weight in row), default=0.0)
    left = EDGE + text_width(rows) + 6
    top = EDGE + 2 * SIZE + 0.87 * text_width(keys) + 8
    right = max(0.5 * text_width(keys[-1:]) - CELL / 2, EDGE)
    width = max(left + CELL * len(keys) + right, EDGE + text_width([title]))
    canvas = canvas_type(width, top + CELL * len(rows) + EDGE)
    canvas.text((EDGE, EDGE + SIZE / 2), title)
    for x, key in enumerate(keys):
        canvas.slanted((left + CELL * (x + 0.6), top - 5), key)
    for y, (row, line) in enumerate(zip(rows, weights, strict=True)):
        middle = top + CELL * (y + 0.5)
        canvas.text((left - 6, middle), row, anchor="end")
        for x, weight in enumerate(line):
            share = weight / most if most else 0.0
            canvas.box((left + CELL * x, top + CELL * y), (CELL, CELL), color(share))
            if weight >= 0.005:
                ink = "#ffffff" if share > LIGHT else "#000000"
                canvas.text(
                    (left + CELL * (x + 0.5), middle),
                    f"{100 * weight:.0f}",
                    anchor="middle",
                    fill=ink,
                )
    return canvas


def color(share: float) -> str:
    """The color of the ramp at a share from 0 to 1."""
    at = min(max(share, 0.0), 1.0) * (len(RAMP) - 1)
    low = min(int(at), len(RAMP) - 2)
    return mixed(RAMP[low], RAMP[low + 1], at - low)


def text_width(names: Sequence[str]) -> float:
    """The approximate width of the widest of these, in pixels."""
    return 0.62 * SIZE * max(map(cell_len, names), default=0)


def below(title: str, drawings: Sequence[SvgCanvas]) -> SvgCanvas:
    """Drawings one below the other, as one."""
    canvas = SvgCanvas(
        max(each.width for each in drawings), sum(each.height for each in drawings), title=title
    )
    top = 0
    for each in drawings:
        canvas.nested((0, top), each)
        top += each.height
    return canvas


def number_range(numbers: Sequence[float], margin: float = 0.05) -> tuple[float, float]:
    """The least and the largest finite number, with a margin on both sides;
    never an empty range.
    """
    finite = [number for number in numbers if isfinite(number)] or [0.0]
    low = min(finite)
    high = max(finite)
    if high > low:
        beyond = (high - low) * margin
    else:
        beyond = max(abs(high), 1.0) * 0.05
    return low - beyond, high + beyond


def ticks(low: float, high: float) -> list[float]:
    """Round numbers between two others."""
    least = (high - low) / TICKS
    power = 10.0 ** floor(log10(least))
    step = next(step for step in (power, 2 * power, 5 * power, 10 * power) if step >= least)
    return [step * count for count in range(ceil(low / step), floor(high / step) + 1)]
