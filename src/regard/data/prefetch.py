"""Prefetching: items are produced by a thread, ahead of their use."""

import queue
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from regard.core.errors import RegardError

Item = TypeVar("Item")
THREAD = "regard-prefetch"


def prefetch(items: Iterable[Item], depth: int = 2) -> Iterator[Item]:
    """The same items, produced by a thread up to `depth` ahead; the thread ends with this iterator.

    An exception of the thread is raised here. A thread that disappears, as after a fork, is an
    error too.
    """
    producer = _Producer(items, depth)
    try:
        while not isinstance(item := producer.next(), _End):
            yield item
    finally:
        producer.stop()
    if item.error is not None:
        raise item.error


def arriving(items: Iterable[Item], limit: int, pause: float) -> Iterator[list[Item]]:
    """Lists of the items that have arrived: `limit` of them,
    or fewer if no other arrives for `pause` seconds.

    The thread is not waited for: it may be reading a pipe that stays open.
    """
    producer = _Producer(items, 4 * limit)
    ended: _End | None = None
    while ended is None:
        chunk: list[Item] = []
        with suppress(queue.Empty):
            while len(chunk) < limit:
                item = producer.next(pause if chunk else None)
                if isinstance(item, _End):
                    ended = item
                    break
                chunk.append(item)
        if chunk:
            yield chunk
    if ended.error is not None:
        raise ended.error


@dataclass(frozen=True)
class _End:
    """The end of the items, and the exception that ended them, if one did."""

    error: Exception | None = None


class _Producer(Generic[Item]):
    """A thread that puts items into a queue, and then their end."""

    def __init__(self, items: Iterable[Item], depth: int) -> None:
        self.ready: queue.Queue[Item | _End] = queue.Queue(depth)
        self.stopped = threading.Event()
        self.thread = threading.Thread(
            target=self._produce, args=(items,), name=THREAD, daemon=True
        )
        self.thread.start()

    def next(self, timeout: float | None = None) -> Item | _End:
        """The next item, or the end; queue.Empty if there is neither in `timeout` seconds."""
        while True:
            # This is checked first: items put before the thread ended are in the queue by then.
            alive = self.thread.is_alive()
            wait = (timeout or 1.0) if alive else 0.0
            try:
                return self.ready.get(timeout=wait)
            except queue.Empty:
                if not alive:
                    return _End(
                        RegardError(
                            "prefetch: wanted the next item; got no thread that makes it. Resume."
                        )
                    )
                if timeout is not None:
                    raise

    def stop(self) -> None:
        """End the thread and wait for it."""
        self.stopped.set()
        while self.thread.is_alive():
            with suppress(queue.Empty):
                self.ready.get(timeout=0.01)  # it may be blocked in put

    def _produce(self, items: Iterable[Item]) -> None:
        end = _End()
        try:
            for item in items:
                self.ready.put(item)
                if self.stopped.is_set():
                    return
        except Exception as error:
            end = _End(error)
        except BaseException as error:  # SystemExit and the like end this thread alone: report them
            end = _End(
                RegardError(f"prefetch: wanted the next item; got {error!r} in its thread. Resume.")
            )
        self.ready.put(end)
