"""The scheduler: one thread that owns the models of a device and answers jobs in continuous batches.

A waiting job is admitted into a running search as soon as a slot is free, and leaves it when it ends, is cancelled or
passes its deadline. Jobs of equal settings share a search; several searches take turns, step by step. The outputs of a
job do not depend on what runs beside it.
"""

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from typing import Any

from regard.core.errors import DeadlineExceeded, EngineCrashed, InvalidArgument, ServerStopping
from regard.core.interruption import Interrupted, interruptible
from regard.core.memory import release_free_memory
from regard.generation.choose.interfaces import Hypothesis
from regard.generation.phrases import without_other_spellings
from regard.generation.request import plan_requests
from regard.generation.search import final
from regard.inference.load import current_device
from regard.inference.predictor import Predictor
from regard.serving.scheduler.background import BackgroundThreads, check_wanted
from regard.serving.scheduler.direct_batches import Computed, compute, told
from regard.serving.scheduler.interfaces import ModelHost, ModelInfo, SchedulerStats
from regard.serving.scheduler.job_queue import (
    Admissions,
    JobQueue,
    Lanes,
    SearchBudget,
    counted_rows,
    is_wide,
)
from regard.serving.scheduler.jobs import Job, Result
from regard.serving.scheduler.search_limits import (
    DEFAULT_CAPS,
    OptionCaps,
    reserved_search_bytes,
    search_bytes,
    small_search_bytes,
)
from regard.serving.scheduler.search_rounds import SearchRounds
from regard.serving.scheduler.searches import Round, RunningJob, SearchGroup
from regard.serving.scheduler.served_model import JobPlan, ServedModel, plan_jobs

log = logging.getLogger(__name__)
Finished = tuple[
    SearchGroup, RunningJob, list[Hypothesis]
]  # a job that has left its search, with its outputs
MOST_ARRIVALS = 128  # jobs that are planned between two steps
LARGE_SEARCHES = 32 << 20  # bytes that are given back when searches have ended
DEADLINE_SECONDS = 0.01  # between two checks of all deadlines
UNREADY_SECONDS = (
    3.0  # without a sign of the scheduler's thread, after which other servers should be asked
)
END_SECONDS = 1.0  # for the scheduler's thread to end, when nothing is wanted of it any more
ASIDE_SECONDS = 0.05  # between two checks of deadlines while nothing but a work aside is computed


@dataclass(frozen=True)
class SchedulerLimits:
    """The most that a scheduler holds at once.

    slots          requests of one search
    hypotheses     of all searches together
    queued_jobs    that wait
    queued_tokens  of the jobs that wait, about
    batch          classifications or scores computed together
    caps           of the options of requests
    search_memory  MiB that all searches take together; None: 512 on a CPU, half of what is free on a GPU
    searches       of equal settings that are computed at once; None: as many as PyTorch has threads on a CPU, of at
                   least 16 slots each
    """

    slots: int = 64
    hypotheses: int = 512
    queued_jobs: int = 256
    queued_tokens: int = 65_536
    batch: int = 64
    searches: int | None = None
    caps: OptionCaps = DEFAULT_CAPS
    search_memory: int | None = None


class Scheduler(ModelHost):
    """Answers jobs with the models of one device, in a thread of its own."""

    def __init__(self, limits: SchedulerLimits = SchedulerLimits(), device: str = "auto") -> None:  # noqa: B008  frozen
        self.limits, self.device = limits, device
        self.queue = JobQueue(limits.queued_jobs, limits.queued_tokens)
        self.models: dict[str, ServedModel] = {}
        self._wake = threading.Condition()
        self._arrived: deque[Job] = deque()  # jobs that are not sorted into lanes
        self._lanes = Lanes(self.queue)
        self._cancelled: deque[Job] = deque()
        self._jobs: dict[
            Job, tuple[ServedModel, SearchGroup, RunningJob] | None
        ] = {}  # every job that has not ended
        self._timed: set[Job] = set()  # those of them that have a deadline
        self._replaced: list[ServedModel] = []
        self._clients: Counter[str] = Counter()  # running jobs of each client
        self._memory: int | None = None  # bytes that all searches may take together
        self._most_taken = 0  # by searches, since freed memory was last given back
        self._next: Job | None = (
            None  # which has waited long for memory: no other search begins before it
        )
        self._blocked = False  # whether all jobs that wait do so for what is computed aside
        self._aside = BackgroundThreads(device, self._wake)
        self._rounds = SearchRounds(device, limits.slots, self._wake, limits.searches)
        self._accepting = self._working = True
        self._crash: EngineCrashed | None = None  # by which the scheduler's thread has ended
        self._crash_receivers: list[Callable[[EngineCrashed], None]] = []
        self._alive = self._checked = (
            0.0  # when the scheduler's thread was seen, and deadlines were checked
        )
        self._thread = threading.Thread(target=self._work, name="regard engine", daemon=True)

    # ---- called in any thread ----

    def start(self) -> None:
        self._thread.start()

    def stuck(self) -> float:
        return time.monotonic() - self._alive if self._jobs else 0.0

    def when_crashed(self, receive: Callable[[EngineCrashed], None]) -> None:
        with self._wake:
            self._crash_receivers.append(receive)
        if self._crash is not None:
            receive(self._crash)

    def devices(self, name: str) -> Sequence[str]:
        return (self.device,)

    def load(self, name: str, version: str, *replicas: Predictor) -> None:
        (predictor,) = replicas
        predictor.model.eval()
        # Read when a model is there: on a GPU, the budget is a share of what is free.
        if self._memory is None:
            self._memory = search_bytes(self.device, self.limits.search_memory)
        # Nothing trains a model that is served.
        constant = replace(predictor, constant_weights=True)
        served = ServedModel(name, version, constant, self.limits.caps, self._memory)
        with self._wake:
            if name in self.models and self.models[name].jobs:
                self._replaced.append(self.models[name])
            self.models[name] = served

    @property
    def model_info(self) -> dict[str, ModelInfo]:
        return {name: model.info for name, model in self.models.copy().items()}

    @property
    def ready(self) -> bool:
        return self._accepting and bool(self.models) and self.stuck() < UNREADY_SECONDS

    @property
    def computing(self) -> bool:
        """Whether anything is computed now, also for a job that has ended without its result."""
        return bool(self._aside.begun) or self._rounds.active

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def stats(self) -> SchedulerStats:
        with self._wake:
            searches = sum(len(model.groups) for model in self._all_models())
            return SchedulerStats(len(self.queue), self.queue.tokens, self.busy, searches)

    def submit(self, *jobs: Job) -> None:
        with self._wake:
            if not self._accepting:
                raise self._crash or ServerStopping
            self._alive = self._alive if self._jobs else time.monotonic()
            for job in jobs:
                if job.model not in self.models:
                    known = ", ".join(self.models) or "none is loaded"
                    raise InvalidArgument(
                        "model", wanted=f"one of {known}", got=repr(job.model), remedy="Choose one."
                    )
                self.queue.add(job)
                if not self._jobs:
                    self.queue.drain.begin()
                job.served = model = self.models[job.model]
                job.usage.version = model.version
                model.jobs += 1
                self._jobs[job] = None
                if job.deadline is not None:
                    self._timed.add(job)
                self._arrived.append(job)
            self._rounds.interrupt_small()
            self._wake.notify()

    def cancel(self, job: Job) -> None:
        """Its slot is free at the next step."""
        with self._wake:
            job.abandoned = True
            if job in self._jobs:
                place = self._jobs[job]
                if place is not None:
                    place[1].search.interrupt.set()
                self._cancelled.append(job)
                self._wake.notify()

    @property
    def busy(self) -> int:
        """The number of jobs that have not ended."""
        return len(self._jobs)

    def jobs_of(self, name: str) -> tuple[int, int]:
        return self.models[name].jobs, sum(
            model.jobs for model in self._replaced if model.name == name
        )

    def stop(self, seconds: float = 0.0) -> bool:
        with self._wake:
            self._accepting = False
            finished = self._wake.wait_for(lambda: not self._jobs, seconds)
            self._working = False
            for job, place in self._jobs.items():
                job.abandoned = True
                if place is not None:
                    place[1].search.interrupt.set()
            self._wake.notify_all()
        if self._thread.is_alive():
            self._thread.join(END_SECONDS)
        self._end(*((job, ServerStopping()) for job in list(self._jobs)))
        return finished

    # ---- the scheduler's thread ----

    def _work(self) -> None:
        try:
            with current_device(self.device):
                try:
                    self._run()
                finally:
                    self._rounds.close()
                    self._aside.close()
        except BaseException as error:
            log.critical("the engine's thread has ended: its jobs end with it", exc_info=error)
            self._crashed(EngineCrashed(error))

    def _crashed(self, error: EngineCrashed) -> None:
        """End all jobs with an error, without what the scheduler knew about them: it may be wrong."""
        with self._wake:
            self._accepting, self._crash = False, error
            jobs, self._jobs = list(self._jobs), {}
            self._wake.notify_all()
        self._tell((job, error) for job in jobs)
        for receive in self._crash_receivers:
            receive(error)

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(self._has_work, ASIDE_SECONDS if self._aside.begun else None)
                if not self._working:
                    return
            self._alive = time.monotonic()
            self._work_once()

    def _has_work(self) -> bool:
        if not self._working or self._cancelled or self._aside.found or self._rounds.ended:
            return True
        if self._rounds.busy:  # jobs that arrive are planned together, when a round has ended
            return False
        idle = any(
            not group.computed for model in self._all_models() for group in model.groups.values()
        )
        return bool(idle or self._arrived or (self.queue and not self._blocked))

    def _all_models(self) -> list[ServedModel]:
        with self._wake:
            return [*self._replaced, *self.models.values()]

    def _work_once(
        self,
    ) -> None:  # not in _run, whose local variables would keep a replaced model in memory
        for jobs, found in self._aside.take():
            self._computed(jobs, found)
        finished = self._take_in(self._rounds.take())
        self._drop_cancelled()
        self._admit()
        here = self._begin_rounds()
        if finished:  # after the next rounds have begun: threads do not wait for it
            self._answer(finished)
        for group in here:
            self._answer(self._take_in([self._rounds.compute(group)]))
        self._give_back()

    def _give_back(self) -> None:
        """When large searches have ended and none runs, give the memory that they had back to the system."""
        taken = self._taken()
        self._most_taken = max(self._most_taken, taken)
        if taken == 0 and self._most_taken >= LARGE_SEARCHES:
            self._most_taken = 0
            release_free_memory()

    def _begin_rounds(self) -> Sequence[SearchGroup]:
        """Begin rounds of searches in threads; those to compute here."""
        return self._rounds.begin(
            [group for model in self._all_models() for group in model.groups.values()]
        )

    def _answer(self, finished: Sequence[Finished]) -> None:
        """End jobs that have left their searches, without those that were cancelled meanwhile."""
        self._end(
            *filter(None, [self._finish(*each) for each in finished if each[1].job in self._jobs])
        )

    def _drop_cancelled(self) -> None:
        while self._cancelled:
            job = self._cancelled.popleft()
            if job in self._jobs:
                self._leave(job)
                self._forget(job)

    def _drop_late(self, jobs: Sequence[Job]) -> None:
        """End those of these jobs that are past their deadlines; from time to time, of all."""
        if (now := time.monotonic()) >= self._checked + DEADLINE_SECONDS:
            self._checked = now
            with self._wake:
                jobs = [*self._timed]
        for job in jobs:
            if now > (job.deadline or now) and job in self._jobs:
                self._leave(job)
                self._end((job, DeadlineExceeded(now - job.submitted)))

    def _leave(self, job: Job) -> None:
        """Take a job out of the queue or of its search; what is computed for it ends at its next check."""
        job.abandoned = True
        with self._wake:
            self.queue.remove(job)
        place = self._jobs[job]
        if place is not None:
            model, group, running = place
            group.drop(running)
            self._clients[job.client] -= 1
            self._drop_empty(model)

    def _drop_empty(self, model: ServedModel) -> None:
        model.groups = {
            key: group for key, group in model.groups.items() if group.jobs or group.computed
        }

    def _admit(self) -> None:
        """Move waiting jobs into searches with free slots; begin those that need none of the scheduler's searches."""
        self._sort_arrivals()
        limits = self.limits
        rows, wide = self._rows()
        sizes = limits.slots, limits.hypotheses, limits.batch, self._rounds.threads, rows
        first = self._next if self._next in self.queue else None
        allowed = self._memory or 0
        reserved = reserved_search_bytes(allowed)
        memory = SearchBudget(allowed, self._taken(), first, reserved, self._taken_by_small())
        round_ = Admissions(*sizes, aside=self._aside.room, wide=wide, memory=memory)
        for job in self._lanes.turns(self._clients, round_.full):
            if not round_.choose(job):
                continue
            with self._wake:
                self.queue.remove(job)
            job.admitted()
            self._clients[job.client] += 1
        self._next = memory.first
        self._blocked = bool(self._aside.begun or self._rounds.active) and not (
            round_.chosen or round_.groups
        )
        for job, group in round_.groups.items():
            self._jobs[job] = job.plan.model, group, job.plan.running
        for jobs in round_.chosen.values():
            plan = jobs[0].plan
            if plan.runs_aside:
                self._aside.begin(jobs, plan.model.predictor, [job.plan.work for job in jobs])
            else:
                self._compute(plan.model.predictor, jobs)

    def _sort_arrivals(self) -> None:
        """Plan new jobs, and sort them into lanes; some at once, so that running searches do not wait for all."""
        with self._wake:
            arrived = [
                self._arrived.popleft() for _ in range(min(MOST_ARRIVALS, len(self._arrived)))
            ]
            self._rounds.arrivals = bool(self._arrived)
        self._drop_late(arrived)
        refused: list[tuple[Job, Result]] = []
        for job, plan in plan_jobs(
            job for job in arrived if job in self.queue
        ):  # not cancelled, nor late
            if isinstance(plan, Exception):
                refused.append((job, told(plan)))
            else:
                job.plan = plan
                self._lanes.add(plan.lane, job)
        self._end(*refused)

    def _rows(self) -> tuple[int, bool]:
        """Hypotheses of all searches, as they count, and whether one of these is wide."""
        most = self.limits.hypotheses
        groups = [group for model in self._all_models() for group in model.groups.values()]
        running = [(group.jobs, group.search.plan.beams) for group in groups if group.jobs]
        rows = sum(jobs * counted_rows(beams, most) for jobs, beams in running)
        return rows, any(is_wide(beams, most) for _, beams in running)

    def _taken(self) -> int:
        """Bytes that all searches may come to take."""
        return sum(group.bytes() for group in self._groups())

    def _taken_by_small(self) -> int:
        """Of those, by searches of small jobs."""
        largest = small_search_bytes(self._memory or 0)
        return sum(group.bytes() for group in self._groups() if group.memory.of(1) <= largest)

    def _groups(self) -> list[SearchGroup]:
        return [group for model in self._all_models() for group in model.groups.values()]

    def _take_in(self, rounds: Sequence[tuple[SearchGroup, Round]]) -> list[Finished]:
        """Take in rounds that have ended; the jobs that have finished in them, which have left their searches."""
        finished: list[Finished] = []
        for group, found in rounds:
            self._fail(group.end_round(found), found.numbers)
            if found.failure is not None:
                failed, group.running = list(group.running.values()), {}
                self._fail(failed, found.failure)
                continue
            ended = {number for number, _ in found.finished}
            for number, token in found.tokens.items():
                if group.streamed(number, token, last=number in ended) and number not in ended:
                    found.finished.append((number, group.search.finish(number)))
            finished += (
                (group, group.leave(number), hypotheses) for number, hypotheses in found.finished
            )
        for model in self._all_models() if rounds else ():
            self._drop_empty(model)
        return finished

    def _fail(self, running: Sequence[RunningJob], error: Any) -> None:
        """End jobs of a search that has failed."""
        if not running:
            return
        self._clients.subtract(each.job.client for each in running)
        self._end(*zip((each.job for each in running), repeat(told(error)), strict=False))

    def _finish(
        self, group: SearchGroup, each: RunningJob, hypotheses: list[Hypothesis]
    ) -> tuple[Job, Result] | None:
        """The result of a job; None: it follows later.

        Either an output spells a banned phrase with other tokens, and the job is searched again; or the attention of
        its outputs is computed beside this thread.
        """
        self._clients[each.job.client] -= 1
        try:
            hypotheses = final(group.task, each.request, hypotheses)
            again = without_other_spellings(
                group.pipeline.tokenizer, group.task, each.request, hypotheses
            )
            if again is not None:
                before = each.request
                (planned,) = plan_requests(group.task, [again], [before.number])
                # The limits are its own, and not those that the searches of its group share.
                planned = planned._replace(
                    min_length=before.min_length, max_length=before.max_length
                )
                self._clients[each.job.client] += 1
                self._search_again(group, replace(each, request=planned, tokens=0, number=None))
                return None
            model: ServedModel = each.job.served
            plan = model.plan_outputs(group, each, hypotheses)
            if plan is None:
                return each.job, group.outputs(each, hypotheses)
            self._jobs[each.job] = None  # in no search any more
            self._planned(each.job, plan)
            return None
        except Exception as error:  # whatever a model raises must not end the scheduler
            return each.job, told(error)

    def _search_again(self, group: SearchGroup, each: RunningJob) -> None:
        """Begin a search of its own for a job that has left its search."""
        model, other = (
            each.job.served,
            SearchGroup.of(group.task, group.pipeline, each.request, slots=1),
        )
        other.enter(each)
        model.groups[each.job], self._jobs[each.job] = other, (model, other, each)

    def _compute(self, predictor: Predictor, jobs: Sequence[Job]) -> None:
        """End jobs with the results of one batch."""
        try:
            with interruptible(partial(check_wanted, *jobs)):
                found = compute(predictor, [job.plan.work for job in jobs])
        except Interrupted:
            now = time.monotonic()
            found = [Computed(DeadlineExceeded(now - job.submitted)) for job in jobs]
        self._computed(jobs, found)

    def _computed(self, jobs: Sequence[Job], found: Sequence[Computed]) -> None:
        self._clients.subtract(job.client for job in jobs)
        # Without those that were cancelled or late.
        ends = [(job, each) for job, each in zip(jobs, found, strict=True) if job in self._jobs]
        for job, each in ends:
            job.usage.read = max(job.usage.read, each.read)
            if isinstance(each.result, JobPlan):
                self._planned(job, each.result)
        ends = [(job, each) for job, each in ends if not isinstance(each.result, JobPlan)]
        self._end(*((job, each.result) for job, each in ends))

    def _planned(self, job: Job, plan: JobPlan) -> None:
        """Queue a job again, with what follows: it was planned beside this thread, or its search has ended."""
        job.plan = plan
        with self._wake:
            self.queue.put_back(job)
        self._lanes.add(plan.lane, job)

    def _end(self, *ends: tuple[Job, Result]) -> None:
        """End jobs, each with its result: those that have not ended meanwhile in another thread."""
        if not ends:
            return
        with self._wake:
            known = [job for job, _ in ends if job in self._jobs]
            computed = sum(job.usage.queue_seconds is not None for job in known)
            self.queue.drain.ended(computed, others_wait=len(self.queue) > 0)
        ended = self._forget(*(job for job, _ in ends))
        self._tell((job, result) for job, result in ends if job in ended)

    def _tell(self, ends: Iterable[tuple[Job, Result]]) -> None:
        for job, result in ends:
            job.ended()
            try:
                job.on_end(result)
            except Exception:  # a caller's fault must not end the scheduler
                log.exception("the receiver of a result failed")

    def _forget(self, *jobs: Job) -> set[Job]:
        """Those of these jobs that had not ended yet, which are forgotten."""
        known: set[Job] = set()
        with self._wake:
            for job in jobs:
                self.queue.remove(job)  # where it still waits
                if job in self._jobs:
                    known.add(job)
                    del self._jobs[job]
                    self._timed.discard(job)
                    job.served.jobs -= 1
                    job.served = job.plan = (
                        None  # a job that is kept must not keep a replaced model in memory
                    )
            if self._replaced:
                self._replaced = [model for model in self._replaced if model.jobs]
            if not self._jobs:
                self.queue.drain.stop()
                self._wake.notify_all()
        return known
