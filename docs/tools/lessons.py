"""Sphinx extension: the lessons of the course are run, shown with what each cell gave, and offered as notebooks.

What a lesson gave is kept in build/lessons under a hash of the lesson and of the package, so that only what has changed
runs again. `course/` of the site has a notebook of each lesson (nbformat 4.5, jupytext's Markdown converted) and
course.zip: notebooks, graders and helper.
"""

import base64
import hashlib
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

from sphinx.errors import ExtensionError

import run_lesson

ROOT = Path(__file__).parents[2]
COURSE, SOURCE, CACHE = (
    ROOT / "docs" / "course",
    ROOT / "src" / "regard",
    ROOT / "build" / "lessons",
)
LESSON = re.compile(r"course/(\d\d-[\w-]+)")
Cell = dict[str, str]


def results(lesson: Path) -> list[Cell]:
    """What each cell of a lesson gave."""
    digest = hashlib.sha256()
    for path in (
        lesson,
        COURSE / "course.py",
        Path(run_lesson.__file__),
        *sorted(SOURCE.rglob("*.py")),
    ):
        digest.update(path.read_bytes())
    kept = CACHE / f"{lesson.stem}-{digest.hexdigest()[:16]}.json"
    if not kept.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, run_lesson.__file__, lesson, kept]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ExtensionError(f"{lesson.name} failed:\n{done.stderr}")
    found: list[Cell] = json.loads(kept.read_text("utf-8"))
    return found


def with_results(text: str, cells: list[Cell]) -> str:
    """The lesson with each cell's output and picture below it."""
    remaining = iter(cells)

    def shown(match: re.Match[str]) -> str:
        cell, parts = next(remaining), [match[0]]
        if cell["text"]:
            parts.append(f"```text\n{cell['text'].rstrip()}\n```")
        if "svg" in cell:
            data = base64.b64encode(cell["svg"].encode()).decode()
            parts.append(f'<p><img alt="{cell["alt"]}" src="data:image/svg+xml;base64,{data}"></p>')
        return "\n\n".join(parts) + "\n"

    return run_lesson.CELL.sub(shown, text)


def notebook(text: str, cells: list[Cell]) -> dict[str, Any]:
    """The lesson as a notebook, with its outputs."""
    out: list[dict[str, Any]] = []
    remaining, last = iter(cells), 0
    for match in run_lesson.CELL.finditer(text):
        out += _markdown(text[last : match.start()], len(out))
        out.append(_code(match[1], next(remaining), len(out)))
        last = match.end()
    out += _markdown(text[last:], len(out))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": kernel}, "cells": out}


def _markdown(text: str, number: int) -> list[dict[str, Any]]:
    source = text.strip().replace("```python .noeval", "```python")
    return (
        [{"cell_type": "markdown", "id": f"cell-{number}", "metadata": {}, "source": source}]
        if source
        else []
    )


def _code(code: str, cell: Cell, number: int) -> dict[str, Any]:
    outputs: list[dict[str, Any]] = []
    if cell["text"]:
        outputs.append({"output_type": "stream", "name": "stdout", "text": cell["text"]})
    if "svg" in cell:
        data = {"image/svg+xml": cell["svg"], "text/plain": cell["alt"]}
        outputs.append({"output_type": "display_data", "metadata": {}, "data": data})
    shared = {"cell_type": "code", "id": f"cell-{number}", "metadata": {}, "execution_count": None}
    return {**shared, "source": code.rstrip(), "outputs": outputs}


def _read(app: Any, page: str, source: list[str]) -> None:
    if (match := LESSON.fullmatch(page)) and app.builder.name == "html":
        path = COURSE / f"{match[1]}.md"
        links = f'<p><a href="{match[1]}.ipynb" download>This lesson as a notebook</a></p>'
        head, line, rest = source[0].partition("\n\n## The idea")
        source[0] = with_results(f"{head}\n\n{links}{line}{rest}", results(path))


def _finished(app: Any, exception: Exception | None) -> None:
    if exception is not None or app.builder.name != "html":
        return
    folder = Path(app.outdir) / "course"
    with zipfile.ZipFile(folder / "course.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(COURSE.glob("[0-9]*.md")):
            content = json.dumps(
                notebook(path.read_text("utf-8"), results(path)), ensure_ascii=False, indent=1
            )
            (folder / f"{path.stem}.ipynb").write_text(content, "utf-8")
            archive.writestr(f"course/{path.stem}.ipynb", content)
        for path in (COURSE / "course.py", *sorted((COURSE / "graders").glob("*.py"))):
            archive.write(path, f"course/{path.relative_to(COURSE)}")


def setup(app: Any) -> dict[str, bool]:
    app.connect("source-read", _read)
    app.connect("build-finished", _finished)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
