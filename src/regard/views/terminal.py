"""Attention as text: heat maps of blocks that any terminal can show, in colour where it has any."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from math import exp

from rich.cells import cell_len, set_cell_size

from regard.core.errors import InvalidArgument
from regard.core.sanitize import printable
from regard.core.shapes import Float, Tensor
from regard.interpret.look import GeneratedText, Image, Look
from regard.interpret.maps import AttentionMap
from regard.interpret.sites import AttentionSite
from regard.interpret.summaries import MEASURES, Head

SHADES = " ·░▒▓█"
# From dark violet to yellow, ever lighter: told apart by brightness alone, whatever colours an eye sees. The numbers
# are those of the 256 colours that terminals agree on.
COLOURS = (16, 53, 54, 60, 24, 30, 36, 71, 112, 184, 226)
ENDS = {"</s>": "⏎", "<s>": "⇤"}  # shorter
MOST = 64  # rows of a map that are shown
LIGHT = 6  # from this one on, black is readable on it, and white before


def told(
    look: Look,
    *,
    map: str | None = None,
    every: bool = False,
    width: int = 80,
    colour: bool = False,
    numbers: bool = False,
) -> str:
    """What was read and said, and the map that tells most, its heads together; or the one named, or every map.

    Heads that the look was asked for come one by one.
    """
    said = look.output
    if isinstance(said, GeneratedText):
        title = f"{look.title} → {said.text}" if look.source is not None else said.text
    else:
        title = look.title if said is None else f"{look.title} → {said.label} ({exp(said.score):.0%})"
    lines = [printable(title)]
    maps = [look[map]] if map is not None else look.maps if every else telling(look.maps)
    for each in maps:
        rows, columns = ([ENDS.get(name, name) for name in side] for side in look.names(each))
        chosen, heads = each.chosen
        which = list(range(each.size[0])) if chosen is None else chosen.tolist()
        if not which:  # others have such rows
            lines += ["", f"{each.name}: none of these rows, it has {each.size[0]}"]
            continue
        for head in [None] if heads is None else heads.tolist():
            weights = each.weights(which[:MOST], head).mean(0).cpu()
            of = f"{each.heads} heads" if head is None else f"head {head}"
            lines += ["", f"{each.name}, {of if each.heads > 1 else '1 head'}"]
            names = [rows[row] for row in which[:MOST]]
            if isinstance(look.source, Image) and each.asked == "source":
                regions = weights[:, look.source.units :]
                lines.append(grid_maps(regions, names, look.source.grid, width=width, colour=colour))
            else:
                lines.append(heat_map(weights, names, columns, width=width, colour=colour, numbers=numbers))
        if len(which) > MOST:
            lines.append(f"({len(which) - MOST} more rows)")
    others = [each.name for each in look.maps if each not in maps]
    return "\n".join(lines + (["", f"Also there: {', '.join(others)}"] if others else []))


def telling(maps: Sequence[AttentionMap]) -> list[AttentionMap]:
    """The last look at the source, or else the last of all."""
    for kind in ("cross", "pool", "self", "grid"):
        found = [each for each in maps if each.kind == kind]
        if found:
            return found[-1:]
    return []


def heat_map(
    weights: Float[Tensor, "R M"],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    width: int = 80,
    colour: bool = False,
    numbers: bool = False,
) -> str:
    """One line a row, one cell a column, the heavier the darker, or the brighter in colour; at most `width` wide.

    Each row ends with its heaviest column and that weight; with `numbers`, cells tell theirs in hundredths. Columns
    that do not fit are left out, and counted.
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
    ends = list(accumulate(cell + 1 for cell in cells))
    shown = max(1, sum(end <= width - note for end in ends))
    left_out = len(columns) - shown
    titles = "".join(set_cell_size(name, cell + 1) for name, cell in zip(columns[:shown], cells, strict=False))
    lines = [" " * (margin + 1) + titles]
    for name, row in zip(rows, weights.tolist(), strict=True):
        blocks = (_cell(weight, cell, colour, numbers) for weight, cell in zip(row[:shown], cells, strict=False))
        heaviest = max(range(len(row)), key=row.__getitem__)
        looked = f"→ {columns[heaviest]} {row[heaviest]:.0%}" if row[heaviest] > 0 else "→ nothing"
        lines.append(f"{' ' * (margin - cell_len(name))}{name} {' '.join(blocks)}  {looked}")
    if left_out:
        lines.append(f"({left_out} more columns do not fit in {width} characters)")
    return "\n".join(lines)


def grid_maps(
    weights: Float[Tensor, "R M"],
    rows: Sequence[str],
    grid: tuple[int, int],
    *,
    width: int = 80,
    colour: bool = False,
) -> str:
    """Where each row looked in a picture, as small pictures side by side; the heaviest region of each is brightest."""
    high, wide = grid
    if weights.shape != (len(rows), high * wide):
        wanted = f"a weight for each of {len(rows)} × {high} × {wide}"
        raise InvalidArgument("weights", wanted=wanted, got=str(tuple(weights.shape)), remedy="Leave out units.")
    titles = [f"{_plain(name)} {max(row):.0%}" for name, row in zip(rows, weights.tolist(), strict=True)]
    cell = max([2 * wide, *map(cell_len, titles)])
    across = max(1, (width + 2) // (cell + 2))
    lines = []
    for start in range(0, len(rows), across):
        together = slice(start, start + across)
        lines.append("  ".join(set_cell_size(title, cell) for title in titles[together]).rstrip())
        for y in range(high):
            parts = [_strip(row, y, wide, colour) for row in weights[together].tolist()]
            lines.append((" " * (cell - 2 * wide + 2)).join(parts).rstrip())
        lines.append("")
    return "\n".join(lines[:-1])


def head_table(lines: Iterable[tuple[AttentionSite, Head]]) -> str:
    """A line for each head, with its means."""
    told = [(place.name, str(head.head), *(f"{getattr(head, name):.3f}" for name in MEASURES)) for place, head in lines]
    return table([("map", "head", *MEASURES), *told])


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns under each other, the first to the left, the others to the right."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            set_cell_size(text, width) if column == 0 else " " * (width - cell_len(text)) + text
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def _cell(weight: float, width: int, colour: bool, numbers: bool) -> str:
    told = f"{round(100 * weight):d}" if numbers and weight == weight and weight >= 0.005 else ""
    if colour:
        return _painted(f"{told:^{width}}", weight)
    return f"{told:>{width}}" if numbers else _shade(weight) * width


def _strip(weights: Sequence[float], y: int, wide: int, colour: bool) -> str:
    """A line of a small picture."""
    most = max(weights)
    shares = [weight / most if most > 0 else 0.0 for weight in weights[y * wide : (y + 1) * wide]]
    return "".join(_painted("  ", share) if colour else 2 * _shade(share) for share in shares)


def _painted(text: str, weight: float) -> str:
    if weight != weight:
        return "?" * len(text)
    shade = max(0, min(len(COLOURS) - 1, round(weight * (len(COLOURS) - 1))))
    return f"\x1b[48;5;{COLOURS[shade]}m\x1b[38;5;{16 if shade >= LIGHT else 231}m{text}\x1b[0m"


def _shade(weight: float) -> str:
    return "?" if weight != weight else SHADES[max(0, min(len(SHADES) - 1, int(weight * len(SHADES))))]


def _plain(name: str) -> str:
    """A name that keeps to its cell: one line, nothing that a terminal would obey, at most twelve characters wide."""
    shown = printable(name)
    return shown if cell_len(shown) <= 12 else "".join(_first(shown, 11)) + "…"


def _first(text: str, width: int) -> Iterator[str]:
    """As many characters as fit."""
    for letter in text:
        width -= cell_len(letter)
        if width < 0:
            return
        yield letter
