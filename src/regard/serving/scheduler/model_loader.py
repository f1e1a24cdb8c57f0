"""The models of a scheduler: loaded from the paths that the operator gave, and again while they serve."""

import asyncio
import gc
import logging
import threading
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Literal

from regard.checkpoint.format import find_checkpoint
from regard.core.errors import CheckpointUnreadable, EngineFailed, RegardError
from regard.inference.load import current_device, load
from regard.inference.predictor import Predictor
from regard.serving.http.errors import RequestRefused
from regard.serving.scheduler.interfaces import ModelAdmin, ModelHost, ModelState
from regard.tasks.inputs import InputValue

log = logging.getLogger(__name__)


class ModelLoader(ModelAdmin):
    """Loads models into a scheduler. Paths are those given here: none is ever taken from a request.

    models   runs or checkpoints by name; a run means its averaged or best checkpoint at the time it is loaded
    """

    def __init__(self, engine: ModelHost, models: Mapping[str, str | Path | Predictor]) -> None:
        self.engine, self.models = engine, models
        self.reloads = dict.fromkeys(models, 0)
        self.failures = dict.fromkeys(models, 0)
        self.errors: dict[str, str] = {}
        self._loading: set[str] = set()
        self._lock = threading.Lock()

    def load(self, name: str) -> None:
        """Load a model on all of its devices, answer one request on each, and serve it from now on."""
        given = self.models[name]
        # Found once, so that all replicas have one version, whatever a run saves or a link points to meanwhile.
        found = given if isinstance(given, Predictor) else find_checkpoint(Path(given)).resolve()
        replicas = [self._replica(found, device) for device in self.engine.devices(name)]
        self.engine.load(name, version_of(replicas[0]), *replicas)

    def _replica(self, found: Path | Predictor, device: str) -> Predictor:
        with current_device(device):
            predictor = load(found, device=device)
            _warm_up(predictor)
        return predictor

    def load_all(self) -> None:
        """Load every model."""
        gc.freeze()  # of what lives as long as the process, PyTorch above all: collections need not visit it
        for name in self.models:
            self.load(name)

    def load_anew(self, name: str) -> None:
        """Load a model anew and replace it. Where that fails, the error is raised and the old version is served on.

        Called in any thread but the scheduler's, which goes on answering: both versions are in memory until the
        jobs of the old one have ended.
        """
        if name not in self.models:
            message = f"name: wanted one of {', '.join(self.models)}; got {name!r}. Choose one."
            raise RequestRefused(HTTPStatus.NOT_FOUND, message)
        if isinstance(self.models[name], Predictor):
            message = f"name: wanted a model that was given as a path; got {name!r}, given as an object. Restart."
            raise RequestRefused(HTTPStatus.CONFLICT, message)
        with self._lock:
            if name in self._loading:
                message = f"name: wanted a model that is not being loaded; got {name!r}, which is. Wait for it."
                raise RequestRefused(HTTPStatus.CONFLICT, message)
            self._loading.add(name)
        before = self.engine.model_info[name].version
        try:
            self.load(name)
        except (
            Exception
        ) as error:  # a damaged checkpoint, no memory: the model that serves must go on
            self.errors[name] = str(error) or type(error).__name__
            self.failures[name] += 1
            trace = None if isinstance(error, RegardError) else error
            log.error(
                "model %s: not reloaded, %r is served on: %s", name, before, error, exc_info=trace
            )
            if isinstance(error, RegardError | OSError):
                # Not the client's mistake: the path is that of the operator.
                raise CheckpointUnreadable(name, before, error) from error
            raise EngineFailed(error) from error
        else:
            self.errors.pop(name, None)
            self.reloads[name] += 1
            log.info(
                "model %s: %r replaced by %r", name, before, self.engine.model_info[name].version
            )
        finally:
            self._loading.discard(name)

    def load_all_anew(self) -> None:
        """Load every model anew that was given as a path, one after the other."""
        for name, path in self.models.items():
            if isinstance(path, Predictor):
                continue
            with suppress(RegardError):  # which is logged, or it is being loaded already
                self.load_anew(name)

    def state(self, name: str) -> ModelState:
        version, (jobs, old) = self.engine.model_info[name].version, self.engine.jobs_of(name)
        error, reloads, failures = self.errors.get(name), self.reloads[name], self.failures[name]
        state: Literal["ready", "loading"] = "loading" if name in self._loading else "ready"
        return ModelState(name, version, state, jobs, old, reloads, failures, error)

    async def reload(self, name: str) -> ModelState:
        await asyncio.to_thread(self.load_anew, name)
        return self.state(name)

    async def states(self) -> list[ModelState]:
        return [self.state(name) for name in self.models]


def version_of(predictor: Predictor) -> str:
    """The name of the checkpoint's folder, which a link may point to."""
    return "" if predictor.folder is None else predictor.folder.resolve().name


def _warm_up(predictor: Predictor) -> None:
    """Answer one request, so that the engine is compiled and the weights are in memory before the first user asks."""
    task = predictor.task
    if task.reads_target:
        # It gives no outputs.
        return
    sources = [
        field.example(vocabulary)
        for vocabulary, field in zip(
            predictor.sources, predictor.recipe.data.source_fields, strict=False
        )
    ]
    given: InputValue = "a"
    if len(sources) > 1:
        given = tuple(sources)
    elif sources:
        given = sources[0]
    predictor.predict([given], **({"max_length": 2} if task.searches else {}))
