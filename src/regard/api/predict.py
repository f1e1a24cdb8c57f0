"""Outputs for lines as they arrive, in their order, each as soon as all before it are there."""

import json
import queue
import threading
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from regard.core.errors import InvalidArgument, InvalidData
from regard.data import text
from regard.inference.outputs import Output
from regard.inference.predictor import Predictor

MOST = 1024  # lines at once: enough to put those of like length together
PATIENCE = 0.02  # seconds without a line until what has come is enough


def predict_lines(
    predictor: Predictor,
    lines: Iterable[str],
    *,
    beside: dict[str, Iterator[Any]] | None = None,
    **options: Any,
) -> Iterator[tuple[str, list[Output]]]:
    """Each line with its outputs, best first. An empty line stays one: its output is empty, and no model is asked.

    `beside` are options of `Predictor.outputs` that have something for each line: prefixes, required, banned_in.
    """
    number, beside = 1, beside or {}
    for together in _arriving(lines):
        mine: dict[str, Any] = {name: list(islice(each, len(together))) for name, each in beside.items()}
        for name, some in mine.items():
            if len(some) < len(together):
                raise _uneven(name, f"at least {number + len(some)} lines", f"{number + len(some) - 1}")
        full = [i for i, line in enumerate(together) if line or predictor.recipe.data.source is None]
        mine = {name: [each[i] for i in full] for name, each in mine.items()}
        found: dict[int, list[Output]] = {i: [Output("")] for i in range(len(together)) if i not in set(full)}
        said = 0
        asked, where = [together[i] for i in full], [number + i for i in full]
        for at, outputs in predictor.iter_outputs(asked, lines=where, **mine, **options) if asked else ():
            found[full[at]] = outputs
            while said in found:
                yield together[said], found.pop(said)
                said += 1
        for rest in range(said, len(together)):
            yield together[rest], found.pop(rest)
        number += len(together)
    for name, each in beside.items():
        if next(each, None) is not None:
            raise _uneven(name, f"{number - 1} lines", "more")


def _uneven(name: str, wanted: str, got: str) -> InvalidArgument:
    option = "--prefix" if name == "prefixes" else "--constraints"
    return InvalidArgument(
        option, wanted=f"a line for each line of the input: {wanted}", got=got, remedy="Empty is fine."
    )


def constraints(path: Path) -> dict[str, Iterator[Any]]:
    """What each line's output must hold and must not: {"required": ["…"], "banned": ["…"]}, or an empty line."""
    return {"required": _wishes(path, "required"), "banned_in": _wishes(path, "banned")}


def _wishes(path: Path, name: str) -> Iterator[list[str]]:
    for number, line in enumerate(text.lines(path), 1):
        try:
            wishes: Any = json.loads(line) if line.strip() else {}
        except ValueError:
            wishes = None
        named = isinstance(wishes, dict) and wishes.keys() <= {"required", "banned"}
        if not named or not all(isinstance(each, list) for each in wishes.values()) or not _texts(wishes):
            raise InvalidData(
                path,
                number,
                wanted='{"required": ["a phrase"], "banned": ["another"]}, or nothing',
                got=line[:60],
                remedy="One line for each line of the input.",
            )
        yield wishes.get(name, [])


def _texts(wishes: dict[str, list[Any]]) -> bool:
    return all(isinstance(phrase, str) for each in wishes.values() for phrase in each)


def _arriving(lines: Iterable[str]) -> Iterator[list[str]]:
    """What has come so far: from a pipe that rests, a line; from a file, many."""
    waiting: queue.Queue[str | BaseException | None] = queue.Queue(4 * MOST)

    def read() -> None:
        try:
            for line in lines:
                waiting.put(line)
            waiting.put(None)
        except BaseException as error:  # for whoever waits
            waiting.put(error)

    threading.Thread(target=read, daemon=True).start()
    together: list[str] = []
    while True:
        try:
            one = waiting.get(timeout=PATIENCE if together else None)
        except queue.Empty:
            one = ""
            yield together
            together = []
            continue
        if isinstance(one, str):
            together.append(one)
        if together and (len(together) == MOST or not isinstance(one, str)):
            yield together
            together = []
        if isinstance(one, BaseException):
            raise one
        if one is None:
            return
