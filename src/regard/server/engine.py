"""The engine: one thread that owns the models of a device and answers jobs in continuous batches.

A waiting job is admitted into a running search as soon as a slot is free, and leaves it when it ends, is cancelled or
passes its deadline. Jobs of equal settings share a search; several searches take turns, step by step. The outputs of a
job do not depend on what runs beside it.
"""

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any

from regard.core.errors import DeadlineExceeded, EngineFailed, InvalidArgument, RegardError, ServerStopping
from regard.decoding.batch_plan import plan_requests
from regard.decoding.interfaces import Hypothesis
from regard.decoding.search import final
from regard.inference.phrases import without_other_spellings
from regard.inference.pipelines import SequencePipeline
from regard.inference.predictor import Predictor
from regard.server.jobs import Generation, Job, JobQueue, Result, Scoring, by_turn
from regard.server.searches import RunningJob, SearchGroup, plan

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EngineLimits:
    """The most that an engine holds at once.

    slots          requests of one search
    hypotheses     of all searches together
    queued_jobs    that wait
    queued_tokens  of the jobs that wait, about
    batch          classifications or scores computed together
    """

    slots: int = 64
    hypotheses: int = 512
    queued_jobs: int = 256
    queued_tokens: int = 65_536
    batch: int = 64


@dataclass(eq=False)
class ServedModel:
    """A model, and the searches that run with it. A model that was replaced is kept until they have ended."""

    name: str
    version: str
    predictor: Predictor
    groups: dict[Hashable, SearchGroup] = field(default_factory=dict)


class Engine:
    """Answers jobs with the models of one device, in a thread of its own. Its methods may be called in any thread."""

    def __init__(self, limits: EngineLimits = EngineLimits()) -> None:  # noqa: B008  frozen
        self.limits = limits
        self.queue = JobQueue(limits.queued_jobs, limits.queued_tokens)
        self.models: dict[str, ServedModel] = {}
        self._wake = threading.Condition()
        self._cancelled: deque[Job] = deque()
        self._jobs: dict[Job, tuple[ServedModel, SearchGroup, int] | None] = {}  # every job that has not ended
        self._replaced: list[ServedModel] = []
        self._clients: Counter[str] = Counter()  # running jobs of each client
        self._accepting = self._working = True
        self._thread = threading.Thread(target=self._run, name="regard engine", daemon=True)

    # ---- called in any thread ----

    def start(self) -> None:
        self._thread.start()

    def load(self, name: str, version: str, predictor: Predictor) -> None:
        """Serve a model. One of the same name is replaced: jobs that are running end with the old one."""
        predictor.model.eval()
        with self._wake:
            if name in self.models:
                self._replaced.append(self.models[name])
            self.models[name] = ServedModel(name, version, predictor)

    def submit(self, job: Job) -> None:
        """Queue a job. Refused with `Overloaded` where the queue is full, and while the engine stops."""
        with self._wake:
            if not self._accepting:
                raise ServerStopping
            if job.model not in self.models:
                known = ", ".join(self.models) or "none is loaded"
                raise InvalidArgument("model", wanted=f"one of {known}", got=repr(job.model), remedy="Choose one.")
            self.queue.add(job)
            self._jobs[job] = None
            self._wake.notify()

    def cancel(self, job: Job) -> None:
        """End a job without a result: its slot is free at the next step. Its `on_end` is not called any more."""
        with self._wake:
            if job in self._jobs:
                self._cancelled.append(job)
                self._wake.notify()

    @property
    def busy(self) -> int:
        """The number of jobs that have not ended."""
        return len(self._jobs)

    def stop(self, seconds: float = 0.0) -> bool:
        """Refuse new jobs, finish those that are queued or running within this time; whether all were finished."""
        with self._wake:
            self._accepting = False
            finished = self._wake.wait_for(lambda: not self._jobs, seconds)
            self._working = False
            self._wake.notify_all()
        if self._thread.is_alive():
            self._thread.join()
        for job in list(self._jobs):
            self._end(job, ServerStopping())
        return finished

    # ---- the engine's thread ----

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(self._has_work)
                if not self._working:
                    return
            self._drop_cancelled()
            self._drop_late()
            self._admit()
            for model in [*self._replaced, *self.models.values()]:
                for key, group in list(model.groups.items()):
                    self._step(model, key, group)
            self._replaced = [model for model in self._replaced if model.groups]

    def _has_work(self) -> bool:
        running = any(model.groups for model in (*self.models.values(), *self._replaced))
        return bool(not self._working or self.queue or self._cancelled or running)

    def _drop_cancelled(self) -> None:
        while self._cancelled:
            job = self._cancelled.popleft()
            if job in self._jobs:
                self._leave(job)
                self._forget(job)

    def _drop_late(self) -> None:
        now = time.monotonic()
        for job in [job for job in self._jobs.copy() if job.deadline is not None and now > job.deadline]:
            self._leave(job)
            self._end(job, DeadlineExceeded(now - job.submitted))

    def _leave(self, job: Job) -> None:
        """Take a job out of the queue or of its search."""
        with self._wake:
            self.queue.remove(job)
        place = self._jobs[job]
        if place is not None:
            model, group, number = place
            del group.running[number]
            group.search.cancel(number)
            self._clients[job.client] -= 1
            self._drop_empty(model)

    def _drop_empty(self, model: ServedModel) -> None:
        model.groups = {key: group for key, group in model.groups.items() if group.running}

    def _admit(self) -> None:
        """Move waiting jobs into searches with free slots; compute those that need no search."""
        batches: dict[tuple[ServedModel, type[Generation | Scoring]], list[Job]] = {}
        admitted: dict[int, tuple[ServedModel, SearchGroup, list[RunningJob]]] = {}  # by the id of the group
        with self._wake:
            waiting = list(self.queue)
        for job in by_turn(waiting, self._clients):
            model = self.models[job.model]
            if not isinstance(model.predictor.pipeline, SequencePipeline) or isinstance(job.work, Scoring):
                batch = batches.setdefault((model, type(job.work)), [])
                if len(batch) < self.limits.batch:
                    batch.append(job)
                continue
            self._admit_generation(model, job, admitted)
        for (model, kind), jobs in batches.items():
            for job in jobs:
                self._take(job)
            (self._score if kind is Scoring else self._classify)(model.predictor, jobs)
        for model, group, jobs_ in admitted.values():
            self._begin(model, group, jobs_)

    def _take(self, job: Job) -> None:
        with self._wake:
            self.queue.remove(job)

    def _admit_generation(
        self, model: ServedModel, job: Job, admitted: dict[int, tuple[ServedModel, SearchGroup, list[RunningJob]]]
    ) -> None:
        """Add a job to the search of its settings, unless that is full."""
        try:
            if job.plan is None or job.plan[0] is not model:  # not again at each step that the job waits
                job.plan = model, plan(model.predictor, job)
            running, task, key = job.plan[1]
        except RegardError as error:
            self._take(job)
            self._end(job, error)
            return
        group = model.groups.get(key)
        rows = task.config.num_hypotheses if task.config.sample else task.config.beam_size
        chosen = [] if group is None or id(group) not in admitted else admitted[id(group)][2]
        if self._hypotheses(admitted) + rows > self.limits.hypotheses and (self._hypotheses(admitted) or chosen):
            return
        if group is None:
            pipeline = model.predictor.pipeline
            assert isinstance(pipeline, SequencePipeline)
            group = model.groups[key] = SearchGroup.of(task, pipeline, running.planned, self.limits.slots)
        if len(chosen) >= group.search.free:
            return
        self._take(job)
        self._clients[job.client] += 1
        admitted.setdefault(id(group), (model, group, []))[2].append(running)

    def _hypotheses(self, admitted: dict[int, tuple[ServedModel, SearchGroup, list[RunningJob]]]) -> int:
        """Rows of all searches, with those that are about to be admitted."""
        models = (*self.models.values(), *self._replaced)
        rows = sum(len(group.running) * group.search.plan.beams for model in models for group in model.groups.values())
        return rows + sum(len(jobs) * group.search.plan.beams for _, group, jobs in admitted.values())

    def _begin(self, model: ServedModel, group: SearchGroup, jobs: list[RunningJob]) -> None:
        try:
            numbers = group.search.admit([each.planned for each in jobs])
        except Exception as error:  # whatever a model raises must not end the engine
            for each in jobs:
                self._clients[each.job.client] -= 1
                self._end(each.job, _told(error))
            self._drop_empty(model)
            return
        for number, each in zip(numbers, jobs, strict=True):
            group.running[number] = each
            self._jobs[each.job] = model, group, number

    def _step(self, model: ServedModel, key: Hashable, group: SearchGroup) -> None:
        """One more token of each job in a search."""
        if not group.running:
            return
        try:
            tokens, finished = group.search.advance()
        except Exception as error:  # whatever a model raises must not end the engine
            failed, group.running = list(group.running.values()), {}
            for each in failed:
                self._clients[each.job.client] -= 1
                self._end(each.job, _told(error))
            del model.groups[key]
            return
        ended = {number for number, _ in finished}
        for number, token in tokens.items():
            self._streamed(group, group.running[number], token, last=number in ended)
        for number, hypotheses in finished:
            each = group.running.pop(number)
            self._clients[each.job.client] -= 1
            self._finish(model, group, each, hypotheses)
        self._drop_empty(model)

    def _streamed(self, group: SearchGroup, each: RunningJob, token: int, *, last: bool) -> None:
        each.tokens += 1
        if each.text is None or each.tokens <= each.request.given:
            return
        ends = group.task.ends and token == group.task.special_tokens.end
        piece = "" if ends else each.text.add(token)
        piece += each.text.rest() if last else ""
        if piece and each.job.on_text is not None:
            each.job.on_text(piece)

    def _finish(self, model: ServedModel, group: SearchGroup, each: RunningJob, hypotheses: list[Hypothesis]) -> None:
        """End a job; search again where an output spells a banned phrase with other tokens."""
        try:
            hypotheses = final(group.task, each.request, hypotheses)
            again = without_other_spellings(group.pipeline.tokenizer, group.task, each.request, hypotheses)
            if again is not None:
                number = each.planned.number
                (planned,) = plan_requests(replace(group.task, numbers=[number]), [again])
                self._clients[each.job.client] += 1
                model.groups[each.job] = other = SearchGroup.of(group.task, group.pipeline, planned, slots=1)
                self._begin(model, other, [replace(each, request=again, planned=planned, tokens=0)])
                return
            assert isinstance(each.job.work, Generation)
            outputs = group.pipeline.finished(group.task, each.request, hypotheses, attention=each.job.work.attention)
        except Exception as error:  # whatever a model raises must not end the engine
            self._end(each.job, _told(error))
            return
        self._end(each.job, [replace(output, truncated=each.truncated) for output in outputs])

    def _classify(self, predictor: Predictor, jobs: list[Job]) -> None:
        """Labels, computed together where options are equal."""
        by_options: dict[Any, list[Job]] = {}
        for job in jobs:
            assert isinstance(job.work, Generation)
            key = tuple(sorted(job.work.options.items())), job.work.scores, job.work.truncate
            by_options.setdefault(key, []).append(job)
        for (options, scores, truncate), alike in by_options.items():

            def compute(
                batch: list[Job], options: Any = options, scores: bool = scores, truncate: bool = truncate
            ) -> list[Any]:
                inputs = [job.work.input for job in batch]
                return predictor.outputs(inputs, scores=scores, truncate=truncate, **dict(options))

            self._compute(alike, compute)

    def _score(self, predictor: Predictor, jobs: list[Job]) -> None:
        def compute(batch: list[Job]) -> list[Any]:
            targets = [job.work.target for job in batch if isinstance(job.work, Scoring)]
            given = None if None in targets else [target for target in targets if target is not None]
            return predictor.score([job.work.input for job in batch], given)

        with_target = [job for job in jobs if isinstance(job.work, Scoring) and job.work.target is not None]
        for alike in (with_target, [job for job in jobs if job not in with_target]):
            if alike:
                self._compute(alike, compute)

    def _compute(self, jobs: list[Job], compute: Callable[[list[Job]], list[Any]]) -> None:
        """End jobs with the results of one batch; where that is refused, with the result or the error of each alone."""
        try:
            results: list[Result] = compute(jobs)
        except Exception as error:  # whatever a model raises must not end the engine
            if len(jobs) > 1:
                for job in jobs:
                    self._compute([job], compute)
                return
            results = [_told(error)]
        for job, result in zip(jobs, results, strict=True):
            self._end(job, result)

    def _end(self, job: Job, result: Result) -> None:
        self._forget(job)
        self.queue.drain.ended()
        try:
            job.on_end(result)
        except Exception:  # a caller's fault must not end the engine
            log.exception("the receiver of a result failed")

    def _forget(self, job: Job) -> None:
        with self._wake:
            self._jobs.pop(job, None)
            if not self._jobs:
                self._wake.notify_all()


def check_servable(predictor: Predictor) -> None:
    """Refuse a model of images over HTTP: its inputs are names of files, which are never taken from a request."""
    if any(field.kind == "image" for field in predictor.recipe.data.source_fields):
        wanted, remedy = "a model that reads texts", "Use regard caption or regard predict."
        raise InvalidArgument("model", wanted=wanted, got="one that reads images", remedy=remedy)


def _told(error: Exception) -> Exception:
    """The error to tell: one that was raised on purpose as it is, others as a failure, with the traceback logged."""
    if isinstance(error, RegardError):
        return error
    log.error("a job failed", exc_info=error)
    return EngineFailed(error)
