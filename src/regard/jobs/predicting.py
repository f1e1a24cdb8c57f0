"""Outputs for lines as they arrive, in their order, each as soon as all before it are there."""

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from regard.serving.predictor import Output, Predictor

MOST = 1024  # lines at once: enough to put those of like length together
PATIENCE = 0.02  # seconds without a line until what has come is enough


def predict_lines(
    predictor: Predictor, lines: Iterable[str], *, prefixes: Iterable[str] | None = None, **options: Any
) -> Iterator[tuple[str, list[Output]]]:
    """Each line with its outputs, best first. An empty line stays one: its output is empty, and no model is asked."""
    begins, number = None if prefixes is None else iter(prefixes), 1
    for together in _arriving(lines):
        full = [i for i, line in enumerate(together) if line or predictor.recipe.data.source is None]
        if begins is not None:
            options["prefixes"] = [next(begins, "") for _ in together]
            options["prefixes"] = [options["prefixes"][i] for i in full]
        found: dict[int, list[Output]] = {i: [Output("")] for i in range(len(together)) if i not in set(full)}
        said = 0
        for at, outputs in predictor.as_found([together[i] for i in full], first_line=number, **options):
            found[full[at]] = outputs
            while said in found:
                yield together[said], found.pop(said)
                said += 1
        for rest in range(said, len(together)):
            yield together[rest], found.pop(rest)
        number += len(together)


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
