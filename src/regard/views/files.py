"""Writing a look to a file, in the format of its ending."""

from collections.abc import Callable
from pathlib import Path

from regard.core.atomic_io import atomic_file
from regard.interpret.look import Look
from regard.views.canvas import CANVASES
from regard.views.figures import draw
from regard.views.html import page


def write_json(look: Look, path: Path) -> None:
    _write(path, look.to_json())


def write_html(look: Look, path: Path) -> None:
    _write(path, page(look.as_dict()))


def _write(path: Path, text: str) -> None:
    with atomic_file(path) as file:
        file.write(text.encode(errors="replace"))  # an image's file name may hold bytes that are not valid UTF-8


WRITERS: dict[str, Callable[..., object]] = {".json": write_json, ".html": write_html, **dict.fromkeys(CANVASES, draw)}
