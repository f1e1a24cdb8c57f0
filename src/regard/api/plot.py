"""`regard plot`: the losses, metrics and learning rate of training runs, from their logs."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from regard.core.atomic_io import atomic_file
from regard.core.errors import InvalidArgument, InvalidData
from regard.training.telemetry.log_file import LOG_FILE, Event
from regard.training.telemetry.log_reader import event_of, new_lines
from regard.views.canvas import CANVASES
from regard.views.curves import Curve, curves_text, draw_curves
from regard.views.training_curves import curve_points, panels


def plot(
    runs: str | Path | Sequence[str | Path], out: str | Path | None = None, *, width: int = 80
) -> str | None:
    """Curves of one run or of several together: loss, each validation metric,
    and the learning rate, by step.

    runs    the folder of a run, or several
    out     a file in .svg or .png to draw them in; without one they are returned as text
    width   of the text, in columns
    """
    if isinstance(runs, str | Path):
        runs = [runs]
    folders = [Path(run) for run in runs]
    path = None if out is None else Path(out)
    if path is not None and path.suffix not in CANVASES:
        wanted = f"a name in {', '.join(CANVASES)}"
        raise InvalidArgument("out", wanted=wanted, got=str(path), remedy="Choose one of these.")
    panels: dict[str, dict[str, Curve]] = {}
    for folder in folders:
        before = f"{folder.name} " if len(folders) > 1 else ""
        for title, curves in _curves(folder).items():
            panels.setdefault(title, {}).update(
                {f"{before}{name}": curve for name, curve in curves.items()}
            )
    if path is None:
        return curves_text(panels, width=width)
    with atomic_file(path) as file:
        file.write(draw_curves(panels, CANVASES[path.suffix]))
    return None


def _curves(run: Path) -> dict[str, dict[str, Curve]]:
    """By panel and name."""
    log = run / LOG_FILE
    if not log.is_file():
        raise InvalidArgument(
            str(run), wanted="the folder of a run", got=f"no {LOG_FILE}", remedy="Train first."
        )
    found = panels(point for event in _events(log) for point in curve_points(event))
    if not found:
        raise InvalidArgument(
            str(run), wanted="a run with logged steps", got="none yet", remedy="Train on."
        )
    return found


def _events(log: Path) -> Iterator[Event]:
    """All events; a last line that is still being written is left out."""
    part = new_lines(log)
    before = 0
    while True:
        for number, line in enumerate(part.lines, start=before + 1):
            event = event_of(line)
            if event is None:
                got = line[:60].decode(errors="replace")
                remedy = "Delete the line: a process was killed while it wrote it."
                raise InvalidData(log, number, wanted="a JSON object", got=got, remedy=remedy)
            yield event
        if part.complete:
            return
        before += len(part.lines)
        part = new_lines(log, part.position)
