"""The access log: lines of requests that end together are written together."""

import asyncio
import logging

from regard.core.log_output import MORE_FOLLOWS

log = logging.getLogger("regard.serving.http.request_handler")  # whose requests they are


class AccessLog:
    """Logs a line for each request, when the event loop has done what it had to do: answers do not wait for it."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(self, line: str) -> None:
        if not self._lines:
            asyncio.get_running_loop().call_soon(self._write)
        self._lines.append(line)

    def _write(self) -> None:
        lines, self._lines = self._lines, []
        for line in lines[:-1]:
            log.info("%s", line, extra=MORE_FOLLOWS)
        log.info("%s", lines[-1])
