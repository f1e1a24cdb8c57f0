"""Prefetching: items are produced by a thread, ahead of their use."""

import queue
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from regard.core.errors import InvalidArgument, RegardError

Item = TypeVar("Item")


def prefetch(items: Iterable[Item], depth: int = 2) -> Iterator[Item]:
    """The same items, produced by a thread up to `depth` ahead; the thread ends with this iterator.

    An exception of the thread is raised here. A thread that disappears, as after a fork, is an error too.
    """
    if depth < 1:
        raise InvalidArgument("depth", wanted="at least 1", got=str(depth), remedy="Raise it.")
    return _prefetch(items, depth)


@dataclass(frozen=True)
class _Failed:
    error: BaseException


_END = object()


def _prefetch(items: Iterable[Item], depth: int) -> Iterator[Item]:
    ready: queue.Queue[object] = queue.Queue(depth)
    stopped = threading.Event()

    def produce() -> None:
        last: object = _END
        try:
            for item in items:
                ready.put(item)
                if stopped.is_set():
                    return
        except Exception as error:
            last = _Failed(error)
        except BaseException as error:  # SystemExit and the like end this thread alone: report them
            last = _Failed(RegardError(f"regard-ahead: wanted the next batch; got {error!r} in its thread. Resume."))
        ready.put(last)

    thread = threading.Thread(target=produce, name="regard-ahead", daemon=True)
    thread.start()
    try:
        while (item := _next(ready, thread)) is not _END:
            if isinstance(item, _Failed):
                raise item.error
            yield item  # type: ignore[misc]
    finally:
        stopped.set()
        while thread.is_alive():
            try:
                ready.get(timeout=0.01)  # it may be blocked in put
            except queue.Empty:
                continue


def _next(ready: queue.Queue[object], thread: threading.Thread) -> object:
    while True:
        alive = thread.is_alive()  # checked first: items put before it ended are in the queue by then
        try:
            return ready.get(timeout=1.0 if alive else 0.0)
        except queue.Empty:
            if not alive:
                return _Failed(RegardError("regard-ahead: wanted the next batch; got no thread that makes it. Resume."))
