"""The curves of a training run from the events of its log: loss, each metric, the learning rate."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from regard.training.telemetry.log_file import Event
from regard.views.curves import Curve

# Numbers of a validation that have no panel of their own.
NOT_METRICS = {"step", "epoch", "loss", "perplexity"}


class CurvePoint(NamedTuple):
    """A value at a step, with the panel and the curve that it belongs to."""

    panel: str
    curve: str
    step: float
    value: float


def curve_points(event: Event) -> Iterator[CurvePoint]:
    """The points that an event adds; none where it lacks the numbers of its kind."""
    values = {key: float(value) for key, value in event.items() if type(value) in (int, float)}
    kind = event.get("event")
    step = values.get("step")
    loss = values.get("loss")
    if step is None or loss is None:
        return
    if kind == "train":
        nll = values.get("nll", loss)  # without label smoothing, as the loss of validations
        yield CurvePoint("loss", "training", step, nll)
        if nll != loss:
            yield CurvePoint("loss", "training, smoothed", step, loss)
        if "rate" in values:
            yield CurvePoint("learning rate", "learning rate", step, values["rate"])
    elif kind == "validation":
        yield CurvePoint("loss", "validation", step, loss)
        for name in values.keys() - NOT_METRICS:
            yield CurvePoint(name, "validation", step, values[name])


def panels(points: Iterable[CurvePoint]) -> dict[str, dict[str, Curve]]:
    """Curves by panel and name: the loss first, the learning rate last."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for point in points:
        found.setdefault(point.panel, {}).setdefault(point.curve, []).append(
            (point.step, point.value)
        )
    order = sorted(found, key=lambda title: (title != "loss", title == "learning rate", title))
    return {title: dict(found[title]) for title in order}
