"""What the lessons use beside Regard: pictures that a notebook shows, and the grader of the exercises.

python course.py 3 my_answers.py      # grades exercise_1, exercise_2 and exercise_3 of lesson 3 in that file
"""

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.views import charts
from regard.views.figures import heads, heat, image, lines

HERE = Path(__file__).parent
VIEWS = {"heat": heat, "heads": heads, "lines": lines, "image": image}


class Picture:
    """An SVG that a notebook shows; `alt` says what it shows."""

    def __init__(self, svg: bytes, alt: str) -> None:
        self.svg, self.alt = svg.decode(), alt

    def _repr_svg_(self) -> str:
        return self.svg


def chart(title: str, ticks: Sequence[object], series: Mapping[str, Sequence[float]]) -> Picture:
    """A line for each series over common ticks."""
    drawn = [
        charts.ChartLine(name, [(value,) * 3 for value in values])
        for name, values in series.items()
    ]
    return Picture(
        charts.lines(
            title, [str(tick) for tick in ticks], drawn, lambda value: f"{value:.3g}"
        ).content(),
        title,
    )


def weights_map(title: str, rows: Sequence[str], keys: Sequence[str], weights: Any) -> Picture:
    """A heat map of weights (rows, keys), each from 0 to 1."""
    return Picture(charts.heat_map(title, rows, keys, weights.tolist()).content(), title)


def attention(look: Any, name: str, view: str = "heat") -> Picture:
    """A drawing of one map of a `regard.Look`."""
    return Picture(VIEWS[view](look, look[name], ".svg"), f"{name} of {look.title or 'a look'}")


def grade(lesson: int, exercise: int, answer: Callable[..., Any]) -> None:
    """Check an answer; an AssertionError says what is not right yet."""
    getattr(_module(HERE / "graders" / f"lesson_{lesson:02}.py"), f"check_{exercise}")(answer)
    print(f"Exercise {lesson}.{exercise}: correct.")


def _module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(lesson: str, file: str) -> int:
    """Grade the three exercises of a lesson; the exit status."""
    answers, wrong = _module(Path(file)), 0
    for exercise in (1, 2, 3):
        answer = getattr(answers, f"exercise_{exercise}", None)
        if answer is None:
            wrong += 1
            print(
                f"Exercise {lesson}.{exercise}: not yet. There is no exercise_{exercise} in {Path(file).name}."
            )
            continue
        try:
            grade(int(lesson), exercise, answer)
        except Exception as error:  # whatever the answer raises
            wrong += 1
            print(f"Exercise {lesson}.{exercise}: not yet. {type(error).__name__}: {error}")
    return 1 if wrong else 0


if __name__ == "__main__":
    if (
        len(sys.argv) != 3
        or sys.argv[1] not in map(str, range(1, 13))
        or not Path(sys.argv[2]).is_file()
    ):
        sys.exit(
            "usage: python course.py LESSON ANSWERS.py    (a lesson from 1 to 12, and the file of your answers)"
        )
    sys.exit(main(*sys.argv[1:]))
