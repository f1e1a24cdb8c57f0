"""`regard predict`: outputs for lines as they arrive, in order, each as soon as all before it are done."""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from regard.core.errors import InvalidArgument, InvalidData
from regard.data import text
from regard.data.image_store import Member
from regard.data.prefetch import arriving
from regard.inference.load import load
from regard.inference.pipelines import Output
from regard.inference.predictor import Predictor
from regard.inference.score import SequenceScore, pairs, score_lines

Line = TypeVar("Line", bound=str | Member)  # an image in a zip file has no path
CHUNK = 1024  # lines at once: enough to batch those of similar length
TIMEOUT = 0.02  # seconds without a new line after which the lines so far are processed


def predict(
    model: str | Path | Predictor,
    lines: Iterable[Line],
    *,
    beside: dict[str, Iterator[Any]] | None = None,
    **options: Any,
) -> Iterator[tuple[Line, list[Output]]]:
    """Each line with its outputs, best first; one after the other, as the lines arrive. An empty line has an empty one.

    model     a run, a checkpoint, or a loaded model
    beside    arguments of `Predictor.outputs` with one value for each line: prefixes, required, banned_in
    options   other arguments of `Predictor.outputs`
    """
    predictor, number, beside = load(model), 1, beside or {}
    for chunk in arriving(lines, CHUNK, TIMEOUT):
        values: dict[str, Any] = {name: list(islice(each, len(chunk))) for name, each in beside.items()}
        for name, some in values.items():
            if len(some) < len(chunk):
                raise _uneven(name, f"at least {number + len(some)} lines", f"{number + len(some) - 1}")
        full = [i for i, line in enumerate(chunk) if line or not predictor.recipe.data.source_fields]
        values = {name: [each[i] for i in full] for name, each in values.items()}
        done: dict[int, list[Output]] = {i: [Output("")] for i in range(len(chunk)) if i not in set(full)}
        following = 0  # the next line to yield
        sources, numbers = [chunk[i] for i in full], [number + i for i in full]
        for i, outputs in predictor.iter_outputs(sources, lines=numbers, **values, **options) if sources else ():
            done[full[i]] = outputs
            while following in done:
                yield chunk[following], done.pop(following)
                following += 1
        for rest in range(following, len(chunk)):
            yield chunk[rest], done.pop(rest)
        number += len(chunk)
    for name, each in beside.items():
        if next(each, None) is not None:
            raise _uneven(name, f"{number - 1} lines", "more")


def score(
    model: str | Path | Predictor, files: Sequence[Path] = (), *, columns: Sequence[str] = ()
) -> Iterator[SequenceScore]:
    """The log-probabilities of given outputs: parallel files of sources and targets, or one of texts; or stdin.

    A table has sources and targets in `columns`, by default the recipe's.
    """
    predictor = load(model)
    return score_lines(predictor, pairs(predictor, files, columns))


def _uneven(name: str, wanted: str, got: str) -> InvalidArgument:
    option = "--prefix" if name == "prefixes" else "--constraints"
    return InvalidArgument(
        option, wanted=f"a line for each line of the input: {wanted}", got=got, remedy="Empty is fine."
    )


def read_constraints(path: Path) -> dict[str, Iterator[Any]]:
    """Phrases that each line's output must and must not hold: {"required": ["…"], "banned": ["…"]}, or an empty line.

    For the argument `beside` of `predict`.
    """
    return {"required": _phrases(path, "required"), "banned_in": _phrases(path, "banned")}


def _phrases(path: Path, name: str) -> Iterator[list[str]]:
    for number, line in enumerate(text.lines(path), 1):
        try:
            given: Any = json.loads(line) if line.strip() else {}
        except (ValueError, RecursionError):
            given = None
        known = isinstance(given, dict) and given.keys() <= {"required", "banned"}
        if not known or not all(_is_list_of_texts(each) for each in given.values()):
            raise InvalidData(
                path,
                number,
                wanted='{"required": ["a phrase"], "banned": ["another"]}, or nothing',
                got=line[:60],
                remedy="One line for each line of the input.",
            )
        yield given.get(name, [])


def _is_list_of_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)
