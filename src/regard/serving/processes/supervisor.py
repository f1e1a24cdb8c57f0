"""The supervisor of a server's processes: starts them, starts again those that end, and ends all of them together."""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec.structs import replace

from regard.core.errors import InvalidArgument
from regard.serving.http.listener import drop_new_connections
from regard.serving.processes.messages import ServerConfig, Start
from regard.serving.processes.supervised import Supervised

log = logging.getLogger(__name__)
MODULES = "regard.serving.processes"
PATH_BYTES = 100  # of a Unix socket: systems allow 103 or more
FRONT_SECONDS = 3.5  # for a front end to end, after the time in which requests must end
ENGINE_SECONDS = 1.0  # for the scheduler process to end, when no front end needs it any more


def run_processes(
    config: ServerConfig, listening: socket.socket, workers: int, ready: Callable[[], None]
) -> None:
    """Serve with front-end processes over one scheduler process, until SIGTERM or SIGINT.

    config   without its socket, which is in a folder that only this user can read
    ready    is called when all processes are ready for the first time
    """
    with TemporaryDirectory(prefix="regard-") as folder:  # of mode 0700
        path, metrics = Path(folder, "engine.sock"), Path(folder, "metrics")
        if len(str(path).encode()) > PATH_BYTES:
            wanted, remedy = (
                f"a temporary folder whose path has at most {PATH_BYTES - 30} bytes",
                "Set TMPDIR.",
            )
            raise InvalidArgument("workers", wanted=wanted, got=folder, remedy=remedy)
        metrics.mkdir()
        config = replace(config, socket=str(path))
        environment = {"PROMETHEUS_MULTIPROC_DIR": str(metrics), "OMP_NUM_THREADS": "1"}
        asyncio.run(_supervise(config, listening, workers, environment, ready))


async def _supervise(
    config: ServerConfig,
    listening: socket.socket,
    workers: int,
    environment: dict[str, str],
    ready: Callable[[], None],
) -> None:
    engine = Supervised("the engine process", f"{MODULES}.scheduler_process", Start(config))
    start = Start(config, listening.fileno())
    fronts = [
        Supervised(f"front end {number}", f"{MODULES}.worker_process", start, environment)
        for number in range(1, workers + 1)
    ]
    stop, at_once = _handle_signals(engine)
    running = {each: asyncio.ensure_future(each.run()) for each in (engine, *fronts)}
    try:
        if await _before(_all_ready([engine, *fronts]), stop, *running.values()):
            for each in fronts:
                each.begin()
            ready()
            await _before(stop.wait(), *running.values())
    finally:
        for each in fronts:
            each.server_ends()
        closing = asyncio.ensure_future(_close_socket(listening, fronts, config.drain_seconds))
        seconds = config.drain_seconds + FRONT_SECONDS
        await _end([running[each] for each in fronts], fronts, seconds, at_once)
        await closing
        await _end([running[engine]], [engine], ENGINE_SECONDS, at_once)
        if at_once.done():
            raise SystemExit(128 + at_once.result())


async def _close_socket(
    listening: socket.socket, fronts: Sequence[Supervised], seconds: float
) -> None:
    """Close the socket in all processes at once, when every front end has finished its requests, or after this time.

    Until then all of them accept connections, and refuse requests with status 503.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            for each in fronts:
                await each.drained.wait()
    await drop_new_connections(listening)
    # Otherwise clients could still connect to the socket of this process, which accepts no connections.
    listening.close()
    for each in fronts:
        each.close_socket()


def _handle_signals(engine: Supervised) -> "tuple[asyncio.Event, asyncio.Future[signal.Signals]]":
    """An event that SIGTERM or SIGINT sets, and the signal that follows it. SIGHUP goes to the scheduler process."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    at_once = loop.create_future()

    def end(number: signal.Signals) -> None:
        if not stop.is_set():
            log.info("%s: ending the server's processes", number.name)
        elif not at_once.done():
            log.warning("second %s: ending the server's processes at once", number.name)
            at_once.set_result(number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, number)
    loop.add_signal_handler(signal.SIGHUP, engine.send, signal.SIGHUP)
    return stop, at_once


async def _all_ready(processes: Sequence[Supervised]) -> None:
    for each in processes:
        await each.ready.wait()


async def _before(
    wanted: Coroutine[Any, Any, Any], *others: "asyncio.Event | asyncio.Task[None]"
) -> bool:
    """Whether something happens before others, of which a task that failed raises its error."""
    waits = [
        asyncio.ensure_future(each.wait()) if isinstance(each, asyncio.Event) else each
        for each in others
    ]
    task = asyncio.ensure_future(wanted)
    await asyncio.wait({task, *waits}, return_when=asyncio.FIRST_COMPLETED)
    for each in waits:
        if each.done():
            each.result()
    done = task.done()
    task.cancel()
    return done


async def _end(
    tasks: "Sequence[asyncio.Task[None]]",
    processes: Sequence[Supervised],
    seconds: float,
    at_once: "asyncio.Future[signal.Signals]",
) -> None:
    """End processes, within this time or by force; by force also when it must be at once."""
    for each in processes:
        each.end(signal.SIGTERM)
    ended: asyncio.Future[Any] = asyncio.gather(*tasks, return_exceptions=True)
    either: set[asyncio.Future[Any]] = {ended, at_once}
    await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    left = [each for each in tasks if not each.done()]
    if left:
        log.warning("processes are ended that did not end in time")
        for each in processes:
            each.end(signal.SIGKILL)
        await asyncio.wait(left)
