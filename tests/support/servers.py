"""A server in a thread of this process, asked over real sockets by http.client."""

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from regard.inference.predictor import Predictor
from regard.serving.http.app import Server
from regard.serving.http.keys import read_keys
from regard.serving.http.listener import HttpServer
from regard.serving.http.server import server_config
from regard.serving.http.tls import Tls
from regard.serving.scheduler.model_loader import ModelLoader
from regard.serving.scheduler.scheduler import Scheduler, SchedulerLimits
from support.predictors import replace_step

PATIENCE = 60.0


class Running:
    """A server that listens."""

    def __init__(self, app: Server, engine: Scheduler, port: int) -> None:
        self.app, self.engine, self.port = app, engine, port
        self.last_id = ""

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)

    def ask(self, path: str, body: object = None, **headers: str) -> tuple[int, dict, dict]:
        """Status, headers and JSON of an answer; a body makes it a POST."""
        connection = self.connect()
        given = body if isinstance(body, bytes) else None if body is None else json.dumps(body)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None:
            named.setdefault("content-type", "application/json")
        connection.request("GET" if body is None else "POST", path, given, named)
        answer = connection.getresponse()
        content = answer.read()
        self.last_id = answer.headers["x-request-id"]
        connection.close()
        kind = answer.headers["content-type"]
        return (
            answer.status,
            dict(answer.headers),
            json.loads(content)
            if "json" in kind and "ndjson" not in kind
            else {"text": content.decode()},
        )


@contextmanager
def served(
    models: dict,
    engine_limits: SchedulerLimits | None = None,
    *,
    keys: Sequence[str] = (),
    tls: Tls | None = None,
    protocol: type | None = None,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
    **options,
) -> Iterator[Running]:
    """A server of models, each a predictor (version "7") or a path."""
    engine = Scheduler(engine_limits or SchedulerLimits())
    loader = ModelLoader(engine, models)
    for name, model in models.items():
        if isinstance(model, Predictor):
            engine.load(name, "7", model)
        else:
            loader.load(name)
    engine.start()
    app = Server(engine, keys=read_keys(keys), admin=loader, **options)
    listening = socket.create_server(("127.0.0.1", 0))
    server = HttpServer(server_config(app, tls, protocol))

    def serve() -> None:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(server.serve(sockets=[listening]))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield Running(app, engine, listening.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        engine.stop(PATIENCE)


def slowed(monkeypatch, model) -> tuple[threading.Semaphore, threading.Event]:
    """Every step of the model waits for the semaphore; the event says that one does."""
    decoder = model.model.decoder
    gate, waits, step = threading.Semaphore(0), threading.Event(), type(decoder).step

    def slow(*given):
        waits.set()
        assert gate.acquire(timeout=PATIENCE)
        return step(*given)

    replace_step(monkeypatch, decoder, slow)
    return gate, waits


@contextmanager
def released_late(
    gate: threading.Semaphore, waits: threading.Event, seconds: float, steps: int = 100_000
) -> Iterator[None]:
    """Release steps of a slowed model so long after one of them has begun to wait: after a deadline of less."""
    waits.clear()

    def release() -> None:
        waits.wait()
        time.sleep(seconds)
        gate.release(steps)

    releasing = threading.Thread(target=release)
    releasing.start()
    try:
        yield
    finally:
        # Where no step has begun, because the deadline was over before.
        waits.set()
        releasing.join()


def until(condition) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)
