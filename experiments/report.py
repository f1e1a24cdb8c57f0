"""The result of an experiment: verdict, table and figure, printed and written to files."""

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from regard.core.atomic_io import atomic_file
from regard.core.errors import InvalidArgument, RegardError
from regard.views import charts

sys.path.append(
    str(Path(__file__).parents[1] / "benchmarks")
)  # time and memory are measured there as here

from measure import grad_run, peak_bytes, seconds

__all__ = ["Finding", "grad_run", "lines", "main", "peak_bytes", "seconds", "share", "verdict"]

Verdict = Literal["held", "held in part", "did not hold"]
Point = (
    float | tuple[float, float, float] | None
)  # a value, or low, value, high; None where there is none


@dataclass(frozen=True)
class Finding:
    """The result of an experiment."""

    verdict: Verdict  # on the claim
    because: str  # in numbers
    rows: Sequence[Sequence[str]]  # the first row is the header
    figure: str  # SVG

    def __str__(self) -> str:
        head, *rest = (f"| {' | '.join(row)} |" for row in self.rows)
        table = "\n".join([head, "|---" * len(self.rows[0]) + "|", *rest])
        return f"{table}\n\nIt {self.verdict}: {self.because}\n"


def verdict(*parts: bool) -> Verdict:
    """Whether all, some or none of the claim's parts held."""
    return "held" if all(parts) else "held in part" if any(parts) else "did not hold"


def share(value: float) -> str:
    return f"{value:.0%}"


def lines(
    title: str,
    ticks: Sequence[object],
    drawn: Mapping[str, Sequence[Point]],
    shown: Callable[[float], str] = share,
) -> str:
    """A line chart over common ticks."""
    series = [
        charts.ChartLine(name, [_interval(point) for point in points])
        for name, points in drawn.items()
    ]
    return charts.lines(title, [str(tick) for tick in ticks], series, shown).content().decode()


def _interval(point: Point) -> tuple[float, float, float] | None:
    return (point, point, point) if isinstance(point, float | int) else point


def main(
    name: str,
    about: str,
    find: Callable[..., Finding],
    options: Callable[[argparse.ArgumentParser], object] = lambda parser: None,
) -> None:
    """The command line of an experiment; `options` adds the arguments of `find`."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=Path("results"), help="the folder of table and figure"
    )
    options(parser)
    given: dict[str, Any] = vars(parser.parse_args())
    try:
        run(name, about, given.pop("out"), lambda: find(**given))
    except RegardError as error:
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def run(name: str, about: str, out: Path, find: Callable[[], Finding]) -> None:
    """Run the experiment, print its result, and write NAME.md and NAME.svg."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        got = error.strerror or str(error)
        raise InvalidArgument(
            str(out), wanted="a folder to write to", got=got, remedy="Choose another."
        ) from None
    began, busy = time.perf_counter(), time.process_time()
    found = find()
    spent = f"{time.perf_counter() - began:.0f} s, {time.process_time() - busy:.0f} s of one core"
    summary = f"{about}\n{found}\n({spent})\n"
    for ending, text in ((".md", summary), (".svg", found.figure)):
        with atomic_file(out / f"{name}{ending}") as file:
            file.write(text.encode())
    print(summary)
