"""Several engines as one: of several devices, each with replicas of models, or of one processor, which share models."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence

import torch
from msgspec.structs import astuple

from regard.core.errors import EngineCrashed, InvalidArgument, ServerStopping
from regard.inference.predictor import Predictor
from regard.server.engine import Engine
from regard.server.interfaces import EngineStats, ModelHost, ModelInfo
from regard.server.job_queue import check_room
from regard.server.jobs import Job


class ReplicaRouter(ModelHost):
    """Sends each job to the engine with the fewest jobs among those that hold a replica of its model.

    A model is replaced on all of its engines at once: the jobs of a request get one version, on whichever they run.

    engines    one for each device
    holders    for each model, the numbers of its engines
    together   of engines on one processor, which compute with the same replica: the jobs of each from which another one
               begins to work. While one of them prepares a step or makes answers of it, in Python, another computes;
               with few jobs, one with all threads is faster. None: engines on devices of their own
    """

    def __init__(
        self, engines: Sequence[Engine], holders: Mapping[str, Sequence[int]], together: int | None = None
    ) -> None:
        self.engines, self.together = tuple(engines), together
        for engine in self.engines if together is not None else ():
            engine.threads = self._threads
        self._holders = {name: [self.engines[number] for number in numbers] for name, numbers in holders.items()}
        self._lock = threading.Lock()  # no job is submitted while a model is replaced
        self._accepting = True

    def start(self) -> None:
        for engine in self.engines:
            engine.start()

    def when_crashed(self, receive: Callable[[EngineCrashed], None]) -> None:
        for engine in self.engines:
            engine.when_crashed(receive)

    def stuck(self) -> float:
        return max(engine.stuck() for engine in self.engines)

    def devices(self, name: str) -> Sequence[str]:
        devices = [engine.device for engine in self._holders[name]]
        return devices if self.together is None else devices[:1]

    def load(self, name: str, version: str, *replicas: Predictor) -> None:
        if len({id(each) for each in replicas}) < len(replicas):
            wanted, remedy = "a model that is loaded for each of its devices", "Give its path, or one device."
            raise InvalidArgument("models", wanted=wanted, got=f"{name!r} as one object", remedy=remedy)
        held = self._holders[name]
        with self._lock:
            for engine, predictor in zip(
                held, replicas if self.together is None else replicas * len(held), strict=True
            ):
                engine.load(name, version, predictor)

    @property
    def model_info(self) -> dict[str, ModelInfo]:
        return {name: info for name, held in self._holders.items() if (info := held[0].model_info.get(name))}

    @property
    def ready(self) -> bool:
        return self._accepting and all(engine.ready for engine in self.engines)

    def stats(self) -> EngineStats:
        each = [astuple(engine.stats()) for engine in self.engines]
        return EngineStats(*map(sum, zip(*each, strict=True)))

    def jobs_of(self, name: str) -> tuple[int, int]:
        current, old = zip(*(engine.jobs_of(name) for engine in self._holders[name]), strict=True)
        return sum(current), sum(old)

    def submit(self, *jobs: Job) -> None:
        with self._lock:
            if not self._accepting:
                raise ServerStopping
            loads = {engine: engine.busy for engine in self.engines}
            if self.together is not None:
                check_room([engine.queue for engine in self.engines], jobs)
            parts: dict[Engine, list[Job]] = {}
            for job in jobs:  # an engine refuses a model that it does not hold
                holders = self._holders.get(job.model, self.engines)
                # The first that has few jobs; the one with the fewest where none has.
                few = (each for each in holders if loads[each] < (self.together or 0))
                engine = next(few, None) or min(holders, key=loads.__getitem__)
                loads[engine] += 1
                parts.setdefault(engine, []).append(job)
            for engine, part in parts.items():
                engine.submit(*part)

    def _threads(self) -> int:
        """Of a step of an engine: all, or its share where others have jobs too."""
        busy = sum(bool(engine.busy) for engine in self.engines)
        return max(1, torch.get_num_threads() // max(1, busy))

    def cancel(self, job: Job) -> None:
        for engine in self._holders.get(job.model, ()):  # one that does not have the job does nothing
            engine.cancel(job)

    def stop(self, seconds: float = 0.0) -> bool:
        with self._lock:
            self._accepting = False
        end = time.monotonic() + seconds
        finished = [engine.stop(max(0.0, end - time.monotonic())) for engine in self.engines]  # none is left out
        return all(finished)
