"""What the engine is asked to do, and the queue of it: bounded, and fair between clients."""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from regard.core.errors import Overloaded
from regard.inference.inputs import InputValue
from regard.inference.pipelines import Output
from regard.inference.score import SequenceScore

Result = list[Output] | SequenceScore | BaseException


@dataclass(frozen=True)
class Generation:
    """Outputs for one input: texts of a model that generates, labels of a classifier. As `Predictor.outputs`."""

    input: InputValue
    options: Mapping[str, Any] = field(default_factory=dict)  # of [decode]
    prefix: str = ""
    banned: Sequence[str] = ()
    required: Sequence[str] = ()
    scores: bool = False
    attention: bool = False
    truncate: bool = False
    number: int = 0  # on which random draws depend: the input's index in its list


@dataclass(frozen=True)
class Scoring:
    """The score of a target, or of a language model's text. As `Predictor.score`."""

    input: InputValue
    target: str | None = None


@dataclass(eq=False)
class Job:
    """One piece of work for the engine, which calls `on_end` once, and `on_text` before it. Neither may block.

    client     whose it is; the engine is fair between clients
    deadline   of `time.monotonic`; after it, the job ends with `DeadlineExceeded`
    on_text    is called with each new piece of the output's text, by greedy search or sampling
    """

    model: str
    work: Generation | Scoring
    on_end: Callable[[Result], None]
    on_text: Callable[[str], None] | None = None
    client: str = ""
    deadline: float | None = None
    submitted: float = field(default_factory=time.monotonic)
    plan: Any = field(default=None, repr=False)  # kept by the engine while the job waits

    @property
    def size(self) -> int:
        """About the number of tokens that are read, from the length of the text: known before it is tokenized."""
        given = (self.work.input, self.work.target if isinstance(self.work, Scoring) else self.work.prefix)
        return 1 + sum(len(text) // 4 for text in given if isinstance(text, str))


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
        return iter(list(self._waiting))

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


def by_turn(waiting: Sequence[Job], running: Mapping[str, int]) -> Iterator[Job]:
    """Waiting jobs in the order of their turn: next is that of the client with the least running jobs.

    Among the jobs of a client, and between clients with as many, it is the one that has waited longest. `running` is
    the number of running jobs of each client; where it changes, so does the turn.
    """
    lines: dict[str, list[Job]] = {}
    for job in reversed(waiting):
        lines.setdefault(job.client, []).append(job)  # the longest waiting last
    while lines:
        client = min(lines, key=lambda name: (running.get(name, 0), lines[name][-1].submitted))
        job = lines[client].pop()
        if not lines[client]:
            del lines[client]
        yield job


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
