"""Batches are made in a thread, ahead of their use."""

import queue
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from regard.core.errors import InvalidArgument, RegardError

Item = TypeVar("Item")


def prefetch(items: Iterable[Item], depth: int = 2) -> Iterator[Item]:
    """The same items, made in a thread up to `depth` ahead of their use; the thread ends with this iterator.

    What the thread raises is raised here. If it is gone without a word, as after a fork, that is an error too.
    """
    if depth < 1:
        raise InvalidArgument("depth", wanted="at least 1", got=str(depth), remedy="Raise it.")
    return _ahead(items, depth)


@dataclass(frozen=True)
class _Failed:
    error: BaseException


_END = object()


def _ahead(items: Iterable[Item], depth: int) -> Iterator[Item]:
    made: queue.Queue[object] = queue.Queue(depth)
    stopped = threading.Event()

    def make() -> None:
        last: object = _END
        try:
            for item in items:
                made.put(item)
                if stopped.is_set():
                    return
        except Exception as error:
            last = _Failed(error)
        except BaseException as error:  # an exit of this thread alone, of which the one who asked must hear
            last = _Failed(RegardError(f"regard-ahead: wanted the next batch; got {error!r} in its thread. Resume."))
        made.put(last)

    thread = threading.Thread(target=make, name="regard-ahead", daemon=True)
    thread.start()
    try:
        while (item := _next(made, thread)) is not _END:
            if isinstance(item, _Failed):
                raise item.error
            yield item  # type: ignore[misc]
    finally:
        stopped.set()
        while thread.is_alive():
            try:
                made.get(timeout=0.01)  # it may wait for room to put one more
            except queue.Empty:
                continue


def _next(made: queue.Queue[object], thread: threading.Thread) -> object:
    while True:
        alive = thread.is_alive()  # asked first: what it put before it ended is there by now
        try:
            return made.get(timeout=1.0 if alive else 0.0)
        except queue.Empty:
            if not alive:
                return _Failed(RegardError("regard-ahead: wanted the next batch; got no thread that makes it. Resume."))
