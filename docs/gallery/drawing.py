"""What the Python blocks of the gallery draw with: heat maps, line charts, beam trees and points, as SVG files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import regard
from regard.decoding.trace import ROOT, BeamTrace
from regard.views import charts
from regard.views.canvas import SvgCanvas, shortened

STEP, ROW, SIDE = 66, 24, 560  # pixels between tokens, between branches, and of a chart of points


def heat(path: str, title: str, rows: Sequence[str], keys: Sequence[str], weights: Any) -> None:
    """A cell for each number of (rows, keys), with its percentage."""
    Path(path).write_bytes(charts.heat_map(title, rows, keys, weights.tolist()).content())


def lines(path: str, title: str, ticks: Sequence[object], series: Mapping[str, Sequence[float]]) -> None:
    """A line for each series over common ticks."""
    drawn = [charts.ChartLine(name, [(float(value),) * 3 for value in values]) for name, values in series.items()]
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
            canvas.line((from_x + 48, from_y), (x - 4, y), 2 if i in best else 1, "#0072b2" if i in best else "#c4c6ca")
        canvas.text((x, y), f"{shortened(names[i], 4)} {node.log_probability:.1f}", fill=ink, bold=i in best)
    for end, output in zip(ends, outputs, strict=True):
        x, y = at[end]
        canvas.text((x + 66, y), f"score {output.score:.2f}", fill="#8a3c00", bold=True)
    Path(path).write_bytes(canvas.content())


def points(path: str, title: str, named: Mapping[str, tuple[float, float]], groups: Mapping[str, int]) -> None:
    """Named points in the plane; points of one group have one color."""
    across, up = zip(*named.values(), strict=True)
    (left, right), (low, high) = charts.number_range(across, 0.1), charts.number_range(up, 0.08)
    canvas = SvgCanvas(SIDE, SIDE - 120, title=title)
    canvas.text((12, 16), title, bold=True)
    for name, (x, y) in named.items():
        place = (20 + (SIDE - 110) * (x - left) / (right - left), 40 + (SIDE - 180) * (high - y) / (high - low))
        color = charts.COLORS[groups[name] % len(charts.COLORS)]
        canvas.circle(place, 4, color, tooltip=name)
        canvas.text((place[0] + 8, place[1]), name, fill=color)
    Path(path).write_bytes(canvas.content())


def scene(path: str, task: str, number: int = 0) -> Any:
    """Write the image of a generated test example, and return the example."""
    from PIL import Image

    from regard.data.synthetic import tasks

    example = next(each for i, each in enumerate(tasks.TASKS[task].generate("test", 0)) if i == number)
    Image.fromarray(example.sources[0].draw()).save(path)
    return example


def principal(vectors: Any) -> Any:
    """Coordinates along the two directions of largest variance."""
    centered = vectors - vectors.mean(0)
    return centered @ centered.svd().V[:, :2]


__all__ = ["beam_tree", "heat", "lines", "points", "principal", "regard", "scene"]
