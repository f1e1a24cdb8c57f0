"""What the Python blocks of the gallery draw with: heat maps, line charts and beam trees, as SVG files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import regard
from regard.generation.choose.trace import ROOT, BeamTrace
from regard.views import charts
from regard.views.canvas import SvgCanvas, shortened

STEP, ROW = 66, 24  # pixels between tokens, and between branches


def heat(path: str, title: str, rows: Sequence[str], keys: Sequence[str], weights: Any) -> None:
    """A cell for each number of (rows, keys), with its percentage."""
    Path(path).write_bytes(charts.heat_map(title, rows, keys, weights.tolist()).content())


def lines(
    path: str, title: str, ticks: Sequence[object], series: Mapping[str, Sequence[float]]
) -> None:
    """A line for each series over common ticks."""
    drawn = [
        charts.ChartLine(name, [(float(value),) * 3 for value in values])
        for name, values in series.items()
    ]
    chart = charts.lines(title, [str(tick) for tick in ticks], drawn, lambda value: f"{value:.3g}")
    Path(path).write_bytes(chart.content())


def beam_tree(path: str, model: Any, text: str, beam_size: int) -> None:
    """A beam search: every candidate that was kept or that ended. The outputs are dark, what was given up is gray."""
    trace = BeamTrace()
    (outputs,) = model.outputs([text], trace=trace, beam_size=beam_size, num_hypotheses=beam_size)
    ends = trace.ended()[: len(outputs)]
    best = set().union(*(trace.path(end) for end in ends))
    names = model.target.pieces([node.token for node in trace.nodes])
    shown = [i for i, node in enumerate(trace.nodes) if node.kept or i in best]
    depth, place, taken = dict[int, int](), dict[int, int](), dict[int, int]()
    for i in shown:  # parents come first
        parent = trace.nodes[i].parent
        depth[i] = 0 if parent == ROOT else depth[parent] + 1
        before = 0 if parent == ROOT else place[parent]
        place[i] = max(before, taken.get(depth[i], 0))
        taken[depth[i]] = place[i] + 1
    wide, high = STEP * (max(depth.values()) + 1) + 110, ROW * (max(place.values()) + 1) + 44
    canvas = SvgCanvas(wide, high, title=f"beam search of {beam_size} for {text}")
    canvas.text((12, 16), f"{text}: beam of {beam_size}; log-probability of each token", bold=True)
    at = {i: (16 + STEP * depth[i], 44 + ROW * place[i]) for i in shown}
    for i in shown:
        (x, y), node, ink = at[i], trace.nodes[i], "#1c1e22" if i in best else "#6f7278"
        if node.parent != ROOT:
            from_x, from_y = at[node.parent]
            canvas.line(
                (from_x + 48, from_y),
                (x - 4, y),
                2 if i in best else 1,
                "#0072b2" if i in best else "#c4c6ca",
            )
        canvas.text(
            (x, y), f"{shortened(names[i], 4)} {node.log_probability:.1f}", fill=ink, bold=i in best
        )
    for end, output in zip(ends, outputs, strict=True):
        x, y = at[end]
        canvas.text((x + 66, y), f"score {output.score:.2f}", fill="#8a3c00", bold=True)
    Path(path).write_bytes(canvas.content())


__all__ = ["beam_tree", "heat", "lines", "regard"]
