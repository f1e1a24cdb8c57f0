"""`regard plot --data`: the vectors that a model predicts for an example, the true ones,
and what was before them.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.api.look import pairs_of
from regard.core.atomic_io import atomic_file
from regard.core.errors import InvalidArgument
from regard.inference.load import load
from regard.inference.predictor import Predictor
from regard.views.canvas import CANVASES
from regard.views.curves import Curve, curves_text, draw_curves

MOST_CHANNELS = 8  # that are drawn unless others are named
Panels = dict[str, dict[str, Curve]]


def plot_forecast(
    model: str | Path | Predictor,
    data: str | Path | Sequence[str | Path] = "test",
    out: str | Path | None = None,
    *,
    example: int = 1,
    channels: Sequence[int] | None = None,
    look_back: int | None = None,
    columns: Sequence[str] = (),
    width: int = 80,
    device: str = "auto",
    trust_data_paths: bool = False,
) -> str | None:
    """The vectors that a model predicts for one example, and the true ones; before a forecast,
    what it was made from.

    model      a run, a checkpoint or a loaded model whose outputs are sequences of vectors
    data       a split of its data, or new data of the same kind
    out        a file in .svg or .png to draw them in; without one they are returned as text
    example    the number of the example in the data, from 1
    channels   numbers of the vectors, from 1; by default the first 8
    look_back  rows of the past that are drawn, at most; by default all that the model reads
    columns    of data that are a table: of the sources, then of the target; default: the recipe's
    width      of the text, in columns
    device     "cpu", "cuda", or "auto": a GPU where there is one
    trust_data_paths   read the data that a checkpoint names also if you have not trained with them
                       on this machine

    There is a panel for each channel, in the units of the data. Rows of a forecast count from 1
    after the look-back, which has the numbers up to 0.
    """
    path = None if out is None else Path(out)
    if path is not None and path.suffix not in CANVASES:
        wanted = f"a name in {', '.join(CANVASES)}"
        raise InvalidArgument("out", wanted=wanted, got=str(path), remedy="Choose one of these.")
    predictor = load(model, device=device)
    names = [data] if isinstance(data, str | Path) else data
    found = pairs_of(
        predictor.recipe,
        [str(each) for each in names],
        columns,
        references=True,
        trust_data_paths=trust_data_paths,
    )
    source, target = _chosen(found, example)
    ((output,),) = predictor.outputs([source])
    if output.vectors is None:
        raise InvalidArgument(
            "model",
            wanted="one that gives sequences of vectors",
            got=f"one that gives {predictor.task.gives}",
            remedy="regard plot RUN, without --data, plots its losses.",
        )
    field = predictor.recipe.data.target
    truth = np.asarray(field.parse(target), dtype=np.float64)
    forecast = np.asarray(output.vectors, dtype=np.float64)
    past = None
    if predictor.task.continues_source:
        past = np.asarray(predictor.recipe.data.source_fields[0].parse(source), dtype=np.float64)
        past = past[-(look_back or len(past)) :]
    panels = forecast_panels(forecast, truth, past, channels)
    if path is None:
        return curves_text(panels, width=width)
    with atomic_file(path) as file:
        title = f"forecast of example {example}"
        file.write(draw_curves(panels, CANVASES[path.suffix], title=title))
    return None


def forecast_panels(
    forecast: NDArray[np.float64],
    truth: NDArray[np.float64],
    past: NDArray[np.float64] | None = None,
    channels: Sequence[int] | None = None,
) -> Panels:
    """A panel for each channel: what was before, what is true, and what is predicted,
    (length, channels) each.
    """
    dimension = forecast.shape[1]
    wanted = channels
    if wanted is None:
        wanted = range(1, min(dimension, MOST_CHANNELS) + 1)
    panels: Panels = {}
    for channel in wanted:
        if not 1 <= channel <= dimension:
            raise InvalidArgument(
                "channels",
                wanted=f"numbers from 1 to {dimension}",
                got=str(channel),
                remedy="Choose from these.",
            )
        curves: dict[str, Curve] = {}
        # What is read may have further channels, such as the hour:
        # those that are predicted are its first.
        if past is not None and channel <= past.shape[1]:
            curves["look-back"] = _curve(past[:, channel - 1], 1 - len(past))
        curves["truth"] = _curve(truth[:, channel - 1], 1)
        curves["forecast"] = _curve(forecast[:, channel - 1], 1)
        panels[f"channel {channel}"] = curves
    return panels


def _curve(values: NDArray[np.float64], first: int) -> Curve:
    """Values by row; missing ones are left out where they are drawn."""
    return [(float(first + row), float(value)) for row, value in enumerate(values)]


def _chosen(pairs: Iterator[tuple[Any, Any]], example: int) -> tuple[Any, Any]:
    if example < 1:
        raise InvalidArgument(
            "example", wanted="1 or more", got=str(example), remedy="They count from 1."
        )
    found = next(islice(pairs, example - 1, None), None)
    if found is None:
        raise InvalidArgument(
            "example", wanted="one of the data", got=str(example), remedy="Choose a smaller number."
        )
    return found
