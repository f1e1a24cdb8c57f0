"""Continuous batching for a server: a running search that requests enter and leave at any step."""

from collections.abc import Container, Sequence

import torch

from regard.core.host_future import HostFuture
from regard.generation.batch_plan import BatchLimits, BatchPlan, PlannedRequest
from regard.generation.choose.interfaces import Hypothesis
from regard.generation.encode_queue import EncodeQueue
from regard.generation.engines.half_precision import autocast
from regard.generation.engines.loop import Interrupt, LoopBounds
from regard.generation.request import SearchTask
from regard.generation.search import LOOP_MICROSECONDS, STEPS_AHEAD, Finished, SearchBatch

FINISHED_FRACTION = 3  # a compiled loop returns when a third of the running requests is finished


class OnlineSearch(SearchBatch):
    """A search over slots that are filled and freed one by one. An output does not depend on what runs beside it.

    The batch holds the requests that are running and hardly more: it grows when requests are admitted, and shrinks when
    half of its slots are free. A compiled loop skips free slots, so that its batch may hold more: it grows to powers of
    two, and shrinks when three quarters are free. Each request is known by the number that `admit` returned.

    limits   what any request of this search may need
    slots    the most requests at once
    """

    requests: dict[int, PlannedRequest]

    def __init__(self, task: SearchTask, limits: BatchLimits, slots: int) -> None:
        self.task, self.slots, self.requests, self.read = task, slots, {}, {}
        self.plan = BatchPlan(task, limits._replace(queued=True), slots)
        self.queue = EncodeQueue(
            self.plan, self.requests, each_alone=self.plan.device.type == "cpu"
        )
        self.occupants, self.step, self.done = [], 0, None
        self.ahead = (
            self.plan.recorded
        )  # whether steps are begun before the results of those before them are read
        self.interrupt = (
            Interrupt()
        )  # ends `advance` after its current step; may be set in any thread
        self.microseconds = LOOP_MICROSECONDS  # after which `advance` ends, at the end of a step
        self.loops = False  # whether steps are those of a compiled loop
        self._next = 0

    def __len__(self) -> int:
        """The number of requests that are running."""
        return len(self.requests)

    @property
    def free(self) -> int:
        """The number of requests that may be admitted."""
        return self.slots - len(self.requests)

    @torch.inference_mode()
    def admit(self, requests: Sequence[PlannedRequest]) -> list[int]:
        """Begin requests, no more than are `free`; their numbers."""
        assert 0 < len(requests) <= self.free
        numbers = list(range(self._next, self._next + len(requests)))
        running, self._next = len(self.requests), self._next + len(requests)
        self.requests.update(zip(numbers, requests, strict=True))
        self.queue.encode_these(numbers)
        if running == 0:
            self._restart(len(numbers))
        free = [slot for slot, occupant in enumerate(self.occupants) if occupant is None]
        if len(free) < len(numbers):
            free += self._grow(len(numbers) - len(free))
        memory = self.queue.memory
        if self.plan.static and memory is not None and memory.states.shape[1] > self.sizes.source:
            self.pool_key = None  # the buffers grow, and are not those of this key any more
        # The flags of the slots that were occupied before: a search that is never full is admitted
        # to at any step.
        done = self.done
        self._admit(free[: len(numbers)])
        self.done = done
        return numbers

    @torch.inference_mode()
    def advance(self, watched: Container[int] | None = None) -> tuple[dict[int, int], Finished]:
        """One more token of every request: that of each first hypothesis, and the requests that are finished.

        A finished request has left the search; its hypotheses are those of `search`. Tokens are given of the `watched`
        requests, by default of all. Where none are, steps are several at once. A compiled loop takes as many as it can
        until a third of the requests is finished, some milliseconds have passed, or `interrupt` is set. Of recorded
        steps, the requests are given that were finished before them: a GPU computes while the host answers.
        """
        several = watched is not None and not watched
        if self.ahead and several:
            return {}, self._advance_ahead()
        with autocast(self.plan.half):
            self.step += self.buffers.steps_until(
                self._bounds() if several else LoopBounds(1, self.slots)
            )
        self.done, last = None, dict[int, int]()
        if watched or watched is None:
            tokens = self.buffers.tokens[:, 0].tolist()
            numbers = [
                (slot, occupant[0])
                for slot, occupant in enumerate(self.occupants)
                if occupant is not None
            ]
            last = {
                number: tokens[slot]
                for slot, number in numbers
                if watched is None or number in watched
            }
        return last, self._left(self.buffers.strategy.done.tolist(), self.step)

    def _advance_ahead(self) -> Finished:
        """Read what the steps before have finished, then begin more: a copy behind these would wait for them."""
        finished = [] if self.done is None else self._left(self.done(), self.step)
        self.done = None
        if self.requests:
            with autocast(self.plan.half):
                self.buffers.steps(STEPS_AHEAD)
            self.step += STEPS_AHEAD
            self.done = HostFuture(self.buffers.strategy.done)
        return finished

    def _bounds(self) -> LoopBounds:
        """Of steps that nobody waits for one by one."""
        stop = max(1, len(self.requests) // FINISHED_FRACTION)
        return LoopBounds(self.plan.limits.max_length, stop, self.microseconds, self.interrupt)

    def _left(self, done: list[bool], step: int) -> Finished:
        """The requests in slots that were done at this step, which leave the search, and their hypotheses."""
        known = [
            flag and each is not None and each[1] < step
            for flag, each in zip(done, self.occupants, strict=True)
        ]
        results = [(self._leave(slot), hypotheses) for slot, hypotheses in self._finished(known)]
        self._shrink()
        return results

    @torch.inference_mode()
    def cancel(self, number: int) -> None:
        """End a request without a result; nothing happens where it has left the search."""
        for slot, occupant in enumerate(self.occupants):
            if occupant is not None and occupant[0] == number:
                self._idle(slot)
                self._leave(slot)
                self._shrink()
                return

    @torch.inference_mode()
    def finish(self, number: int) -> list[Hypothesis]:
        """End a request as it is, by greedy search or sampling; its hypotheses so far."""
        slot = next(
            slot
            for slot, each in enumerate(self.occupants)
            if each is not None and each[0] == number
        )
        (hypotheses,) = self.buffers.strategy.hypotheses(
            torch.tensor([slot], device=self.plan.device)
        )
        self.cancel(number)
        return hypotheses

    def _leave(self, slot: int) -> int:
        number = self._release(slot)
        del self.requests[number]
        self.read.pop(number, None)
        if not self.requests:
            self._return_buffers()
        return number

    def _restart(self, count: int) -> None:
        """New buffers, as for the first requests: with an empty cache."""
        self.plan.decoder.refresh(self.task.model)
        self.loops = False  # the first state has the rows of these requests
        self.plan.slots = self._rows(count)
        self.occupants, self.step, self.done = [None] * self.plan.slots, 0, None
        self.sizes = self.plan.sizes(self.queue.memory)
        self.pool_key = self.plan.pool_key(self.sizes)
        self.buffers = self._pooled_buffers() or self._new_buffers()
        self.loops = self.plan.decoder.compiled and self.plan.fused

    def _grow(self, count: int) -> list[int]:
        """Add at least so many slots; their numbers."""
        total = len(self.occupants)
        new = list(range(total, self._rows(total + count)))
        self._keep([*range(total), *[0] * len(new)])
        for slot in new:
            self.occupants[slot] = None
            self._idle(slot)
        return new

    def _idle(self, slot: int) -> None:
        """Make steps change nothing in a slot, as in one that was never admitted to."""
        strategy = self.buffers.strategy
        strategy.done[slot], strategy.generated.length[slot] = True, 1
        assert self.buffers.state is not None
        self.buffers.state.release([slot])

    def _shrink(self) -> None:
        most = len(self.occupants) // (4 if self.loops else 2)
        if self._rows(len(self.requests)) > most:
            return
        occupied = [slot for slot, occupant in enumerate(self.occupants) if occupant is not None]
        free = [slot for slot, occupant in enumerate(self.occupants) if occupant is None]
        size = self._rows(len(occupied))
        if occupied and size <= most:
            self._keep(occupied + free[: size - len(occupied)])

    def rows_for(self, count: int) -> int:
        """Slots that its buffers have with so many requests, or have now. May be asked in any thread."""
        return max(self._rows(count), len(self.occupants))

    def _rows(self, count: int) -> int:
        """Slots of a batch of so many requests: where steps are recorded, there are few sizes."""
        if self.loops and count:
            return min(self.slots, 1 << (count - 1).bit_length())
        return self.plan.decoder.batch_size(count) if count else 0
