"""SIGINT, SIGTERM, SIGHUP and SIGUSR1 end a run after the update in progress, with a checkpoint."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from regard.training.distributed import ProcessGroup

# SIGHUP: the terminal was closed. SIGUSR1: the limit of a batch job is near. Windows has neither.
SIGNALS = [
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
    if hasattr(signal, name)
]


class ValidationStopped(BaseException):
    """Raised by a stop signal during a validation, which changes nothing that is saved."""


@dataclass
class StopRequest:
    """Whether the run is to stop.

    With several ranks, all must agree on the update after which they do.
    """

    received: int | None = None  # signal number, by this process
    agreed: int | None = None  # signal number, known to all ranks
    raises: bool = False  # whether a signal raises ValidationStopped

    def pending(self, process_group: ProcessGroup) -> int | None:
        return self.received if process_group.single else self.agreed

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Raise ValidationStopped at a signal in this block, or before it."""
        self.raises = True
        try:
            if self.received is not None:
                raise ValidationStopped
            yield
        finally:
            self.raises = False


@contextmanager
def catch_stop_signals(request: StopRequest) -> Iterator[None]:
    """Note stop signals in `request` instead of ending the process.

    A second one has its usual effect.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        first = request.received is None
        request.received = number
        signal.signal(number, previous[number])
        if first and request.raises:
            raise ValidationStopped

    previous: dict[int, Any] = {number: signal.getsignal(number) for number in SIGNALS}
    if hasattr(signal, "SIGHUP") and previous[signal.SIGHUP] is signal.SIG_IGN:  # nohup
        del previous[signal.SIGHUP]
    for number in previous:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
