"""Lines in chunks, and the outputs of a chunk in the order of its lines:
the unit of bulk prediction.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, TypeVar

from regard.core.errors import InvalidArgument
from regard.inference.predictor import Predictor
from regard.tasks.pipeline import Output

Line = TypeVar("Line")


@dataclass(frozen=True)
class LineChunk(Generic[Line]):
    """Lines that follow each other.

    first    the number of the first line, from 1
    beside   arguments of `Predictor.outputs` with one value for each line: prefixes, required,
             banned_in
    """

    first: int
    lines: Sequence[Line]
    beside: dict[str, Any]


def chunked(
    lists: Iterable[Sequence[Line]], beside: dict[str, Iterator[Any]]
) -> Iterator[LineChunk[Line]]:
    """The lists of lines as chunks, with the values beside them;
    refused where their numbers differ.
    """
    first = 1
    for lines in lists:
        values: dict[str, Any] = {
            name: list(islice(each, len(lines))) for name, each in beside.items()
        }
        for name, some in values.items():
            if len(some) < len(lines):
                raise _uneven(
                    name, f"at least {first + len(some)} lines", f"{first + len(some) - 1}"
                )
        yield LineChunk(first, lines, values)
        first += len(lines)
    for name, each in beside.items():
        if next(each, None) is not None:
            raise _uneven(name, f"{first - 1} lines", "more")


def chunk_outputs(
    predictor: Predictor, chunk: LineChunk[Any], options: dict[str, Any]
) -> Iterator[list[Output]]:
    """The outputs of each line, in order, each as soon as those before it are done.

    An empty line has an empty one.
    """
    has_source = bool(predictor.recipe.data.source_fields)
    full = [i for i, line in enumerate(chunk.lines) if not (has_source and is_empty(line))]
    values: dict[str, Any] = {name: [each[i] for i in full] for name, each in chunk.beside.items()}
    empty = Output("", **predictor.task.empty_values(predictor.target))
    done: dict[int, list[Output]] = {i: [empty] for i in {*range(len(chunk.lines))} - {*full}}
    following = 0  # the next line to yield
    sources = [chunk.lines[i] for i in full]
    numbers = [chunk.first + i for i in full]
    if sources:
        found = predictor.iter_outputs(sources, lines=numbers, **values, **options)
        for i, outputs in found:
            done[full[i]] = outputs
            while following in done:
                yield done.pop(following)
                following += 1
    for rest in range(following, len(chunk.lines)):
        yield done.pop(rest)


def is_empty(line: object) -> bool:
    """Whether an input is an empty text; an array has no truth value."""
    return isinstance(line, str) and not line


def _uneven(name: str, wanted: str, got: str) -> InvalidArgument:
    option = "--prefix" if name == "prefixes" else "--constraints"
    return InvalidArgument(
        option,
        wanted=f"a line for each line of the input: {wanted}",
        got=got,
        remedy="Empty is fine.",
    )
