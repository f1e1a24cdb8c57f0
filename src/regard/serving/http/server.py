"""An application behind uvicorn: until a signal ends it, and the requests in flight with it."""

import asyncio
import logging
import signal
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import FrameType
from typing import Any

import uvicorn

from regard.core.errors import EngineCrashed
from regard.serving.http.app import Server
from regard.serving.http.http1_protocol import HEADER_BYTES, fastest
from regard.serving.http.listener import HttpServer
from regard.serving.http.tls import Tls
from regard.serving.processes.process_end import ProcessEnd
from regard.serving.scheduler.interfaces import BaseScheduler

log = logging.getLogger(__name__)
CLOSE_SECONDS = (
    0.3  # for the word that the socket may be closed, after the time in which requests must end
)
ANSWER_SECONDS = 2.5  # for answers to be written, after the time in which requests must end: clients may read slowly


async def serve_http(
    app: Server,
    engine: BaseScheduler,
    listening: socket.socket,
    drain_seconds: float,
    tls: Tls | None,
    ending: ProcessEnd | None = None,
    *,
    wait_for_close: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Answer requests until SIGTERM or SIGINT, then finish those in flight within this time.

    A computation that does not end then, or a second signal, ends the process by force (`ending`). Raises
    `EngineCrashed` if a fault ends the scheduler: requests get status 503, and the server ends. Where other processes
    accept connections on the same socket, `wait_for_close` returns when this one may close it.
    """
    ending = ProcessEnd(drain_seconds) if ending is None else ending
    ending.unanswered = lambda: app.open
    server = HttpServer(server_config(app, tls), shares_socket=wait_for_close is not None)
    loop, stop, crashes = asyncio.get_running_loop(), asyncio.Event(), list[EngineCrashed]()

    def end(number: int, frame: FrameType | None) -> None:
        """The first signal drains, a second one ends at once."""
        ending.signaled(number)
        log.info("%s: finishing the requests in flight", signal.Signals(number).name)
        loop.call_soon_threadsafe(stop.set)

    def crashed(error: EngineCrashed) -> None:
        crashes.append(error)
        loop.call_soon_threadsafe(stop.set)

    server.handle_exit = end  # type: ignore[assignment, method-assign]
    engine.when_crashed(crashed)

    async def drain() -> None:
        await stop.wait()
        app.service.stopping = (
            True  # the socket stays open: new requests are refused with status 503
        )
        drained_by = loop.time() + drain_seconds
        finished = await asyncio.to_thread(engine.stop, drain_seconds)
        if wait_for_close is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(drained_by + CLOSE_SECONDS):
                    await wait_for_close()
        until = loop.time() + ANSWER_SECONDS
        while app.open and not server.force_exit and loop.time() < until:
            await asyncio.sleep(0.01)
        if not finished or app.open:
            log.warning("requests were ended after %g s without an answer", drain_seconds)
        server.should_exit = True
        await asyncio.sleep(
            max(0.0, until - loop.time())
        )  # connections are closed meanwhile, and this is cancelled
        log.warning("connections were closed whose clients did not read their answers")
        server.force_exit = True

    draining = asyncio.ensure_future(drain())
    try:
        await server.serve(sockets=[listening])
    finally:
        draining.cancel()
        await asyncio.to_thread(engine.stop)
        if not engine.ended and not crashes:
            ending.end("the engine is still computing", ending.number or signal.SIGTERM)
    if crashes:
        raise crashes[0]


def server_config(
    app: Any, tls: Tls | None = None, protocol: type[asyncio.Protocol] | None = None
) -> uvicorn.Config:
    """The settings of uvicorn: our limits and log, and no address of a client taken from its headers."""
    return uvicorn.Config(
        app,
        http=fastest() if protocol is None else protocol,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=HEADER_BYTES,
        ssl_certfile=None if tls is None else tls.certificate,
        ssl_keyfile=None if tls is None else tls.key,
    )


def fastest_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The event loop of uvloop, where it is installed (extra `http`)."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop  # type: ignore[no-any-return, unused-ignore]
