"""A deployment of Ray Serve (https://docs.ray.io): replicas, each with a scheduler and the HTTP API of `regard serve`.

    from ray import serve
    from regard.serving.ray import deployment

    serve.run(deployment({"en-de": "/shared/runs/en-de"}, replicas=4, actor={"num_gpus": 1}))

A replica batches continuously what reaches it. Ray sends each request to one replica, and starts and ends replicas.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from starlette.types import Receive, Scope, Send

from regard.core.errors import EngineCrashed, InvalidArgument, MissingExtra
from regard.serving.http.app import Server
from regard.serving.http.cors import CrossOrigin
from regard.serving.http.keys import ApiKey, read_key_file, read_keys
from regard.serving.http.service import HttpLimits
from regard.serving.http.tracing import tracing_of_environment
from regard.serving.run import check_names
from regard.serving.scheduler.interfaces import ModelHost
from regard.serving.scheduler.model_loader import ModelLoader
from regard.serving.scheduler.placement import Placement
from regard.serving.scheduler.scheduler import SchedulerLimits
from regard.serving.scheduler.search_limits import OptionCaps

log = logging.getLogger(__name__)
ANSWER_SECONDS = 1.0  # for the answers to requests that a crash has ended


def deployment(
    models: str | Path | Mapping[str, str | Path],
    *,
    name: str = "regard",
    replicas: int | None = None,
    autoscaling: Mapping[str, Any] | None = None,
    actor: Mapping[str, Any] | None = None,
    device: str | Sequence[str] | Mapping[str, str | Sequence[str]] = "auto",
    keys: Path | Sequence[str] = (),
    slots: int = 64,
    queue: int = 256,
    max_body: int = 1 << 20,
    max_inputs: int = 256,
    max_length: int = 4096,
    max_beams: int = 128,
    search_memory: int | None = None,
    drain_seconds: float = 30.0,
    cors: Sequence[str] = (),
) -> Any:
    """An application for `ray.serve.run`: models behind HTTP, on any number of replicas.

    models          a run or checkpoint, or several by name, at paths that every node can read
    replicas        how many; 1 by default
    autoscaling     Ray's `autoscaling_config` instead: {"min_replicas": 1, "max_replicas": 8}; by default Ray wants two
                    requests in flight on a replica: set "target_ongoing_requests" to about its slots
    actor           Ray's `ray_actor_options` of a replica: {"num_cpus": 4, "num_gpus": 1}
    drain_seconds   in which the requests of a replica that Ray ends must end

    Other arguments are those of `regard.serve`, for each replica: so the limits of keys and of the queue are.
    """
    if replicas is not None and autoscaling is not None:
        wanted, remedy = "replicas or autoscaling", "Leave one out."
        raise InvalidArgument("replicas", wanted=wanted, got="both", remedy=remedy)
    named = models if isinstance(models, Mapping) else {Path(models).resolve().name: models}
    if not named:
        raise InvalidArgument("models", wanted="at least one", got="none", remedy="Give a run.")
    check_names(named)
    try:
        from ray import serve
    except ImportError as error:
        raise MissingExtra(error.name or "ray", "ray", "Serving with Ray") from None
    app = ReplicaApplication(
        {each: str(path) for each, path in named.items()},
        device,
        read_key_file(keys) if isinstance(keys, Path) else read_keys(keys),
        SchedulerLimits(
            slots=slots,
            queued_jobs=queue,
            queued_tokens=256 * queue,
            caps=OptionCaps(max_length, max_beams),
            search_memory=search_memory,
        ),
        HttpLimits(max_body, max_inputs),
        list(CrossOrigin(cors).origins),
    )
    scaling = (
        {"num_replicas": replicas or 1}
        if autoscaling is None
        else {"autoscaling_config": dict(autoscaling)}
    )
    deployed: Any = serve.deployment(  # its types tell of a decorator only
        serve.ingress(app)(Replica),
        name=name,
        ray_actor_options=dict(actor or {}),
        max_ongoing_requests=2
        * (slots + queue),  # more than the scheduler takes: it refuses, with the time to wait
        graceful_shutdown_timeout_s=drain_seconds,
        **scaling,
    )
    return deployed.bind()


class Replica:
    """What Ray starts; `ReplicaApplication` does the work."""


class ReplicaApplication:
    """The HTTP API as an ASGI application that loads its models when it is started, in the process of a replica."""

    def __init__(
        self,
        models: Mapping[str, str],
        device: str | Sequence[str] | Mapping[str, str | Sequence[str]],
        keys: Sequence[ApiKey],
        engine_limits: SchedulerLimits,
        limits: HttpLimits,
        cors: Sequence[str],
    ) -> None:
        self.models, self.device, self.keys, self.cors = models, device, keys, cors
        self.engine_limits, self.limits = engine_limits, limits
        self.engine: ModelHost | None = None
        self.server: Server | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif self.server is not None:
            await self.server(_without_prefix(scope), receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await asyncio.to_thread(self._load)
        except Exception as error:
            log.exception("the models of a replica were not loaded")
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        assert self.engine is not None
        await asyncio.to_thread(self.engine.stop)  # Ray has waited for the requests
        await send({"type": "lifespan.shutdown.complete"})

    def _load(self) -> None:
        self.engine = Placement.of(self.models, self.device).engine(self.engine_limits)
        ModelLoader(self.engine, self.models).load_all()
        self.engine.start()
        self.engine.when_crashed(_end_process)
        # Without administration: a request to load a model anew would reach one replica of many.
        self.server = Server(
            self.engine,
            limits=self.limits,
            keys=self.keys,
            cors=CrossOrigin(self.cors),
            tracing=tracing_of_environment(),
        )


def _end_process(error: EngineCrashed) -> None:
    """End the process of a replica whose scheduler has crashed, when its requests are answered: Ray starts another."""
    threading.Timer(ANSWER_SECONDS, os._exit, [1]).start()


def _without_prefix(scope: Scope) -> Scope:
    """The path of a request below the prefix at which Ray serves the application."""
    prefix = scope.get("root_path", "")
    if prefix and scope["path"].startswith(prefix):
        return {**scope, "path": scope["path"][len(prefix) :] or "/"}
    return scope
