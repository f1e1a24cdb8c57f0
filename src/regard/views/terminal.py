"""Attention as text: a heat map of blocks that any terminal can show."""

from collections.abc import Sequence

from regard.errors import InvalidArgument
from regard.shapes import Float, Tensor

SHADES = " ·░▒▓█"


def heat_map(weights: Float[Tensor, "R M"], rows: Sequence[str], columns: Sequence[str], *, width: int = 80) -> str:
    """One line a row, one cell a column, the darker the heavier; at most `width` characters wide.

    Each row ends with its heaviest column and that weight. Columns that do not fit are left out, and counted.
    """
    rows, columns = [_plain(name) for name in rows], [_plain(name) for name in columns]
    if weights.shape != (len(rows), len(columns)) or not columns:
        raise InvalidArgument(
            "weights",
            wanted=f"one row a name and one column a name, shape ({len(rows)}, {len(columns)})",
            got=str(tuple(weights.shape)),
            remedy="Name every row and column, and have at least one of each.",
        )
    cell = max([1, *map(len, columns)]) + 1
    margin = max([0, *map(len, rows)])
    note = margin + 1 + max([0, *map(len, columns)]) + len("  → 100%")
    shown = max(1, min(len(columns), (width - note) // cell))
    left_out = len(columns) - shown
    lines = [" " * (margin + 1) + "".join(f"{name:<{cell}}" for name in columns[:shown])]
    for name, row in zip(rows, weights.tolist(), strict=True):
        cells = "".join((_shade(weight) * (cell - 1)).ljust(cell) for weight in row[:shown])
        heaviest = max(range(len(row)), key=row.__getitem__)
        looked = f"→ {columns[heaviest]} {row[heaviest]:.0%}" if row[heaviest] > 0 else "→ nothing"
        lines.append(f"{name:>{margin}} {cells} {looked}")
    if left_out:
        lines.append(f"({left_out} more columns do not fit in {width} characters)")
    return "\n".join(lines)


def _shade(weight: float) -> str:
    return "?" if weight != weight else SHADES[max(0, min(len(SHADES) - 1, int(weight * len(SHADES))))]


def _plain(name: str) -> str:
    """A name that keeps to its cell: one line, nothing that a terminal would obey, at most twelve characters."""
    shown = "".join(letter if letter.isprintable() else "�" for letter in name)
    return shown if len(shown) <= 12 else shown[:11] + "…"
