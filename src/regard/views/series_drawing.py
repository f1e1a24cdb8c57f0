"""Attention over time: a series as lines or as a picture, and below it what each row attends to,
at the same times.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from regard.data.time_axis import brief_times
from regard.interpret.look import Look
from regard.interpret.maps import AttentionMap
from regard.interpret.series import Series, span_starts
from regard.views.canvas import CANVASES, SIZE, Canvas, Point, shortened
from regard.views.charts import COLORS, EDGE, LETTERS, RAMP, color, number_range, text_width

WIDE = 720  # pixels of all times
POINTS = 240  # of time, at most, at which weights and pictures are drawn
BANDS = 48  # rows of a picture, at most
SIGNAL = 160  # pixels of the height of a picture, or of all lines where these are few
CHANNEL = 26  # least pixels of the height of a line
ROW = 20  # pixels of a row with a name
NAMED = 32  # rows that have names; of more, several are one line of points
ROWS = 160  # lines of points
TICK = 90  # pixels from one name of a time to the next, at least
GREY = "#c9c7bd"


@dataclass(frozen=True)
class Strip:
    """What is drawn of a map whose keys are the positions of a series.

    weights   (rows, columns), the largest weight of each span of time
    names     of the rows; empty where each stands for several
    most      the largest weight of all
    """

    weights: NDArray[np.float32]
    names: tuple[str, ...]
    most: float

    @staticmethod
    def of(look: Look, of: AttentionMap, series: Series, points: int = POINTS) -> "Strip":
        """The mean over heads of the rows that are shown,
        at no more than so many points of time.
        """
        rows = of.shown_rows
        names, _ = look.names(of)
        columns = min(points, series.positions)
        if len(rows) <= NAMED:
            weights = of.weights(rows).mean(0).cpu().nan_to_num(0.0)[:, series.units :]
            pooled = spans_of_largest(weights.numpy(), columns)
            chosen = brief_times([names[row] for row in rows], LETTERS)
            shown = tuple(shortened(name, LETTERS) for name in chosen)
            largest = float(weights.max()) if weights.numel() else 0.0
            return Strip(pooled, shown, largest)
        pooled = _pooled(of, min(ROWS, len(rows)), columns, series.units)
        return Strip(pooled, (), float(pooled.max()))


def spans_of_largest(weights: NDArray[np.float32], columns: int) -> NDArray[np.float32]:
    """The largest number of each span of columns."""
    largest: NDArray[np.float32] = np.maximum.reduceat(
        weights, span_starts(weights.shape[1], columns), axis=1
    )
    return largest


@torch.no_grad()
def _pooled(of: AttentionMap, high: int, wide: int, units: int) -> NDArray[np.float32]:
    """The largest mean over heads of each cell of a coarse grid, in one pass over tiles:
    memory is linear.
    """
    rows = torch.tensor(of.shown_rows)
    place = torch.full((of.size[0],), -1)
    place[rows] = torch.arange(len(rows)) * high // len(rows)
    heads = torch.tensor(of.shown_heads)
    keys = of.size[1] - units
    points = torch.zeros(high * wide)
    for span, low, weights, _ in of.tiles():
        mean = weights[heads.to(weights.device)].float().mean(0).cpu()  # (r, c)
        y = place[span]  # (r,)
        x = torch.arange(low, low + mean.shape[1]) - units  # (c,)
        kept = mean[y >= 0][:, x >= 0]
        cells = y[y >= 0][:, None] * wide + (x[x >= 0] * wide // keys)
        points.scatter_reduce_(0, cells.flatten(), kept.flatten(), "amax")
    pooled: NDArray[np.float32] = points.view(high, wide).numpy()
    return pooled


def draw_series(look: Look, of: AttentionMap, series: Series, title: str, ending: str) -> bytes:
    """The series, and below it the weights of each row, darker where they are larger."""
    strip = Strip.of(look, of, series)
    row_height = ROW
    if not strip.names:
        row_height = max(1, ROWS // max(1, len(strip.weights)))
    signal = _signal_height(series)
    labels = [*strip.names, *(shortened(name, LETTERS) for name in _labels(series))]
    left = EDGE + max(text_width(labels), 24) + 6
    top = EDGE + 2 * SIZE
    below = top + signal + 8
    end = below + row_height * len(strip.weights)
    width = max(left + WIDE + 3 * EDGE, EDGE + text_width([title]) + EDGE)
    canvas = CANVASES[ending](width, end + 2 * SIZE + EDGE)
    canvas.text((EDGE, EDGE + SIZE / 2), f"{title}; darkest: {strip.most:.1%}")
    # The last position may stand for fewer vectors than the others.
    wide = WIDE * len(series.values) / (series.positions * series.stride)
    draw_signal(canvas, series, (left, top), (wide, signal))
    draw_points(canvas, strip.weights / max(strip.most, 1e-12), (left, below), (WIDE, end - below))
    for y, name in enumerate(strip.names):
        canvas.text((left - 6, below + row_height * (y + 0.5)), name, anchor="end")
    if not strip.names:
        canvas.text((left - 6, below + SIZE / 2), "rows", anchor="end")
    draw_times(canvas, series, (left, end + SIZE), wide)
    return canvas.content()


def draw_signal(canvas: Canvas, series: Series, at: Point, size: Point) -> None:
    """The numbers of a series: a line for each channel with a range of its own,
    or a picture of all.
    """
    left, top = at
    wide, high = size
    if series.is_picture:
        columns = min(POINTS, len(series.values))
        means = series.means(columns, min(BANDS, series.values.shape[1]))  # (rows, columns)
        least, most = number_range(means.flatten().tolist(), margin=0.0)
        shares = np.nan_to_num((means - least) / (most - least))
        # The first number of a vector, such as the lowest frequency, is at the bottom.
        draw_points(canvas, shares[::-1], at, size)
        canvas.text((left - 6, top + SIZE / 2), _labels(series)[1], anchor="end")
        canvas.text((left - 6, top + high - SIZE / 2), _labels(series)[0], anchor="end")
        return
    each = high / series.values.shape[1]
    lows, highs = series.extremes(min(int(wide), len(series.values)))
    for channel, (low_line, high_line) in enumerate(zip(lows, highs, strict=True)):
        name = shortened(series.channels[channel], LETTERS)
        shade = COLORS[channel % len(COLORS)]
        place = (left, top + channel * each)
        canvas.text((left - 6, place[1] + each / 2), name, anchor="end", fill=shade)
        low, most = number_range([*low_line.tolist(), *high_line.tolist()])
        _line(
            canvas,
            (low_line - low) / (most - low),
            (high_line - low) / (most - low),
            place,
            (wide, each - 2),
            shade,
        )
    canvas.line((left, top + high), (left + wide, top + high), 1, GREY)


def _line(
    canvas: Canvas,
    low: NDArray[np.float32],
    high: NDArray[np.float32],
    at: Point,
    size: Point,
    shade: str,
) -> None:
    """A line through the middle of the least and the largest share of each span,
    with a bar between these.
    """
    left, top = at
    wide, tall = size
    x = left + (np.arange(len(low)) + 0.5) * wide / len(low)
    bottom = top + tall
    middle = bottom - tall * (low + high) / 2
    known = np.isfinite(middle)
    points = list(zip(x[known].tolist(), middle[known].tolist(), strict=True))
    for start, end in pairwise(points):
        canvas.line(start, end, 1.2, shade)
    spans = np.nonzero(np.nan_to_num(high - low) > 0.01)[0]
    for i in spans.tolist():
        first = (float(x[i]), bottom - tall * float(high[i]))
        last = (float(x[i]), bottom - tall * float(low[i]))
        canvas.line(first, last, 1, shade)


def draw_points(canvas: Canvas, shares: NDArray[np.float32], at: Point, size: Point) -> None:
    """Shares from 0 to 1 (rows, columns) as colors. Neighbours of one color are one box."""
    left, top = at
    wide, high = size
    canvas.box((left, top), size, color(0.0))
    rows, columns = shares.shape
    levels = np.rint(np.clip(shares, 0.0, 1.0) * 2 * (len(RAMP) - 1)).astype(int)
    for y, line in enumerate(levels.tolist()):
        x = 0
        for level, run in groupby(line):
            count = len(list(run))
            if level:
                corner = (left + x * wide / columns, top + y * high / rows)
                area = (count * wide / columns, high / rows)
                canvas.box(corner, area, color(level / (2 * (len(RAMP) - 1))))
            x += count


def draw_times(canvas: Canvas, series: Series, at: Point, wide: float | int) -> None:
    """Names of times below a drawing, as many as fit."""
    left, middle = at
    places = tick_places(series, wide)
    names = brief_times(series.axis.names(places), LETTERS)
    for index, name in zip(places, names, strict=True):
        x = left + (index + 0.5) * wide / len(series.values)
        canvas.line((x, middle - SIZE), (x, middle - SIZE + 4), 1, GREY)
        canvas.text((x, middle), shortened(name, LETTERS), anchor="middle")


def tick_places(series: Series, wide: float | int) -> list[int]:
    """The vectors whose times are named, in equal steps from the first."""
    length = len(series.values)
    names = brief_times(series.axis.names([0, length - 1]), LETTERS)
    room = max(TICK, text_width([shortened(name, LETTERS) for name in names]) + EDGE)
    count = max(1, int(wide / room))
    step = -(-length // count)
    return list(range(0, length, step))


def _signal_height(series: Series) -> float | int:
    if series.is_picture:
        return SIGNAL
    channels: int = series.values.shape[1]
    return max(SIGNAL / 2, CHANNEL * channels)


def _labels(series: Series) -> Sequence[str]:
    """Names beside the signal: of each line, or of the ends of a picture."""
    names = series.channels
    if series.is_picture:
        return names[0], names[-1]
    return names
