"""What the HTTP side needs of a scheduler, which may run in this process, on several devices, or in another process."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from regard.data.fields.base import FIELDS, Field, Ranges, make_field

if TYPE_CHECKING:
    from regard.core.errors import EngineCrashed
    from regard.inference.predictor import Predictor
    from regard.serving.scheduler.jobs import Job


class ModelInfo(Struct, frozen=True):
    """A model as clients know it. Routes see this and never the model, which may be in another process.

    version   the folder of its checkpoint
    reads     the kind of each of its sources: "text", "image" or "label"; none for a language model
    labels    of a classifier, in the order of their ids; none for a model that generates
    generates whether it generates sequences; a classifier does not, nor a masked language model
    settings  for each source, the keys of its field as JSON
    sizes     for each source, the size of what was learned of it: numbers of a vector; None where nothing was
    ranges    for each source of vectors, the usual least and largest value of each number; None for others
    examples  inputs to begin with, a text or an image (as a data: URL) for each source; of synthetic data only
    gives     what it gives, for messages: "labels", "numbers"
    """

    name: str
    version: str
    reads: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    generates: bool = True
    settings: tuple[str, ...] = ()
    sizes: tuple[int | None, ...] = ()
    ranges: tuple[Ranges | None, ...] = ()
    examples: tuple[tuple[str, ...], ...] = ()
    gives: str = "text"

    @property
    def takes_files(self) -> bool:
        """Whether a source is given as the content of a file, or as an array, and not as a text."""
        return any(FIELDS[kind].content_key is not None for kind in self.reads)

    @property
    def fields(self) -> list[Field]:
        """The field of each source."""
        return [_field(settings) for settings in self.settings]


@lru_cache(maxsize=256)
def _field(settings: str) -> Field:
    return make_field(**json.loads(settings))


class SchedulerStats(Struct, frozen=True):
    """What a scheduler holds now.

    queued_jobs     that wait for a slot
    queued_tokens   theirs, about
    jobs            that wait or run
    searches        that run, each with jobs of equal settings
    """

    queued_jobs: int = 0
    queued_tokens: int = 0
    jobs: int = 0
    searches: int = 0

    @property
    def running_jobs(self) -> int:
        """Jobs in slots."""
        return max(0, self.jobs - self.queued_jobs)


class BaseScheduler(ABC):
    """Answers jobs with models. Its methods may be called in any thread, unless they say otherwise."""

    @property
    @abstractmethod
    def model_info(self) -> Mapping[str, ModelInfo]:
        """The models that are loaded, by name."""

    @property
    @abstractmethod
    def ready(self) -> bool:
        """Whether it takes jobs: its models are loaded, it does not stop, and it answers those that it has."""

    @abstractmethod
    def stats(self) -> SchedulerStats: ...

    @abstractmethod
    def submit(self, *jobs: "Job") -> None:
        """Queue jobs; those of one model get the same version of it.

        Where one is refused (`Overloaded`, `ServerStopping`), that is raised here or ends the job: the others must be
        cancelled then. The scheduler fills in the usage of a job: its version before the first text, all at the end.
        """

    @abstractmethod
    def cancel(self, job: "Job") -> None:
        """End a job without a result; one that has ended stays as it is. Its `on_end` is not called any more."""

    def when_crashed(self, receive: Callable[["EngineCrashed"], None]) -> None:  # noqa: B027  none in this process
        """Call a receiver, in any thread, where a fault of its own ends the scheduler: the process must end then.

        Its jobs have ended with the same error. A scheduler in another process is started again by its supervisor.
        """

    @abstractmethod
    def stop(self, seconds: float = 0.0) -> bool:
        """Refuse new jobs, finish those that are queued or running within this time; whether all were finished.

        The others end with `ServerStopping`, and soon after that it returns, also where one is still computed.
        """

    @property
    def ended(self) -> bool:
        """Whether nothing is computed in this process any more, after `stop`."""
        return True


class ModelHost(BaseScheduler):
    """A scheduler whose models are in this process, each on one device or on several."""

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def stuck(self) -> float:
        """For how many seconds it has done nothing although it has jobs."""

    @abstractmethod
    def devices(self, name: str) -> Sequence[str]:
        """Those that a model is to be loaded on."""

    @abstractmethod
    def load(self, name: str, version: str, *replicas: "Predictor") -> None:
        """Serve a model, given once for each of its devices. One of the same name is replaced.

        Jobs that were submitted before end with the old one.
        """

    @abstractmethod
    def jobs_of(self, name: str) -> tuple[int, int]:
        """How many jobs have not ended: those of the version that is served, and those of versions before it."""


class ModelState(Struct, frozen=True):
    """A model as its operator sees it.

    state      "ready", or "loading" while it is loaded anew beside the one that is served
    jobs       that wait or run, with the version that is served
    old_jobs   that end with versions that were replaced
    reloads    that succeeded
    failures   reloads that failed
    error      of the last reload, where it failed: the version before it is served
    """

    name: str
    version: str
    state: Literal["ready", "loading"]
    jobs: int
    old_jobs: int
    reloads: int
    failures: int
    error: str | None


class ModelAdmin(ABC):
    """What operators ask of the models of a scheduler. Called in an event loop, which it does not block."""

    @abstractmethod
    async def reload(self, name: str) -> ModelState:
        """Load a model anew, from the path that the operator gave, and replace it; the one that is served otherwise."""

    @abstractmethod
    async def states(self) -> list[ModelState]: ...
