"""Figures as SVG, and pages of them and of tables: files that need nothing from anywhere and run nothing.

Whatever a text says is text here. A page's policy forbids scripts, and whatever would have to be fetched.
"""

import html
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import ceil, floor, isfinite, log10

from regard.core.sanitize import printable

WIDE, HIGH = 640, 300  # of a figure of lines
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 34, 70  # around it
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")  # told apart by everybody
DASHES = ("none", "6 3", "2 3", "8 3 2 3")
CELL, LABEL = 16, 7  # of a heat map, and how wide a letter is
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
POLICY = f"default-src 'none'; style-src 'sha256-{b64encode(sha256(STYLE.encode()).digest()).decode()}'"
FONT = 'font-family="system-ui, sans-serif" font-size="12"'


@dataclass(frozen=True)
class ChartLine:
    """A name, and a value with its interval at each place; None where there is none."""

    name: str
    points: Sequence[tuple[float, float, float] | None]  # low, value, high


def page(title: str, parts: Sequence[str]) -> str:
    """One file of HTML."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width">
<title>{text(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{text(title)}</h1>
{chr(10).join(parts)}
</body>
</html>
"""


def text(said: str) -> str:
    """To stand between tags, or in an attribute; signs that no page may hold are shown as one that stands for them."""
    return html.escape(printable(said, also="\n\t"))


def table(rows: Sequence[Sequence[str]], *, of_texts: bool = False) -> str:
    """The first row is of headings."""
    first, *rest = rows
    head = "".join(f'<th scope="col">{text(cell)}</th>' for cell in first)
    body = "".join(f"<tr>{''.join(f'<td>{text(cell)}</td>' for cell in row)}</tr>\n" for row in rest)
    kind = ' class="text"' if of_texts else ""
    return f"<table{kind}>\n<tr>{head}</tr>\n{body}</table>"


def lines(title: str, places: Sequence[str], drawn: Sequence[ChartLine], shown: Callable[[float], str]) -> str:
    """Lines over places side by side, with their intervals."""
    low, high = _range([number for line in drawn for point in line.points if point is not None for number in point])
    across = (WIDE - LEFT - RIGHT) / max(1, len(places))

    def x(place: int, line: int) -> float:
        return LEFT + across * (place + 0.5) + 5 * (line - (len(drawn) - 1) / 2)  # intervals beside each other

    def y(value: float) -> float:
        return TOP + (HIGH - TOP - BOTTOM) * (high - value) / (high - low)

    parts = [f'<text x="{LEFT}" y="20" font-weight="bold">{text(title)}</text>']
    parts += [
        f'<line x1="{LEFT}" x2="{WIDE - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#ddd"/>'
        f'<text x="{LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{text(shown(value))}</text>'
        for value in _ticks(low, high)
    ]
    for at, name in enumerate(places):
        place = f'x="{LEFT + across * (at + 0.5):.1f}" y="{HIGH - BOTTOM + 18}"'
        parts.append(f'<text {place} text-anchor="middle">{text(name)}</text>')
    for number, line in enumerate(drawn):
        parts.append(_line(line, number, [(x(at, number), point) for at, point in enumerate(line.points)], y, shown))
        key = LEFT + number * (WIDE - LEFT - RIGHT) / max(1, len(drawn))
        parts.append(
            f'<line x1="{key:.1f}" x2="{key + 24:.1f}" y1="{HIGH - 20}" y2="{HIGH - 20}" {_stroke(number)}/>'
            f'<text x="{key + 30:.1f}" y="{HIGH - 16}">{text(short(line.name, 28))}</text>'
        )
    return svg(WIDE, HIGH, title, "\n".join(parts))


def _line(
    line: ChartLine,
    number: int,
    places: Sequence[tuple[float, tuple[float, float, float] | None]],
    y: Callable[[float], float],
    shown: Callable[[float], str],
) -> str:
    there = [(x, point) for x, point in places if point is not None and all(map(isfinite, point))]
    path = " ".join(f"{x:.1f},{y(value):.1f}" for x, (_, value, _) in there)
    parts = [f'<polyline points="{path}" fill="none" {_stroke(number)}/>']
    for x, (low, value, high) in there:
        told = text(f"{line.name}: {shown(value)} ({shown(low)} to {shown(high)})")
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y(low):.1f}" y2="{y(high):.1f}" stroke="{_colour(number)}"/>'
            f'<circle cx="{x:.1f}" cy="{y(value):.1f}" r="4" fill="{_colour(number)}"><title>{told}</title></circle>'
        )
    return "\n".join(parts)


def heat_map(title: str, rows: Sequence[str], keys: Sequence[str], weights: Sequence[Sequence[float]]) -> str:
    """A square for each weight, the darker the more; its number is told where one points at it."""
    left = LABEL * max((len(short(name)) for name in rows), default=0) + 12
    top = LABEL * max((len(short(name)) for name in keys), default=0) + 36
    parts = [f'<text x="4" y="16" font-weight="bold">{text(short(title, 40))}</text>']
    for at, name in enumerate(keys):
        x = left + CELL * (at + 0.5) + 4
        parts.append(f'<text transform="translate({x} {top - 6}) rotate(-90)">{text(short(name))}</text>')
    for at, (name, row) in enumerate(zip(rows, weights, strict=True)):
        y = top + CELL * at
        parts.append(f'<text x="{left - 6}" y="{y + 12}" text-anchor="end">{text(short(name))}</text>')
        for key, weight in enumerate(row):
            told = text(f"{name} → {keys[key]}: {weight:.0%}")
            place = f'x="{left + CELL * key}" y="{y}" width="{CELL}" height="{CELL}"'
            parts.append(f'<rect {place} fill="{_shade(weight)}" stroke="#fff"><title>{told}</title></rect>')
    wide = max(left + CELL * len(keys) + 8, 12 + LABEL * len(short(title, 40)))
    return svg(wide, top + CELL * len(rows) + 8, title, "\n".join(parts))


def svg(width: int, height: int, title: str, inner: str) -> str:
    """A drawing, for a page or for a file of its own."""
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" fill="#1b1b1b" {FONT}>\n'
        f'<title>{text(title)}</title>\n<rect width="100%" height="100%" fill="#fff"/>\n{inner}\n</svg>\n'
    )


def below(title: str, drawings: Sequence[str], height: int = HIGH, width: int = WIDE) -> str:
    """Drawings of one size, one below the other, as one."""
    moved = [f'<g transform="translate(0 {at * height})">{one}</g>' for at, one in enumerate(drawings)]
    return svg(width, max(1, len(drawings)) * height, title, "\n".join(moved))


def short(name: str, most: int = LONGEST) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def _range(numbers: Sequence[float]) -> tuple[float, float]:
    there = [number for number in numbers if isfinite(number)] or [0.0]
    low, high = min(there), max(there)
    more = (high - low) * 0.05 or max(abs(high), 1.0) * 0.05
    return low - more, high + more


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers between two others."""
    least = (high - low) / TICKS
    power = 10.0 ** floor(log10(least))
    step = next(step for step in (power, 2 * power, 5 * power, 10 * power) if step >= least)
    return [step * count for count in range(ceil(low / step), floor(high / step) + 1)]


def _stroke(number: int) -> str:
    return f'stroke="{_colour(number)}" stroke-width="2" stroke-dasharray="{DASHES[number % len(DASHES)]}"'


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _shade(weight: float) -> str:
    """From nearly white to a dark blue."""
    share = min(1.0, max(0.0, weight)) if isfinite(weight) else 0.0
    red, green, blue = (round(light + (dark - light) * share) for light, dark in ((240, 0), (244, 45), (250, 112)))
    return f"#{red:02x}{green:02x}{blue:02x}"
