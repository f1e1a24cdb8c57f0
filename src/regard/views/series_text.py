"""A series and the attention over it in a terminal: lines of block characters,
a column for each span of time.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len

from regard.core.shapes import Float, Tensor
from regard.data.time_axis import brief_times
from regard.interpret.series import Series, span_means
from regard.views.block_cells import NAME_WIDTH, cell_text, plain_name
from regard.views.charts import number_range
from regard.views.series_drawing import spans_of_largest

BLOCKS = "▁▂▃▄▅▆▇█"
LINES = 8  # channels, or groups of neighbouring ones, that are printed


def sparkline(values: NDArray[np.float32]) -> str:
    """Numbers as blocks between the least and the largest of them,
    and a space where one is missing.
    """
    known = np.isfinite(values)
    low, high = number_range(values[known].tolist(), margin=0.0)
    shares = np.where(known, (values - low) / (high - low), 0.0) * (len(BLOCKS) - 1)
    levels = np.rint(shares).astype(int).tolist()
    shown = zip(levels, known.tolist(), strict=True)
    return "".join(BLOCKS[level] if is_known else " " for level, is_known in shown)


def series_map(
    series: Series,
    weights: Float[Tensor, "R M"],
    rows: Sequence[str],
    *,
    width: int = 80,
    color: bool = False,
) -> str:
    """The series as sparklines, and below it a line of each row's weights, relative to its largest.

    Each line ends with the position of the largest weight, and the weight.
    """
    names = [plain_name(name) for name in brief_times(rows, NAME_WIDTH)]
    times = [plain_name(name) for name in brief_times(series.tokens[series.units :], NAME_WIDTH)]
    lines = _channels(series)
    margin = max(cell_len(name) for name in [*names, *(name for name, _ in lines)])
    note = max(map(cell_len, times)) + len("  → 100.0%")
    columns = max(1, min(series.positions, width - margin - 1 - note))
    shown = [
        f"{_aligned(name, margin)} {sparkline(span_means(values[:, None], columns)[:, 0])}"
        for name, values in lines
    ]
    own = weights[:, series.units :].float().numpy()
    for name, line in zip(names, own, strict=True):
        largest = int(line.argmax())
        most = float(line[largest])
        pooled = spans_of_largest(line[None], columns)[0] / max(most, 1e-12)
        blocks = "".join(cell_text(share, 1, color) for share in pooled.tolist())
        best = f"→ {times[largest]} {most:.1%}"
        shown.append(f"{_aligned(name, margin)} {blocks}  {best}")
    first = series.axis.name(0)
    last = series.axis.name(len(series.values) - 1)
    gap = max(1, columns - cell_len(first) - cell_len(last))
    shown.append(f"{' ' * (margin + 1)}{first}{' ' * gap}{last}")
    return "\n".join(shown)


def _channels(series: Series) -> list[tuple[str, NDArray[np.float32]]]:
    """Names and numbers (length,) of the lines; of many channels, means of neighbouring ones,
    the last on top.
    """
    if series.values.shape[1] <= LINES:
        pairs = zip(series.channels, series.values.T, strict=True)
        return [(plain_name(name), values) for name, values in pairs]
    groups = span_means(series.values.T, LINES)  # (LINES, length)
    names = [""] * LINES
    names[0] = plain_name(series.channels[0])
    names[-1] = plain_name(series.channels[-1])
    return list(zip(names, groups, strict=True))[::-1]


def _aligned(name: str, margin: int) -> str:
    return " " * (margin - cell_len(name)) + name
