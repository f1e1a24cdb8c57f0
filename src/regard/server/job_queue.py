"""The queue of jobs: bounded in number and tokens, and fair between clients."""

import time
from collections import OrderedDict, deque
from collections.abc import Container, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import ceil
from typing import ClassVar

from regard.core.errors import Overloaded
from regard.server.aside import AsideRoom
from regard.server.jobs import Job
from regard.server.searches import SearchGroup
from regard.server.served_model import BatchPlan, JobPlan, SearchPlan

ENTERING_TOKENS = (
    4096  # of the inputs that are encoded before a round: other searches wait meanwhile
)


class JobQueue:
    """Jobs that wait, longest first, bounded in number and tokens."""

    def __init__(self, max_jobs: int, max_tokens: int) -> None:
        self.max_jobs, self.max_tokens = max_jobs, max_tokens
        self.tokens = 0
        self.drain = DrainRate()
        self._waiting: OrderedDict[Job, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._waiting)

    def __contains__(self, job: object) -> bool:
        return job in self._waiting

    def add(self, job: Job) -> None:
        """Refused with the time after which there will be room, where there is none."""
        if len(self) >= self.max_jobs or (
            self.tokens + job.size > self.max_tokens and self._waiting
        ):
            raise Overloaded(self.drain.seconds_for(len(self)))
        self.put_back(job)

    def put_back(self, job: Job) -> None:
        """Let a job wait that was taken before, also where the queue is full by now."""
        self._waiting[job] = None
        self.tokens += job.size

    def remove(self, job: Job) -> bool:
        """Whether it was waiting."""
        if job not in self._waiting:
            return False
        del self._waiting[job]
        self.tokens -= job.size
        return True


class Lanes:
    """Waiting jobs, sorted into lanes of those that compete for the same room, each taken in turn.

    Next is the job of the client with the least running jobs; among the jobs of a client, and between clients with as
    many, the one that has waited longest. Jobs that have left the queue are skipped.
    """

    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue
        self._lanes: dict[Hashable, dict[str, deque[Job]]] = {}  # by client

    def add(self, lane: Hashable, job: Job) -> None:
        """Jobs of a client are added in the order in which they were submitted."""
        self._lanes.setdefault(lane, {}).setdefault(job.client, deque()).append(job)

    def turns(self, running: Mapping[str, int], full: Container[Hashable]) -> Iterator[Job]:
        """The jobs of one round, in turn. Before the next, each must leave the queue, or its lane become a full one.

        running   the number of running jobs of each client, with those that were taken in this round
        full      lanes without room, which are skipped
        """
        heap = [
            (running.get(client, 0), line[0].submitted, number, lane, client)
            for number, (lane, client, line) in enumerate(
                (lane, client, line)
                for lane, clients in self._lanes.items()
                for client, line in clients.items()
            )
        ]
        heapify(heap)
        while heap:
            _, _, number, lane, client = heappop(heap)
            line = self._lanes[lane][client]
            while line and line[0] not in self._queue:  # taken, cancelled or late
                line.popleft()
            if line and lane not in full:
                rank = running.get(client, 0), line[0].submitted, number, lane, client
                if not heap or rank <= heap[0]:
                    yield line[0]
                    rank = running.get(client, 0), *rank[1:]
                heappush(heap, rank)
            elif not line:
                del self._lanes[lane][client]
                if not self._lanes[lane]:
                    del self._lanes[lane]


@dataclass
class SearchBudget:
    """The memory that searches share in one round of admissions.

    A job that does not fit waits for others to end. So that it does not wait for ever while smaller ones come and go,
    no other enters a search once it has waited `PATIENCE` seconds.

    allowed   bytes
    taken     of those, by all searches with the jobs that are chosen
    first     the job that has waited so long
    """

    PATIENCE: ClassVar[float] = 2.0
    allowed: int
    taken: int = 0
    first: Job | None = None

    def takes(self, job: Job, more: int) -> bool:
        """Whether this job may enter a search now, which then takes so many more bytes."""
        if self.first is not None and job is not self.first:
            return False
        # A job alone was found to fit when it was planned.
        fits = self.taken + more <= self.allowed or self.taken == 0
        if fits:
            self.taken += more
            self.first = None
        elif time.monotonic() - job.submitted > self.PATIENCE:
            self.first = job
        return fits


@dataclass
class Admissions:
    """Jobs that are chosen in one round, by their lanes or with the searches that they enter; the lanes without room.

    slots, hypotheses, batch   the limits of the engine
    threads   searches that are computed at once
    rows    hypotheses of all searches, with those of the jobs that are chosen; of a wide search, `counted_rows`
    wide    whether a wide search runs
    aside   what may begin beside the engine's thread
    memory  of all searches; None: any
    """

    slots: int
    hypotheses: int
    batch: int
    threads: int
    rows: int
    aside: AsideRoom
    wide: bool = False
    memory: SearchBudget | None = None
    chosen: dict[Hashable, list[Job]] = field(default_factory=dict)
    groups: dict[Job, SearchGroup] = field(default_factory=dict)
    full: set[Hashable] = field(default_factory=set)

    def choose(self, job: Job) -> bool:
        """Choose a job, if it may join a batch or a search now; its lane is full otherwise."""
        plan: JobPlan = job.plan
        group = self._group(plan, job) if isinstance(plan, SearchPlan) else None
        if group is None and not (isinstance(plan, BatchPlan) and self._has_room(plan)):
            self.full.add(plan.lane)
            return False
        if group is not None:
            assert isinstance(plan, SearchPlan)
            self.rows += counted_rows(plan.rows, self.hypotheses)
            self.wide = self.wide or is_wide(plan.rows, self.hypotheses)
            group.enter(plan.running)
            self.groups[job] = group
            return True
        self.chosen.setdefault(plan.lane, []).append(job)
        return True

    def _has_room(self, plan: BatchPlan) -> bool:
        chosen = len(self.chosen.get(plan.lane, ()))
        if plan.runs_aside and not chosen:
            return self.aside.enter(plan.client, plan.work.locks)
        return chosen < min(self.batch, plan.work.most)

    def _group(self, plan: SearchPlan, job: Job) -> SearchGroup | None:
        """The search that a job enters."""
        rows = counted_rows(plan.rows, self.hypotheses)
        if self.rows and self.rows + rows > self.hypotheses:
            return None
        if self.wide and is_wide(plan.rows, self.hypotheses):
            return None
        group = plan.group(self.slots, self.threads)
        if group is None:
            return None
        if group.entering:
            tokens = sum(each.input_tokens for each in (*group.entering, plan.running))
            if tokens > ENTERING_TOKENS:
                return None
        if self.memory is None:
            return group
        if self.memory.takes(job, group.bytes(plan.running) - group.bytes()):
            return group
        plan.model.drop_empty()
        return None


def is_wide(rows: int, hypotheses: int) -> bool:
    """Whether one job's search is so wide that it must leave room to others: only one such search runs at a time."""
    return rows > hypotheses // 2


def counted_rows(rows: int, hypotheses: int) -> int:
    """The hypotheses of one job as they count among those of all searches: at most half of all."""
    return min(rows, max(1, hypotheses // 2))


class DrainRate:
    """How many jobs end in a second, averaged over about the last ten seconds of work."""

    SECONDS = 10.0

    def __init__(self) -> None:
        self._rate, self._last = 0.0, time.monotonic()

    def ended(self, count: int = 1) -> None:
        now = time.monotonic()
        passed = max(1e-6, now - self._last)
        share = min(1.0, passed / self.SECONDS)
        self._rate += share * (count / passed - self._rate)
        self._last = now

    def seconds_for(self, jobs: int) -> int:
        """Whole seconds, from 1 to 60, in which so many jobs will end."""
        return min(60, max(1, ceil(jobs / self._rate))) if self._rate > 0 else 1
