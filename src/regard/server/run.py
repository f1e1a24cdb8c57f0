"""`regard.serve`: models behind HTTP, until a signal ends it."""

import asyncio
import logging
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from regard.core.errors import InvalidArgument, MissingExtra
from regard.inference.load import load
from regard.inference.predictor import Predictor

if TYPE_CHECKING:
    from regard.server.engine import Engine

log = logging.getLogger(__name__)


def serve(
    models: str | Path | Mapping[str, str | Path | Predictor],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    device: str = "auto",
    keys: Sequence[str] = (),
    slots: int = 64,
    queue: int = 256,
    max_body: int = 1 << 20,
    max_inputs: int = 256,
    drain_seconds: float = 30.0,
) -> None:
    """Serve models over HTTP until SIGTERM or SIGINT: then no request is taken any more, and those in flight end first.

    models          a run or checkpoint, or several by name
    keys            API keys, one of which each request must name; none: whoever reaches the server may use it
    slots           requests that are decoded together, with equal settings
    queue           requests that wait at most; more are refused with status 429
    max_body        bytes of a request
    max_inputs      inputs of a request
    drain_seconds   in which requests in flight must end after a signal
    """
    try:
        import uvicorn  # noqa: F401

        from regard.server.app import Server
        from regard.server.engine import Engine, EngineLimits, check_servable
        from regard.server.exchange import HttpLimits
    except ImportError as error:
        raise MissingExtra(error.name or "uvicorn", "serve", "Serving models") from None
    named = models if isinstance(models, Mapping) else {Path(models).resolve().name: models}
    if not named:
        raise InvalidArgument("models", wanted="at least one", got="none", remedy="Give a run.")
    listening = _listen(host, port)
    engine = Engine(EngineLimits(slots=slots, queued_jobs=queue, queued_tokens=256 * queue))
    for name, path in named.items():
        predictor = load(path, device=device)
        check_servable(predictor)
        _warm_up(predictor)
        engine.load(name, _version(predictor), predictor)
    engine.start()
    app = Server(engine, limits=HttpLimits(max_body, max_inputs), keys=keys)
    address, chosen = listening.getsockname()[:2]
    shown = f"[{address}]" if ":" in address else address
    log.info("serving %s on http://%s:%d", ", ".join(named), shown, chosen)
    asyncio.run(_serve(app, engine, listening, drain_seconds))


async def _serve(app: Any, engine: "Engine", listening: socket.socket, drain_seconds: float) -> None:
    import uvicorn

    server = uvicorn.Server(server_config(app))
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def end(number: int, frame: FrameType | None) -> None:
        """The first signal drains, a second one ends at once."""
        if stop.is_set():
            server.should_exit = server.force_exit = True
        log.info("%s: finishing the requests in flight", signal.Signals(number).name)
        loop.call_soon_threadsafe(stop.set)

    server.handle_exit = end  # type: ignore[assignment, method-assign]

    async def drain() -> None:
        await stop.wait()
        app.ready = False  # the socket stays open: new requests are refused with status 503
        finished = await asyncio.to_thread(engine.stop, drain_seconds)
        while app.open and not server.force_exit:
            await asyncio.sleep(0.01)
        if not finished:
            log.warning("requests were ended after %g s without an answer", drain_seconds)
        server.should_exit = True

    draining = asyncio.ensure_future(drain())
    try:
        await server.serve(sockets=[listening])
    finally:
        draining.cancel()
        await asyncio.to_thread(engine.stop)


def server_config(app: Any) -> Any:
    """The settings of uvicorn: our time-outs and log, and no address of a client taken from its headers."""
    import uvicorn

    from regard.server.protocol import TimedProtocol

    return uvicorn.Config(
        app, http=TimedProtocol, ws="none", log_config=None, access_log=False, server_header=False, proxy_headers=False
    )


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, OverflowError) as error:
        wanted, remedy = "an address and a port that are free", "Choose others: --host, --port."
        raise InvalidArgument("port", wanted=wanted, got=f"{host}:{port}: {error}", remedy=remedy) from None


def _version(predictor: Predictor) -> str:
    """The name of the checkpoint's folder."""
    return "" if predictor.folder is None else predictor.folder.name


def _warm_up(predictor: Predictor) -> None:
    """Answer one request, so that the engine is compiled and the weights are in memory before the first user asks."""
    if len(predictor.sources) < 2:
        predictor.predict(["a"], **({} if predictor.model.as_classifier() is not None else {"max_length": 2}))
