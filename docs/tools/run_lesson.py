"""Run the cells of a lesson, as a notebook would.

    python docs/tools/run_lesson.py docs/course/01-bottleneck.md              # prints, and saves the pictures here
    python docs/tools/run_lesson.py docs/course/01-bottleneck.md cells.json   # writes what each cell gave as JSON

A cell is a block of ```python; one of ```python .noeval is shown and not run. All cells share a namespace and an empty
working folder. A cell's result is what it printed, and its last expression: as SVG if it has one, else by `repr`.
"""

import ast
import contextlib
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CELL = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def cells(text: str) -> list[str]:
    return CELL.findall(text)


def run(code: str, namespace: dict[str, Any], name: str) -> dict[str, str]:
    """The text and the picture that a cell gave."""
    tree, printed, value = ast.parse(code), io.StringIO(), None
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, name, "exec"), namespace)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), name, "eval"), namespace)
    if hasattr(value, "_repr_svg_"):
        return {
            "text": printed.getvalue(),
            "svg": value._repr_svg_(),
            "alt": getattr(value, "alt", ""),
        }
    return {"text": printed.getvalue() + ("" if value is None else f"{value!r}\n")}


def results(lesson: Path) -> Iterator[dict[str, str]]:
    """What each cell gave."""
    sys.path.insert(0, str(lesson.parent))
    text = lesson.read_text("utf-8")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ["REGARD_CACHE"] = f"{folder}/cache"
        import torch

        torch.manual_seed(0)
        namespace: dict[str, Any] = {"__name__": "__main__"}
        for number, code in enumerate(cells(text), start=1):
            yield run(code, namespace, f"{lesson.name}, cell {number}")
        os.chdir("/")


def main(lesson: Path, out: Path | None = None) -> None:
    folder = Path.cwd()
    if out is not None:
        out = out.resolve()
        out.write_text(json.dumps(list(results(lesson))))
        return
    for number, cell in enumerate(results(lesson), start=1):
        print(cell["text"], end="")
        if "svg" in cell:
            picture = folder / f"{lesson.stem}-{number}.svg"
            picture.write_text(cell["svg"], "utf-8")
            print(f"[{cell['alt']}: {picture.name}]")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), *map(Path, sys.argv[2:]))
