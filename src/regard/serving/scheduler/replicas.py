"""Several schedulers as one: models on several devices, and jobs to the replica that has the fewest."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import astuple

from regard.core.errors import EngineCrashed, InvalidArgument, ServerStopping
from regard.inference.predictor import Predictor
from regard.serving.scheduler.interfaces import ModelHost, ModelInfo, SchedulerStats
from regard.serving.scheduler.jobs import Job
from regard.serving.scheduler.scheduler import Scheduler


class ReplicaRouter(ModelHost):
    """Sends each job to the scheduler with the fewest jobs among those that hold a replica of its model.

    A model is replaced on all of its schedulers at once: the jobs of a request get one version, on whichever they run.

    engines    one for each device
    holders    for each model, the numbers of its schedulers
    """

    def __init__(self, engines: Sequence[Scheduler], holders: Mapping[str, Sequence[int]]) -> None:
        self.engines = tuple(engines)
        self._holders = {
            name: [self.engines[number] for number in numbers] for name, numbers in holders.items()
        }
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
        return [engine.device for engine in self._holders[name]]

    def load(self, name: str, version: str, *replicas: Predictor) -> None:
        if len({id(each) for each in replicas}) < len(replicas):
            wanted, remedy = (
                "a model that is loaded for each of its devices",
                "Give its path, or one device.",
            )
            raise InvalidArgument(
                "models", wanted=wanted, got=f"{name!r} as one object", remedy=remedy
            )
        with self._lock:
            for engine, predictor in zip(self._holders[name], replicas, strict=True):
                engine.load(name, version, predictor)

    @property
    def model_info(self) -> dict[str, ModelInfo]:
        return {
            name: info
            for name, held in self._holders.items()
            if (info := held[0].model_info.get(name))
        }

    @property
    def ready(self) -> bool:
        return self._accepting and all(engine.ready for engine in self.engines)

    def stats(self) -> SchedulerStats:
        each = [astuple(engine.stats()) for engine in self.engines]
        return SchedulerStats(*map(sum, zip(*each, strict=True)))

    def jobs_of(self, name: str) -> tuple[int, int]:
        current, old = zip(*(engine.jobs_of(name) for engine in self._holders[name]), strict=True)
        return sum(current), sum(old)

    def submit(self, *jobs: Job) -> None:
        with self._lock:
            if not self._accepting:
                raise ServerStopping
            loads = {engine: engine.busy for engine in self.engines}
            parts: dict[Scheduler, list[Job]] = {}
            for job in jobs:  # a scheduler refuses a model that it does not hold
                engine = min(self._holders.get(job.model, self.engines), key=loads.__getitem__)
                loads[engine] += 1
                parts.setdefault(engine, []).append(job)
            for engine, part in parts.items():
                engine.submit(*part)

    def cancel(self, job: Job) -> None:
        for engine in self._holders.get(
            job.model, ()
        ):  # one that does not have the job does nothing
            engine.cancel(job)

    @property
    def ended(self) -> bool:
        return all(engine.ended for engine in self.engines)

    def stop(self, seconds: float = 0.0) -> bool:
        with self._lock:
            self._accepting = False
        end = time.monotonic() + seconds
        finished = [
            engine.stop(max(0.0, end - time.monotonic())) for engine in self.engines
        ]  # none is left out
        return all(finished)
