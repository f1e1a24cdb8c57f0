"""Cells of drawings in a terminal: a weight as a block character or a colored ground,
and names of bounded width.
"""

import os

from rich.cells import cell_len, set_cell_size

from regard.core.sanitize import printable

SHADES = " ·░▒▓█"
# From dark violet to yellow with rising brightness, so that it also reads for the color-blind;
# xterm's 256 colors.
COLORS = (16, 53, 54, 60, 24, 30, 36, 71, 112, 184, 226)
# The same in 24 bits.
RAMP = (
    (0, 0, 4),
    (68, 1, 84),
    (59, 82, 139),
    (33, 145, 140),
    (94, 201, 98),
    (253, 231, 37),
)
NAME_WIDTH = 12  # columns of a name, at most
LIGHT = 6  # the first color on which text is black


def cell_text(weight: float, width: int, color: bool, numbers: bool = False) -> str:
    """A weight as a block of this width: in hundredths, shaded, or on a colored ground;
    NaN as question marks.
    """
    if weight != weight:
        return "?" * width
    number = ""
    if numbers and weight >= 0.005:
        number = f"{round(100 * weight):d}"
    if not color:
        shade = SHADES[max(0, min(len(SHADES) - 1, int(weight * len(SHADES))))]
        if numbers:
            return f"{number:>{width}}"
        return shade * width
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
    ink = 16 if step >= LIGHT else 231
    return f"\x1b[48;{ground}m\x1b[38;5;{ink}m{number:^{width}}\x1b[0m"


def plain_name(name: str) -> str:
    """A name without line breaks or control characters, at most twelve columns wide."""
    shown = printable(name)
    if cell_len(shown) <= NAME_WIDTH:
        return shown
    return f"{set_cell_size(shown, NAME_WIDTH - 1)}…"
