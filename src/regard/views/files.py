"""Writing a look to a file, in the format of its ending."""

from pathlib import Path

from regard.core.atomic_io import atomic_file
from regard.core.errors import InvalidArgument
from regard.interpret.look import Look
from regard.views.canvas import CANVASES
from regard.views.figures import check_view, draw

ENDINGS = (".json", ".html", *CANVASES)


def check_file(path: Path | None, view: str | None, map: str | None) -> None:
    """Refuse what `write_look` would, before any work is done. None: the look is not written."""
    check_view(view)
    drawn = f"--out with a name in {', '.join(CANVASES)}"
    if path is not None and path.suffix not in ENDINGS:
        wanted = f"a name in {', '.join(ENDINGS)}"
        raise InvalidArgument("out", wanted=wanted, got=str(path), remedy="Choose one of these.")
    if view is not None and (path is None or path.suffix not in CANVASES):
        remedy = "Add it, or leave --view out."
        raise InvalidArgument("view", wanted=drawn, got=str(path or "none"), remedy=remedy)
    if map is not None and path is not None and path.suffix not in CANVASES:
        remedy = "Leave --map out: it has every map."
        raise InvalidArgument("map", wanted=f"{drawn}, or none", got=str(path), remedy=remedy)


def write_look(look: Look, path: Path, *, view: str | None = None, map: str | None = None) -> None:
    """Write a look as .json, .html, .svg or .png; `view` and `map` as in `figures.draw`."""
    if path.suffix in CANVASES:
        draw(look, path, view=view, map=map)
        return
    with atomic_file(path) as file:
        content = look.to_json() if path.suffix == ".json" else look.to_html()
        file.write(content.encode(errors="replace"))  # an image's file name may hold bytes that are not valid UTF-8
