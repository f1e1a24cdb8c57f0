"""`regard plot`: the losses, metrics and learning rate of training runs, from their logs."""

import json
from collections.abc import Sequence
from pathlib import Path

from regard.core.atomic_io import atomic_file
from regard.core.errors import InvalidArgument, InvalidData
from regard.training.telemetry.log_file import LOG_FILE
from regard.views.canvas import CANVASES
from regard.views.curves import Curve, curves_text, draw_curves

NOT_METRICS = {"step", "epoch", "loss", "perplexity"}  # numbers of a validation that have no panel of their own


def plot(runs: str | Path | Sequence[str | Path], out: str | Path | None = None, *, width: int = 80) -> str | None:
    """Curves of one run or of several together: loss, each validation metric, and the learning rate, by step.

    out     a file in .svg or .png to draw them in; without one they are returned as text of this width
    """
    folders = [Path(runs)] if isinstance(runs, str | Path) else [Path(run) for run in runs]
    path = None if out is None else Path(out)
    if path is not None and path.suffix not in CANVASES:
        wanted = f"a name in {', '.join(CANVASES)}"
        raise InvalidArgument("out", wanted=wanted, got=str(path), remedy="Choose one of these.")
    panels: dict[str, dict[str, Curve]] = {}
    for folder in folders:
        before = f"{folder.name} " if len(folders) > 1 else ""
        for title, curves in _curves(folder).items():
            panels.setdefault(title, {}).update({f"{before}{name}": curve for name, curve in curves.items()})
    if path is None:
        return curves_text(panels, width=width)
    with atomic_file(path) as file:
        file.write(draw_curves(panels, CANVASES[path.suffix]))
    return None


def _curves(run: Path) -> dict[str, dict[str, Curve]]:
    """By panel and name."""
    log = run / LOG_FILE
    if not log.is_file():
        raise InvalidArgument(str(run), wanted="the folder of a run", got=f"no {LOG_FILE}", remedy="Train first.")
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for number, line in enumerate(log.read_text("utf-8").splitlines(), start=1):
        try:
            event = json.loads(line)
            values = {key: float(value) for key, value in event.items() if type(value) in (int, float)}
        except (ValueError, AttributeError):
            remedy = "Delete the line: a process was killed while it wrote it."
            raise InvalidData(log, number, wanted="a JSON object", got=line[:60], remedy=remedy) from None
        if event.get("event") == "train":
            losses = panels.setdefault("loss", {})
            nll = values.get("nll", values["loss"])  # without label smoothing, as the loss of validations
            losses.setdefault("training", []).append((values["step"], nll))
            if nll != values["loss"]:
                losses.setdefault("training, smoothed", []).append((values["step"], values["loss"]))
            panels.setdefault("learning rate", {}).setdefault("learning rate", []).append(
                (values["step"], values["rate"])
            )
        elif event.get("event") == "validation":
            panels.setdefault("loss", {}).setdefault("validation", []).append((values["step"], values["loss"]))
            for name in values.keys() - NOT_METRICS:
                panels.setdefault(name, {}).setdefault("validation", []).append((values["step"], values[name]))
    if not panels:
        raise InvalidArgument(str(run), wanted="a run with logged steps", got="none yet", remedy="Train on.")
    order = sorted(panels, key=lambda title: (title != "loss", title == "learning rate", title))
    return {title: dict(panels[title]) for title in order}
