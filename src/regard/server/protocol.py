"""The HTTP/1.1 protocol of uvicorn, with a time-out for clients that never finish the headers of a request."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 10.0


class TimedProtocol(H11Protocol):
    """Closes a connection on which a request's headers take longer than ten seconds to arrive (slow loris)."""

    timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._set_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_timer()  # the headers are complete
        elif self.timer is None:
            self._set_timer()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.timer is None:
            self._set_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _set_timer(self) -> None:
        self.timer = self.loop.call_later(HEADER_SECONDS, self.transport.close)

    def _stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
