"""Rounds of searches: jobs enter, and some tokens of all are generated. On a CPU several searches are computed at once.

A compiled loop runs without Python's lock. Each thread has a search of its own, with a share of the slots, and waits
for no other: while one round is computed, the scheduler's thread plans new jobs and answers those of another round.
"""

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import torch

from regard.generation.search import LOOP_MICROSECONDS
from regard.generation.worker_threads import worker_pool
from regard.inference.load import current_device, pick_device
from regard.serving.scheduler import searches
from regard.serving.scheduler.searches import Round, SearchGroup


class SearchRounds:
    """Computes rounds, each of which `wake` is notified of when it has ended.

    slots     jobs of equal settings, in all their searches
    threads   searches that are computed at once; by default one for each of PyTorch's threads, where slots suffice
    arrivals  whether jobs have arrived that were not yet planned
    """

    def __init__(
        self, device: str, slots: int, wake: threading.Condition, threads: int | None = None
    ) -> None:
        self.device, self.wake = device, wake
        cores = torch.get_num_threads() if torch.device(pick_device(device)).type == "cpu" else 1
        self.threads = (
            max(1, min(cores, slots // searches.FULL_ROWS)) if threads is None else threads
        )
        self._cores, self._turns, self.arrivals = cores, 0, False
        self._pool: ThreadPoolExecutor | None = None
        self._computed: dict[
            SearchGroup, Future[Round] | None
        ] = {}  # of which a round is being computed, and where
        self._ended: list[SearchGroup] = []  # whose rounds have ended in a thread

    @property
    def active(self) -> bool:
        """Whether any round is being computed."""
        return bool(self._computed)

    @property
    def busy(self) -> bool:
        """Whether no more rounds can be computed at once."""
        return len(self._computed) >= self.threads

    @property
    def ended(self) -> bool:
        return bool(self._ended)

    def interrupt_small(self) -> None:
        """End the rounds of small searches after their current step: jobs have arrived. `wake` is held."""
        self.arrivals = True
        for group in self._computed:
            self._interrupt_small(group)

    def _interrupt_small(self, group: SearchGroup) -> None:
        if group.small:
            group.search.interrupt.set()

    def begin(self, groups: Sequence[SearchGroup]) -> list[SearchGroup]:
        """Begin a round of each search that waits, among all: in a thread, as far as threads are free, of the one first
        that has waited longest; those to `compute` in this thread.

        A small search without others is computed here, with all threads. Where searches must wait for each other, their
        rounds are shorter, and single steps where one of them gives its tokens to a stream.
        """
        here, alone, microseconds = [], len(groups) == 1, LOOP_MICROSECONDS
        if len(groups) > self.threads:
            microseconds = (
                1 if any(group.streams for group in groups) else microseconds // len(groups)
            )
        waiting = [group for group in groups if group.jobs and not group.computed]
        for group in sorted(waiting, key=lambda group: group.turn):
            group.search.microseconds = microseconds
            if not group.threaded or self.threads == 1 or (alone and group.small):
                here.append(group)
            elif not self.busy:
                if self._pool is None:
                    self._pool = worker_pool(
                        self.threads, max(1, self._cores // self.threads), "regard search"
                    )
                with self.wake:
                    self._mark(group)
                    future = self._computed[group] = self._pool.submit(self._compute, group)
                future.add_done_callback(partial(self._end, group))
        return here

    def compute(self, group: SearchGroup) -> tuple[SearchGroup, Round]:
        """A round in this thread."""
        with self.wake:
            self._mark(group)
        try:
            return group, group.compute()
        finally:
            with self.wake:
                del self._computed[group]

    def _mark(self, group: SearchGroup) -> None:
        self._turns += 1
        group.turn, self._computed[group] = self._turns, None
        group.begin_round()
        if self.arrivals:
            self._interrupt_small(group)

    def _compute(self, group: SearchGroup) -> Round:
        with current_device(self.device):
            return group.compute()

    def _end(self, group: SearchGroup, future: Future[Round]) -> None:
        with self.wake:
            self._ended.append(group)
            self.wake.notify_all()

    def take(self) -> list[tuple[SearchGroup, Round]]:
        """The rounds that have ended in threads. Raises what no round may raise."""
        with self.wake:
            ended, self._ended = self._ended, []
            futures = [self._computed.pop(group) for group in ended]
        return [
            (group, future.result())
            for group, future in zip(ended, futures, strict=True)
            if future is not None
        ]

    def close(self) -> None:
        """Wait for the rounds that are being computed, and end the threads."""
        with self.wake:
            for group in self._computed:
                group.search.interrupt.set()
        if self._pool is not None:
            self._pool.shutdown()
