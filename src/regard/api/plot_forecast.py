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
from regard.data.series_window import Window
from regard.data.statistics import place_of
from regard.data.time_axis import brief_times
from regard.inference.load import load
from regard.inference.predictor import Predictor
from regard.views.canvas import CANVASES
from regard.views.curves import Curve, StepName, curves_text, draw_curves, step_name

BRIEF = 11  # letters of a time stamp below a drawing, at most
MOST_CHANNELS = 8  # that are drawn unless others are named
Panels = dict[str, dict[str, Curve]]


def plot_forecast(
    model: str | Path | Predictor,
    data: str | Path | Sequence[str | Path] = "test",
    out: str | Path | None = None,
    *,
    example: int = 1,
    channels: Sequence[str | int] | None = None,
    look_back: int | None = None,
    columns: Sequence[str] = (),
    width: int = 80,
    device: str = "auto",
    trust_data_paths: bool = False,
) -> str | None:
    """The vectors that a model predicts for one example, and the true ones; before a forecast,
    what it was made from.

    A forecast is what a model gives for windows of [data.series], or with a head of the kind `horizon`.

    model      a run, a checkpoint or a loaded model whose outputs are sequences of vectors
    data       a split of its data, or new data of the same kind
    out        a file in .svg or .png to draw them in; without one they are returned as text
    example    the number of the example in the data, from 1
    channels   numbers of the vectors, by their names in the table, or from 1; by default the first 8
    look_back  rows of the past that are drawn, at most; by default all that the model reads. Of a model without
               [data.series] that generates vectors, rows of its source, which are drawn as what was before
    columns    of data that are a table: of the sources, then of the target; default: the recipe's
    width      of the text, in columns
    device     "cpu", "cuda", or "auto": a GPU where there is one
    trust_data_paths   read the data that a checkpoint names also if you have not trained with them
                       on this machine

    There is a panel for each channel, in the units of the data. Rows have the time stamps of their table; without any,
    those of a forecast count from 1 after the look-back, which has the numbers up to 0.
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
    continues = predictor.task.continues_source or predictor.recipe.data.series is not None
    past = None
    if continues or look_back is not None:
        past = _past(predictor, source)
        past = past[-(look_back or len(past)) :]
    names = predictor.target.number_names
    panels = forecast_panels(forecast, truth, past, channels, names)
    stamps = _stamps(source, len(forecast))
    if path is None:
        return curves_text(panels, width=width, name=_step_names(stamps))
    brief = {row: brief_times([stamp], BRIEF)[0] for row, stamp in stamps.items()}
    with atomic_file(path) as file:
        title = f"forecast of example {example}"
        if stamps:
            title += f", after {stamps[0]}"
        canvas = CANVASES[path.suffix]
        file.write(draw_curves(panels, canvas, title=title, name=_step_names(brief)))
    return None


def _past(predictor: Predictor, source: Any) -> NDArray[np.float64]:
    """The vectors of a source, (length, channels)."""
    fields = predictor.recipe.data.source_fields
    source_of = predictor.sources[0] if len(fields) == 1 else None
    if source_of is None or not source_of.number_names:
        raise InvalidArgument(
            "look_back",
            wanted="a model that reads one sequence of vectors",
            got="one that reads something else",
            remedy="Leave it out.",
        )
    return np.asarray(fields[0].parse(source), dtype=np.float64)


def _stamps(source: Any, horizon: int) -> dict[int, str]:
    """The time stamps of a window and of the rows after it, by their numbers; none where its table has no times."""
    if not isinstance(source, Window) or source.stamps is None:
        return {}
    following = source.stamps_after(horizon) or ()
    stamps = (*source.stamps, *following)
    first = 1 - len(source)
    return {first + place: stamp for place, stamp in enumerate(stamps)}


def _step_names(stamps: dict[int, str]) -> StepName:
    """The name of a row: its time stamp, or its number where it has none."""

    def name(step: float) -> str:
        return stamps.get(round(step), step_name(step))

    return name


def forecast_panels(
    forecast: NDArray[np.float64],
    truth: NDArray[np.float64],
    past: NDArray[np.float64] | None = None,
    channels: Sequence[str | int] | None = None,
    names: Sequence[str] = (),
) -> Panels:
    """A panel for each channel: what was before, what is true, and what is predicted, (length, channels) each.

    names   of the channels; without any they are numbered
    """
    dimension = forecast.shape[1]
    if not names:
        names = [str(number) for number in range(1, dimension + 1)]
    wanted = channels
    if wanted is None:
        wanted = range(1, min(dimension, MOST_CHANNELS) + 1)
    panels: Panels = {}
    for given in wanted:
        place = place_of("channels", given, names)
        curves: dict[str, Curve] = {}
        # What is read may have further channels, such as the hour: those that are predicted are its first.
        if past is not None and place < past.shape[1]:
            curves["look-back"] = _curve(past[:, place], 1 - len(past))
        curves["truth"] = _curve(truth[:, place], 1)
        curves["forecast"] = _curve(forecast[:, place], 1)
        panels[f"channel {names[place]}"] = curves
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
