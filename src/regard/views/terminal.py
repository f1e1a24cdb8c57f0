"""Attention in a terminal: heat maps of block characters, in color where the terminal has them."""

import os
from collections.abc import Sequence
from math import exp

from rich.cells import cell_len, set_cell_size

from regard.core.errors import InvalidArgument
from regard.core.sanitize import printable
from regard.core.shapes import Float, Tensor
from regard.core.text_table import text_table
from regard.interpret.head_properties import COLUMNS, HeadProperties
from regard.interpret.look import Image, Label, Look
from regard.interpret.maps import AttentionMap

SHADES = " ·░▒▓█"
# From dark violet to yellow with rising brightness, so that it also reads for the color-blind; xterm's 256 colors.
COLORS = (16, 53, 54, 60, 24, 30, 36, 71, 112, 184, 226)
RAMP = (
    (0, 0, 4),
    (68, 1, 84),
    (59, 82, 139),
    (33, 145, 140),
    (94, 201, 98),
    (253, 231, 37),
)  # in 24 bits
SHORT_NAMES = {"</s>": "⏎", "<s>": "⇤"}
MOST = 64  # rows of a map that are printed
LIGHT = 6  # the first color on which text is black


def look_text(
    look: Look,
    *,
    map: str | None = None,
    every: bool = False,
    width: int = 80,
    color: bool = False,
    numbers: bool = False,
) -> str:
    """Input, output and the main map with its heads averaged; or the named map, or every map.

    Heads chosen in `regard.look` are printed one by one.
    """
    output = look.output
    title = look.title
    if isinstance(output, Label):
        title = f"{look.title} → {output.label} ({exp(output.score):.0%})"
    elif output is not None:
        title = f"{look.title} → {output.text}" if look.sources else output.text
    lines = [printable(title)]
    maps = look.maps if every else main_map(look.maps)
    if map is not None:
        maps = [look[map]]
    for each in maps:
        rows, columns = (
            [SHORT_NAMES.get(name, name) for name in side] for side in look.names(each)
        )
        row_index = each.shown_rows
        if not row_index:  # other maps have these rows
            lines += ["", f"{each.name}: none of these rows, it has {each.size[0]}"]
            continue
        for head in [None] if each.default_heads is None else each.shown_heads:
            weights = each.weights(row_index[:MOST], head).mean(0).cpu()
            heads = f"{each.heads} heads" if head is None else f"head {head}"
            share = (
                "" if each.part_of is None else f", {weights.sum(1).mean():.0%} of the attention"
            )
            lines += ["", f"{each.name}, {heads if each.heads > 1 else '1 head'}{share}"]
            names = [rows[row] for row in row_index[:MOST]]
            source = look.source_of(each)
            if isinstance(source, Image):
                lines.append(
                    grid_maps(
                        weights[:, source.units :], names, source.grid, width=width, color=color
                    )
                )
            else:
                lines.append(
                    heat_map(weights, names, columns, width=width, color=color, numbers=numbers)
                )
        if len(row_index) > MOST:
            lines.append(f"({len(row_index) - MOST} more rows)")
    others = [each.name for each in look.maps if each not in maps]
    return "\n".join(lines + (["", f"Other maps: {', '.join(others)}"] if others else []))


def main_map(maps: Sequence[AttentionMap]) -> list[AttentionMap]:
    """The last cross-attention, to each source; or else the last pool, self-attention or grid; or nothing."""
    for kind in ("cross", "pool", "self", "grid"):
        of_kind = [each for each in maps if each.kind == kind]
        if of_kind:
            whole = of_kind[-1].part_of
            return [
                each for each in of_kind if whole and each.part_of and each.part_of[0] == whole[0]
            ] or of_kind[-1:]
    return []


def heat_map(
    weights: Float[Tensor, "R M"],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    width: int = 80,
    color: bool = False,
    numbers: bool = False,
) -> str:
    """A line per row and a cell per column: the larger the weight, the denser, or in color the brighter.

    Each line ends with the largest weight and its column. With `numbers`, cells show weights in hundredths. Columns
    that do not fit into `width` characters follow in further panels below.
    """
    rows, columns = [_plain(name) for name in rows], [_plain(name) for name in columns]
    if weights.shape != (len(rows), len(columns)) or not columns:
        raise InvalidArgument(
            "weights",
            wanted=f"one row a name and one column a name, shape ({len(rows)}, {len(columns)})",
            got=str(tuple(weights.shape)),
            remedy="Name every row and column, and have at least one of each.",
        )
    cells = [max(3 if numbers else 1, cell_len(name)) for name in columns]
    margin = max([0, *map(cell_len, rows)])
    note = margin + 1 + max([0, *map(cell_len, columns)]) + len("  → 100%")
    panels = []
    for panel in _panels(cells, width - note):
        titles = "".join(set_cell_size(columns[x], cells[x] + 1) for x in panel)
        lines = [" " * (margin + 1) + titles]
        for name, row in zip(rows, weights.tolist(), strict=True):
            blocks = (_cell(row[x], cells[x], color, numbers) for x in panel)
            heaviest = max(range(len(row)), key=row.__getitem__)
            best = (
                f"→ {columns[heaviest]} {row[heaviest]:.0%}" if row[heaviest] > 0 else "→ nothing"
            )
            last = f"  {best}" if panel[-1] == len(columns) - 1 else ""
            lines.append(f"{' ' * (margin - cell_len(name))}{name} {' '.join(blocks)}{last}")
        panels.append("\n".join(lines))
    return "\n\n".join(panels)


def _panels(cells: Sequence[int], width: int) -> list[list[int]]:
    """The columns in groups whose cells, with a space after each, fit into a width; at least one in each."""
    panels: list[list[int]] = [[]]
    for column, cell in enumerate(cells):
        if panels[-1] and sum(cells[x] + 1 for x in panels[-1]) + cell + 1 > width:
            panels.append([])
        panels[-1].append(column)
    return panels


def grid_maps(
    weights: Float[Tensor, "R M"],
    rows: Sequence[str],
    grid: tuple[int, int],
    *,
    width: int = 80,
    color: bool = False,
) -> str:
    """The weights of each row over an image's regions, as small grids side by side, each relative to its largest."""
    high, wide = grid
    if weights.shape != (len(rows), high * wide):
        wanted = f"a weight for each of {len(rows)} × {high} × {wide}"
        raise InvalidArgument(
            "weights",
            wanted=wanted,
            got=str(tuple(weights.shape)),
            remedy="Leave out the states before the regions.",
        )
    largest = [max(row) for row in weights.tolist()]
    titles = [f"{_plain(name)} {most:.0%}" for name, most in zip(rows, largest, strict=True)]
    strips = [  # (R, high): the lines of each row's grid
        [
            "".join(_cell(weight / most if most > 0 else 0.0, 2, color) for weight in line)
            for line in row.reshape(high, wide).tolist()
        ]
        for row, most in zip(weights, largest, strict=True)
    ]
    cell = max([2 * wide, *map(cell_len, titles)])
    across = max(1, (width + 2) // (cell + 2))
    lines = []
    for start in range(0, len(rows), across):
        together = slice(start, start + across)
        lines.append("  ".join(set_cell_size(title, cell) for title in titles[together]).rstrip())
        for y in range(high):
            parts = [strip[y] for strip in strips[together]]
            lines.append((" " * (cell - 2 * wide + 2)).join(parts).rstrip())
        lines.append("")
    return "\n".join(lines[:-1])


def head_table(heads: Sequence[HeadProperties]) -> str:
    """A line for each head with its properties; those that no head has are left out."""
    shown = [name for name in COLUMNS if any(each.value(name) is not None for each in heads)]
    numbers = [[_number(each.value(name), name) for name in shown] for each in heads]
    rows = [
        (each.site.name, str(each.means.head), *line)
        for each, line in zip(heads, numbers, strict=True)
    ]
    return text_table([("map", "head", *shown), *rows])


def _number(value: float | int | None, column: str) -> str:
    if value is None:
        return "–"
    return format(value, {"offset": "+.0f", "group": ".0f"}.get(column, ".3f"))


def _cell(weight: float, width: int, color: bool, numbers: bool = False) -> str:
    """A weight as a block of this width: in hundredths, shaded, or on a colored ground; NaN as question marks."""
    if weight != weight:
        return "?" * width
    number = f"{round(100 * weight):d}" if numbers and weight >= 0.005 else ""
    if not color:
        shade = SHADES[max(0, min(len(SHADES) - 1, int(weight * len(SHADES))))]
        return f"{number:>{width}}" if numbers else shade * width
    share = max(0.0, min(1.0, weight))
    step = round(share * (len(COLORS) - 1))
    ground = f"5;{COLORS[step]}"
    if os.environ.get("COLORTERM") in ("truecolor", "24bit"):
        low = min(int(share * (len(RAMP) - 1)), len(RAMP) - 2)
        between = share * (len(RAMP) - 1) - low
        red, green, blue = (
            round(a + (b - a) * between) for a, b in zip(RAMP[low], RAMP[low + 1], strict=True)
        )
        ground = f"2;{red};{green};{blue}"
    return f"\x1b[48;{ground}m\x1b[38;5;{16 if step >= LIGHT else 231}m{number:^{width}}\x1b[0m"


def _plain(name: str) -> str:
    """A name without line breaks or control characters, at most twelve columns wide."""
    shown = printable(name)
    return shown if cell_len(shown) <= 12 else f"{set_cell_size(shown, 11)}…"
