"""The end of a server's process after a signal: in time, whatever it computes."""

import logging
import os
import signal
import threading
from collections.abc import Callable
from types import TracebackType
from typing import NoReturn

from regard.core.log_output import flush_log

log = logging.getLogger(__name__)
FLUSH_SECONDS = 0.5  # for lines of the log to be written, by a reader that may be slow
END_SECONDS = 4.0  # after the time in which requests must end


class ProcessEnd:
    """Ends this process by force where it has not ended in time after a signal, and at once after a second one.

    A thread that computes cannot be ended from outside, and Python waits for it or aborts: then nothing but leaving
    without clean-up remains. Nothing that a server has is lost by it. Leaving the block says that no force is needed.

    seconds      from the first signal, in which requests must end
    unanswered   counts the requests that are open
    """

    def __init__(self, seconds: float, unanswered: Callable[[], int] = int) -> None:
        self.seconds = seconds
        self.unanswered = unanswered
        self.number: int | None = None  # of the first signal
        self._timer: threading.Timer | None = None

    def __enter__(self) -> "ProcessEnd":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def signaled(self, number: int) -> None:
        """A signal has come."""
        if self.number is not None:
            self.end(f"second {signal.Signals(number).name}", number)
        self.number = number
        why = f"{signal.Signals(number).name} {self.seconds + END_SECONDS:g} s ago"
        self._timer = threading.Timer(self.seconds + END_SECONDS, self.end, [why, number])
        self._timer.daemon = True
        self._timer.start()

    def end(self, why: str, number: int) -> NoReturn:
        """End the process now, with the exit code of a signal."""
        message = "%s: ending at once, without an answer to %d open requests"
        log.warning(message, why, self.unanswered())
        flush_log(FLUSH_SECONDS)
        os._exit(128 + number)
