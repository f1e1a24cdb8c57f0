"""A front-end process: HTTP, JSON, keys and limits, over the scheduler process."""

import asyncio
import signal
import socket
from pathlib import Path

from regard.serving.http.app import Server
from regard.serving.http.cors import CrossOrigin
from regard.serving.http.hosts import AllowedHosts
from regard.serving.http.server import serve_http
from regard.serving.http.service import HttpLimits
from regard.serving.http.tls import Tls
from regard.serving.http.tracing import tracing_of_environment
from regard.serving.processes.child import Child, run_child
from regard.serving.processes.messages import Start
from regard.serving.processes.remote_scheduler import RemoteScheduler
from regard.studio.sources import StudioSources


async def run(child: Child, start: Start) -> None:
    config = start.config
    engine = RemoteScheduler(config.socket)
    limits = HttpLimits(
        config.max_body,
        config.max_inputs,
        image_body=config.max_image_body,
        bulk_lines=config.bulk_lines,
    )
    cors, tracing = CrossOrigin(config.cors), tracing_of_environment()
    listening = socket.socket(fileno=start.listening)
    address = listening.getsockname()[0]
    app = Server(
        engine,
        limits=limits,
        keys=config.keys,
        admin=engine,
        cors=cors,
        hosts=AllowedHosts(config.allowed_hosts, address=address, host=config.host),
        limiter=engine,
        tracing=tracing,
        studio=None if config.no_studio else StudioSources(),
    )
    tls = None if config.tls is None else Tls(Path(config.tls[0]), Path(config.tls[1]))
    tasks = [
        asyncio.ensure_future(engine.run()),
        asyncio.ensure_future(_end_with_supervisor(child)),
    ]
    try:
        await engine.began.wait()
        child.ready()
        await child.begin.wait()
        await serve_http(
            app, engine, listening, config.drain_seconds, tls, wait_for_close=child.wait_for_close
        )
    finally:
        for task in tasks:
            task.cancel()


async def _end_with_supervisor(child: Child) -> None:
    await child.orphaned.wait()
    signal.raise_signal(signal.SIGTERM)


if __name__ == "__main__":
    run_child(run)
