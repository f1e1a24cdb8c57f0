"""Attention in a terminal: heat maps of block characters, in color where the terminal has them."""

from collections.abc import Sequence
from math import exp

from rich.cells import cell_len, set_cell_size

from regard.core.errors import InvalidArgument
from regard.core.sanitize import printable
from regard.core.shapes import Float, Tensor
from regard.core.text_table import text_table
from regard.interpret.head_properties import COLUMNS, HeadProperties
from regard.interpret.look import Image, Label, Look, PredictedVectors
from regard.interpret.maps import AttentionMap
from regard.interpret.series import Series
from regard.views.block_cells import cell_text, plain_name
from regard.views.series_text import series_map

SHORT_NAMES = {"</s>": "⏎", "<s>": "⇤"}
MOST = 64  # rows of a map that are printed


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
        said = output.summary if isinstance(output, PredictedVectors) else output.text
        title = f"{look.title} → {said}" if look.sources else said
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
        shown_heads = [None] if each.default_heads is None else each.shown_heads
        for head in shown_heads:
            weights = each.weights(row_index[:MOST], head).mean(0).cpu()  # (R, M)
            heads = "1 head"
            if each.heads > 1:
                heads = f"{each.heads} heads" if head is None else f"head {head}"
            share = ""
            if each.part_of is not None:
                share = f", {weights.sum(1).mean():.0%} of the attention"
            lines += ["", f"{each.name}, {heads}{share}"]
            names = [rows[row] for row in row_index[:MOST]]
            source = look.source_of(each)
            if isinstance(source, Image):
                lines.append(
                    grid_maps(
                        weights[:, source.units :], names, source.grid, width=width, color=color
                    )
                )
            elif isinstance(source, Series):
                lines.append(series_map(source, weights, names, width=width, color=color))
            else:
                lines.append(
                    heat_map(weights, names, columns, width=width, color=color, numbers=numbers)
                )
        if len(row_index) > MOST:
            lines.append(f"({len(row_index) - MOST} more rows)")
    others = [each.name for each in look.maps if each not in maps]
    if others:
        lines += ["", f"Other maps: {', '.join(others)}"]
    return "\n".join(lines)


def main_map(maps: Sequence[AttentionMap]) -> list[AttentionMap]:
    """The last cross-attention, to each source; or else the last pool, self-attention or grid;
    or nothing.
    """
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
    """A line per row and a cell per column: the larger the weight, the denser,
    or in color the brighter.

    Each line ends with the largest weight and its column. With `numbers`, cells show weights in
    hundredths. Columns that do not fit into `width` characters follow in further panels below.
    """
    rows = [plain_name(name) for name in rows]
    columns = [plain_name(name) for name in columns]
    if weights.shape != (len(rows), len(columns)) or not columns:
        raise InvalidArgument(
            "weights",
            wanted=f"one row a name and one column a name, shape ({len(rows)}, {len(columns)})",
            got=str(tuple(weights.shape)),
            remedy="Name every row and column, and have at least one of each.",
        )
    narrowest = 3 if numbers else 1
    cells = [max(narrowest, cell_len(name)) for name in columns]
    margin = max([0, *map(cell_len, rows)])
    note = margin + 1 + max([0, *map(cell_len, columns)]) + len("  → 100%")
    panels = []
    for panel in _panels(cells, width - note):
        titles = "".join(set_cell_size(columns[x], cells[x] + 1) for x in panel)
        lines = [" " * (margin + 1) + titles]
        for name, row in zip(rows, weights.tolist(), strict=True):
            blocks = (cell_text(row[x], cells[x], color, numbers) for x in panel)
            heaviest = max(range(len(row)), key=row.__getitem__)
            best = "→ nothing"
            if row[heaviest] > 0:
                best = f"→ {columns[heaviest]} {row[heaviest]:.0%}"
            is_last_panel = panel[-1] == len(columns) - 1
            last = f"  {best}" if is_last_panel else ""
            lines.append(f"{' ' * (margin - cell_len(name))}{name} {' '.join(blocks)}{last}")
        panels.append("\n".join(lines))
    return "\n\n".join(panels)


def _panels(cells: Sequence[int], width: int) -> list[list[int]]:
    """The columns in groups whose cells, with a space after each, fit into a width;
    at least one in each.
    """
    panels: list[list[int]] = [[]]
    for column, size in enumerate(cells):
        if panels[-1] and sum(cells[x] + 1 for x in panels[-1]) + size + 1 > width:
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
    """The weights of each row over an image's regions, as small grids side by side,
    each relative to its largest.
    """
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
    titles = [f"{plain_name(name)} {most:.0%}" for name, most in zip(rows, largest, strict=True)]
    strips = []  # (R, high): the lines of each row's grid
    for row, most in zip(weights, largest, strict=True):
        shares = row.reshape(high, wide).tolist()
        if most > 0:
            shares = [[weight / most for weight in line] for line in shares]
        else:
            shares = [[0.0] * wide] * high
        strips.append(["".join(cell_text(share, 2, color) for share in line) for line in shares])
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
