"""The queue of jobs: bounded in number and tokens, and fair between clients."""

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Container, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import ceil, exp
from typing import ClassVar

from regard.core.errors import Overloaded
from regard.serving.scheduler.background import BackgroundRoom
from regard.serving.scheduler.jobs import Job
from regard.serving.scheduler.searches import SearchGroup
from regard.serving.scheduler.served_model import BatchPlan, JobPlan, SearchPlan

# Of the inputs that are encoded before a round, in all searches together: other searches wait
# meanwhile, and so do deadlines.
ENTERING_TOKENS = 4096


class JobQueue:
    """Jobs that wait, longest first, bounded in number and tokens, and shared fairly by clients.

    One client may fill the queue while nobody else waits. A client that comes then still has its
    share of the queue, which is the queue divided by the clients that wait, and at least one job.
    The jobs of others stay: up to twice as many jobs wait for a while, and whoever has more than
    its share is refused until the queue has shrunk again.
    """

    def __init__(
        self, max_jobs: int, max_tokens: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.max_jobs, self.max_tokens = max_jobs, max_tokens
        self.tokens = 0
        self.drain = DrainRate(clock)
        self._waiting: OrderedDict[Job, None] = OrderedDict()
        self._held: dict[str, Holding] = {}  # by client

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._waiting)

    def __contains__(self, job: object) -> bool:
        return job in self._waiting

    def add(self, job: Job) -> None:
        """Refused with the time after which there will be room, where there is none."""
        has_room = self._fits(job, 1) or (self._fits(job, 2) and self._within_share(job))
        if not has_room:
            raise Overloaded(self.drain.seconds_for(len(self)))
        self.put_back(job)

    def put_back(self, job: Job) -> None:
        """Let a job wait that was taken before, also where the queue is full by now."""
        held = self._held.setdefault(job.client, Holding())
        held.jobs += 1
        held.tokens += job.size
        self._waiting[job] = None
        self.tokens += job.size

    def remove(self, job: Job) -> bool:
        """Whether it was waiting."""
        if job not in self._waiting:
            return False
        del self._waiting[job]
        self.tokens -= job.size
        held = self._held[job.client]
        held.jobs -= 1
        held.tokens -= job.size
        if not held.jobs:
            del self._held[job.client]
        if not self._waiting:
            self.drain.queue_emptied()
        return True

    def _fits(self, job: Job, times: int) -> bool:
        """Whether there is room in a queue so many times as large. A job alone may be larger."""
        if not self._waiting:
            return True
        has_place = len(self) < times * self.max_jobs
        return has_place and self.tokens + job.size <= times * self.max_tokens

    def _within_share(self, job: Job) -> bool:
        """Whether the client of this job has no more than its share, with this job."""
        held = self._held.get(job.client)
        if held is None:
            return True
        clients = len(self._held)
        jobs = (held.jobs + 1) * clients
        tokens = (held.tokens + job.size) * clients
        return jobs <= self.max_jobs and tokens <= self.max_tokens


@dataclass
class Holding:
    """The waiting jobs of a client, and their tokens."""

    jobs: int = 0
    tokens: int = 0


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

    A part of the memory is for small jobs alone: those do not wait for large ones, nor does one that has waited long
    hold them up within that part.

    allowed   bytes
    taken     of those, by all searches with the jobs that are chosen
    first     the job that has waited so long
    reserved  of those that are allowed, for small jobs alone
    small     of those that are taken, by searches of small jobs
    """

    PATIENCE: ClassVar[float] = 2.0
    allowed: int
    taken: int = 0
    first: Job | None = None
    reserved: int = 0
    small: int = 0

    def takes(self, job: Job, more: int, *, is_small: bool = False) -> bool:
        """Whether this job may enter a search now, which then takes so many more bytes."""
        is_held_up = self.first is not None and job is not self.first
        if is_held_up and not is_small:
            return False
        room = self.allowed - self.taken
        if is_held_up:
            room = min(room, self.reserved - self.small)
        elif not is_small:
            room = min(room, self.allowed - self.reserved - (self.taken - self.small))
        # A job alone was found to fit when it was planned.
        is_alone = self.taken == self.small and self.small <= self.reserved
        fits = more <= room or self.taken == 0 or (is_alone and not is_small)
        if fits:
            self.taken += more
            self.small += more if is_small else 0
            self.first = None if job is self.first else self.first
        elif not is_small and time.monotonic() - job.submitted > self.PATIENCE:
            self.first = job
        return fits


@dataclass
class Admissions:
    """Jobs that are chosen in one round, by their lanes or with the searches that they enter; the lanes without room.

    slots, hypotheses, batch   the limits of the scheduler
    threads   searches that are computed at once
    rows    hypotheses of all searches, with those of the jobs that are chosen; of a wide search, `counted_rows`
    wide    whether a wide search runs
    aside   what may begin beside the scheduler's thread
    memory  of all searches; None: any
    tokens  of the inputs of all jobs that are chosen for searches
    """

    slots: int
    hypotheses: int
    batch: int
    threads: int
    rows: int
    aside: BackgroundRoom
    wide: bool = False
    memory: SearchBudget | None = None
    tokens: int = 0
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
            self.tokens += plan.running.input_tokens
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
        # Also of searches for one job each, of which many may begin in one round.
        if self.tokens and self.tokens + plan.running.input_tokens > ENTERING_TOKENS:
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
        more = group.bytes(plan.running) - group.bytes()
        if self.memory.takes(job, more, is_small=plan.is_small):
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
    """How long it takes until the jobs that wait now have left the queue.

    That follows from the rate at which jobs ended lately while others waited. While no job waits,
    the rate is lower although the server is no slower: a batch that is not full ends fewer jobs in
    a second. So both rates are kept, and the second counts for little as soon as the first is
    known. Time without jobs is not counted.
    """

    WINDOW = 10.0  # seconds that a rate looks back, about; without those that are not counted
    GAIN = 3.0  # how much faster jobs end, in all, when others wait; before that is known
    GUESS = 5.0  # seconds that a queue takes, before anything is known
    LONGEST = 60  # some clients ignore a longer time

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None  # the last end of a job, or the beginning; None: no jobs
        self._waited = False  # whether jobs have waited ever since
        self._crowded = RecentRate(self.WINDOW)  # while jobs waited
        self._sparse = RecentRate(self.WINDOW)  # while none did

    def begin(self) -> None:
        """Count time from now on: there are jobs."""
        self._since = self._clock()
        self._waited = False

    def stop(self) -> None:
        """Do not count time any more: no job is left."""
        self._since = None

    def queue_emptied(self) -> None:
        self._waited = False

    def ended(self, count: int, *, others_wait: bool) -> None:
        """So many jobs have ended that were not only waiting."""
        if not count or self._since is None:
            return
        now = self._clock()
        rate = self._crowded if self._waited else self._sparse
        rate.add(count, now - self._since)
        self._since = now
        self._waited = others_wait

    def seconds_for(self, jobs: int) -> int:
        """Whole seconds, from 1 to 60, after which so many waiting jobs have left the queue."""
        expected = self._expected(jobs)
        if self._since is not None:
            # Nothing has ended for a while: that may well take as long again.
            expected = max(expected, self._clock() - self._since)
        return min(self.LONGEST, max(1, ceil(expected - 1e-6)))

    def _expected(self, jobs: int) -> float:
        # Until jobs have been seen to wait for a second, a guess fills up what is missing of it.
        guess_seconds = max(0.0, 1.0 - self._crowded.seconds) if self._sparse.jobs else 0.0
        guess_jobs = guess_seconds * self.GAIN * self._sparse.per_second()
        ended = self._crowded.jobs + guess_jobs
        seconds = self._crowded.seconds + guess_seconds
        return jobs * seconds / ended if ended else self.GUESS


class RecentRate:
    """Jobs and the seconds in which they ended. What was a window ago counts about a third."""

    def __init__(self, window: float) -> None:
        self.window = window
        self.jobs = self.seconds = 0.0

    def add(self, jobs: int, seconds: float) -> None:
        kept = exp(-seconds / self.window)
        # No interval weighs more than the window, however long it was.
        weight = self.window * (1 - kept)
        self.seconds = kept * self.seconds + weight
        self.jobs = kept * self.jobs + jobs * weight / max(seconds, 1e-6)

    def per_second(self) -> float:
        return self.jobs / max(self.seconds, 1e-6)
