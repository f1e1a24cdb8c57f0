"""The queue of jobs: bounded in number and tokens, and fair between clients."""

import time
from collections import OrderedDict, deque
from collections.abc import Container, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil

from regard.core.errors import Overloaded
from regard.server.jobs import Job


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
        if len(self) >= self.max_jobs or (self.tokens + job.size > self.max_tokens and self._waiting):
            raise Overloaded(self.drain.seconds_for(len(self)))
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
    """Waiting jobs, sorted into lanes of those that compete for the same room, and the next of them in turn.

    Next is the job of the client with the least running jobs; among the jobs of a client, and between clients with as
    many, the one that has waited longest. Jobs that have left the queue are skipped.
    """

    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue
        self._lanes: dict[Hashable, dict[str, deque[Job]]] = {}  # by client

    def add(self, lane: Hashable, job: Job) -> None:
        """Jobs of a client are added in the order in which they were submitted."""
        self._lanes.setdefault(lane, {}).setdefault(job.client, deque()).append(job)

    def next(self, running: Mapping[str, int], without: Container[Hashable] = ()) -> Job | None:
        """The next job that waits in a lane other than these; it stays there until it leaves the queue.

        running   the number of running jobs of each client
        """
        best: tuple[int, float] | None = None
        found: Job | None = None
        for lane, clients in list(self._lanes.items()):
            if lane in without:
                continue
            for client, line in list(clients.items()):
                while line and line[0] not in self._queue:
                    line.popleft()
                if not line:
                    del clients[client]
                    continue
                rank = running.get(client, 0), line[0].submitted
                if best is None or rank < best:
                    best, found = rank, line[0]
            if not clients:
                del self._lanes[lane]
        return found


@dataclass
class Admissions:
    """Jobs that are chosen in one round, by their lanes, and the lanes without room."""

    rows: int  # hypotheses of all searches, with theirs
    chosen: dict[Hashable, list[Job]] = field(default_factory=dict)
    full: set[Hashable] = field(default_factory=set)


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
