"""SIGINT and SIGTERM end a run after the update in progress, with a checkpoint."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from regard.training.distributed import ProcessGroup


@dataclass
class StopRequest:
    """Whether the run is to stop. With several ranks, all must agree on the update after which they do."""

    received: int | None = None  # signal number, by this process
    agreed: int | None = None  # signal number, known to all ranks

    def pending(self, process_group: ProcessGroup) -> int | None:
        return self.received if process_group.single else self.agreed


@contextmanager
def catch_stop_signals(request: StopRequest) -> Iterator[None]:
    """Note SIGINT and SIGTERM in `request` instead of ending the process. A second one has its usual effect."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        request.received = number
        signal.signal(number, previous[number])

    previous: dict[int, Any] = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in previous:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
