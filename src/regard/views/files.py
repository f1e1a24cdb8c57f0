"""A look as a file: what the ending of its name says."""

from collections.abc import Callable
from pathlib import Path

from regard.core.atomic_io import atomic_file
from regard.interpret.look import Look
from regard.views.figures import SHEETS, draw


def write_json(look: Look, path: Path) -> None:
    _write(path, look.to_json())


def write_html(look: Look, path: Path) -> None:
    _write(path, look.to_html())


def _write(path: Path, text: str) -> None:
    with atomic_file(path) as file:
        file.write(text.encode(errors="replace"))  # the name of a picture's file may hold bytes that are no text


WRITERS: dict[str, Callable[..., object]] = {".json": write_json, ".html": write_html, **dict.fromkeys(SHEETS, draw)}
