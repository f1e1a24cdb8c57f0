"""Computations beside the scheduler's thread: each in a thread of its own, a few at a time, in turn.

A search that takes minutes, or a pass over a long input, must not delay other requests. So on a
CPU it never runs in the scheduler's thread, but here. Of the computations that have begun, some
compute and the others wait for their turn, which comes when another has computed for a while and
asks whether it should go on (`core.interruption`). One that does not ask for a longer time loses
its turn to the next, and both compute. A computation ends at its next check when its job was
cancelled or is late.
"""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from queue import SimpleQueue

import torch

from regard.core.errors import DeadlineExceeded
from regard.core.interruption import Interrupted, interruptible
from regard.inference.load import current_device
from regard.inference.predictor import Predictor
from regard.serving.scheduler.direct_batches import Computed, compute
from regard.serving.scheduler.jobs import BatchedWork, Job

PARAMETERS = 25_000_000  # of a model, for each of PyTorch's threads that computes its looks
MOST = 8  # computations that have begun
MOST_OF_CLIENT = 4  # of them, of one client
COMPUTING = 2  # computations at a time
TURN_SECONDS = 0.05  # for which one computes, where others wait
OVERDUE_SECONDS = (
    0.25  # after which one that waits computes beside those that do not pass on their turn
)
Tasks = SimpleQueue[Callable[[], None] | None]  # None ends the thread


class Turns:
    """Who may compute now: at most `most` of those that take a turn, in the order in which they asked."""

    def __init__(self, most: int = COMPUTING) -> None:
        self.most = most
        self._changed = threading.Condition()
        self._holders: deque[Turn] = deque()
        self._waiting: deque[Turn] = deque()

    @property
    def wanted(self) -> bool:
        """Whether somebody waits for a turn."""
        return bool(self._waiting)

    def take(self, turn: "Turn") -> None:
        """Wait until it is this one's turn."""
        with self._changed:
            self._waiting.append(turn)
            self._changed.wait_for(partial(self._is_next, turn), OVERDUE_SECONDS)
            self._waiting.remove(turn)
            if len(self._holders) >= self.most:
                self._holders.popleft()
            self._holders.append(turn)
            self._changed.notify_all()

    def give_back(self, turn: "Turn") -> None:
        with self._changed:
            if turn in self._holders:
                self._holders.remove(turn)
                self._changed.notify_all()

    def _is_next(self, turn: "Turn") -> bool:
        return self._waiting[0] is turn and len(self._holders) < self.most


class Turn:
    """One computation among those that take turns."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self._ends = 0.0

    def begin(self) -> None:
        self.turns.take(self)
        self._ends = time.monotonic() + TURN_SECONDS

    def pass_on(self) -> None:
        """Let another compute, if this one has done so for a while and another waits."""
        if time.monotonic() >= self._ends and self.turns.wanted:
            self.turns.give_back(self)
            self.begin()

    def end(self) -> None:
        self.turns.give_back(self)


class BackgroundRoom:
    """What may begin beside the computations that have begun; those that are chosen are counted.

    free      computations that may begin
    clients   computations of each client
    locked    what works that have begun lock (`BatchedWork.locks`)
    """

    def __init__(self, free: int, clients: Counter[str], locked: set[Hashable]) -> None:
        self.free = free
        self.clients = clients
        self.locked = locked

    def enter(self, client: str, locks: Hashable) -> bool:
        """Whether a computation may begin, which is counted then."""
        if self.free <= 0 or self.clients[client] >= MOST_OF_CLIENT or locks in self.locked:
            return False
        self.free -= 1
        self.clients[client] += 1
        if locks is not None:
            self.locked.add(locks)
        return True


class BackgroundThreads:
    """Computes batches, each in a thread of its own.

    The threads stay: PyTorch's own threads and working memory belong to the thread that uses them, and to set them up
    for each look takes as long as a look.

    begun   the jobs of each batch that is computed
    found   batches that have ended, with their results: `wake` is notified
    """

    def __init__(self, device: str, wake: threading.Condition) -> None:
        self.device = device
        self.wake = wake
        self.begun: list[Sequence[Job]] = []
        self.found: list[tuple[Sequence[Job], Sequence[Computed]]] = []
        self._turns = Turns()
        self._locked: dict[int, Hashable] = {}  # by the identity of a batch
        # By how many of PyTorch's threads each has: all threads, and the tasks of those that are idle.
        self._threads: list[tuple[threading.Thread, Tasks]] = []
        self._idle: dict[int, list[Tasks]] = {}

    @property
    def room(self) -> BackgroundRoom:
        clients = Counter(jobs[0].client for jobs in self.begun)
        return BackgroundRoom(MOST - len(self.begun), clients, set(self._locked.values()))

    def begin(
        self, jobs: Sequence[Job], predictor: Predictor, works: Sequence[BatchedWork]
    ) -> None:
        """Compute works of one kind, one after the other."""
        self.begun.append(jobs)
        if works[0].locks is not None:
            self._locked[id(jobs)] = works[0].locks
        threads = _threads_for(predictor, works[0])
        idle = self._idle.setdefault(threads, [])
        tasks = idle.pop() if idle else self._started(threads)
        turn = Turn(self._turns)

        def run() -> None:
            found: list[Computed] = []
            with current_device(self.device):
                turn.begin()
                try:
                    for job, work in zip(jobs, works, strict=True):
                        found.append(_computed(turn, job, predictor, work))
                finally:
                    turn.end()
                    with self.wake:
                        idle.append(tasks)
                        self.found.append((jobs, found))
                        self.wake.notify_all()

        tasks.put(run)

    def take(self) -> list[tuple[Sequence[Job], Sequence[Computed]]]:
        """The batches that have ended, which leave."""
        with self.wake:
            found = self.found
            self.found = []
        for jobs, _ in found:
            self.begun = [each for each in self.begun if each is not jobs]
            self._locked.pop(id(jobs), None)
        return found

    def close(self) -> None:
        """Wait for what is being computed, and end the threads: one that computed while Python exits would abort it."""
        for _, tasks in self._threads:
            tasks.put(None)
        for thread, _ in self._threads:
            thread.join()

    def _started(self, threads: int) -> Tasks:
        """A new thread, in which PyTorch uses so many threads: its tasks."""
        tasks = Tasks()
        ready = threading.Event()
        before = torch.get_num_threads()

        def run() -> None:
            torch.set_num_threads(threads)
            torch.get_num_threads()  # takes effect in this thread by its first use
            ready.set()
            while (task := tasks.get()) is not None:
                task()
                del task  # which has a model in memory

        thread = threading.Thread(target=run, name="regard aside", daemon=True)
        thread.start()
        ready.wait()
        torch.set_num_threads(before)  # that of threads which are started later
        self._threads.append((thread, tasks))
        return tasks


def _threads_for(predictor: Predictor, work: BatchedWork) -> int:
    """How many of PyTorch's threads compute a work.

    A small model has one for a page that asks all the time: more gain nothing there, and wait for each other where a
    browser runs beside them.
    """
    threads = torch.get_num_threads()
    if not work.few_threads:
        return threads
    size = sum(weight.numel() for weight in predictor.model.parameters())
    return max(1, min(threads, size // PARAMETERS))


def _computed(turn: Turn, job: Job, predictor: Predictor, work: BatchedWork) -> Computed:
    """The result of one work; where it was interrupted, an error that matters to nobody but a job that is late."""

    def check() -> None:
        turn.pass_on()
        check_wanted(job)

    try:
        with interruptible(check):
            check()
            (found,) = compute(predictor, [work])
        return found
    except Interrupted:
        return Computed(DeadlineExceeded(time.monotonic() - job.submitted))


def check_wanted(*jobs: Job) -> None:
    """Raise `Interrupted` where nobody waits for the results of these jobs any more."""
    now = time.monotonic()
    if all(job.abandoned or now > (job.deadline or now) for job in jobs):
        raise Interrupted
