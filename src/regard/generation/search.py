"""Continuous-batching search shared by greedy, sampling and beam search.

A finished request frees its slot for one of the queue, or for one that comes later: searching many requests in bulk is
a search that no more requests join. The search calls the interfaces of models and of engines only. It knows nothing of
attention, recurrence or images.
"""

from collections.abc import Container, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import count

import torch

from regard.core.errors import InvalidArgument, UnsatisfiableConstraint
from regard.core.host_future import HostFuture
from regard.core.interruption import check_interruption, is_interruptible
from regard.generation.batch_plan import BatchLimits, BatchPlan
from regard.generation.choose.interfaces import Hypothesis
from regard.generation.encode_queue import EncodeQueue
from regard.generation.engines.half_precision import autocast
from regard.generation.engines.loop import Interrupt, LoopBounds
from regard.generation.request import GenerationRequest, SearchTask, plan_requests
from regard.generation.request_groups import (
    groups_in_memory,
    length_groups,
    search_workers,
    worker_parts,
)
from regard.generation.search_batch import SearchBatch
from regard.generation.worker_threads import run_in_threads

IDLE_FRACTION = 8  # requests are admitted when an eighth of the slots is free
FINISHED_FRACTION = 3  # a compiled loop returns when a third of the running requests is finished
STEPS_AHEAD = 4  # recorded steps between two checks for finished slots
# After which a compiled loop that can be interrupted returns, at the end of its step.
LOOP_MICROSECONDS = 40_000

Finished = list[tuple[int, list[Hypothesis]]]  # requests by number, and their hypotheses


def search(
    task: SearchTask, requests: Sequence[GenerationRequest]
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """The index of each request and its hypotheses, best first, in the order in which they are finished."""
    planned = plan_requests(task, requests)
    if task.config.coverage_penalty and task.rerank is None:
        wanted = "SearchTask(rerank=...)"
        remedy = "Pass interpret.output_attention.coverage_reranker."
        raise InvalidArgument("coverage_penalty", wanted=wanted, got="none", remedy=remedy)
    workers = search_workers(task, planned)
    groups = groups_in_memory(task, planned, length_groups(task, requests, planned), workers)
    if workers == 1:
        found = (
            (index, found)
            for group, slots in groups
            for index, found in _search_group(task, planned, group, slots)
        )
    else:
        jobs = (
            partial(_searched_group, task, planned, part, slots)
            for group, slots in groups
            for part in worker_parts(group, slots, workers)
        )
        found = (each for part in run_in_threads(jobs, workers) for each in part)
    with closing(found):
        for index, hypotheses in found:
            yield index, final(task, requests[index], hypotheses)


def _search_group(
    task: SearchTask, planned: Sequence[GenerationRequest], group: Sequence[int], slots: int
) -> Iterator[tuple[int, list[Hypothesis]]]:
    together = Search.of(task, [planned[i] for i in group], min(slots, len(group)))
    for number, hypotheses in together.run():
        yield group[number], hypotheses


def _searched_group(
    task: SearchTask, planned: Sequence[GenerationRequest], group: Sequence[int], slots: int
) -> list[tuple[int, list[Hypothesis]]]:
    return list(_search_group(task, planned, group, slots))


def final(
    task: SearchTask, request: GenerationRequest, hypotheses: list[Hypothesis]
) -> list[Hypothesis]:
    """The hypotheses of a finished request, ranked again where the task asks for it."""
    if not hypotheses and request.required:
        raise UnsatisfiableConstraint
    if task.rerank is None:
        return hypotheses
    return task.rerank(task.collate([request.source]), hypotheses)[: task.config.num_hypotheses]


def stream(task: SearchTask, request: GenerationRequest) -> Iterator[int]:
    """The tokens of one output as they are generated, without the end token; by greedy search or sampling."""
    planned = plan_requests(task, [request])
    groups_in_memory(task, planned, [([0], 1)], workers=1)
    return Search.of(task, planned, slots=1).stream()


class Search:
    """Requests that share the slots of one batch, which are filled and freed one by one at any step.

    An output does not depend on what runs beside it. Each request is known by its number, from 0 in the order in which
    they came.

    Where all requests are known from the beginning (`of`), they wait in a queue, and `run` or `stream` takes the search
    to its end. Else they come by `admit`, and each `advance` gives what has been finished.

    limits      what any request may need
    slots       the most requests at once
    all_known   whether no request comes later than those that wait in the queue
    """

    def __init__(
        self, task: SearchTask, limits: BatchLimits, slots: int, *, all_known: bool = False
    ) -> None:
        self.task = task
        self.all_known = all_known
        self.plan = BatchPlan(task, limits if all_known else limits._replace(queued=True), slots)
        self.requests: dict[int, GenerationRequest] = {}  # that wait or run
        # Alone on a CPU, where requests come later: then an output has the bits that it has alone.
        each_alone = not all_known and self.plan.device.type == "cpu"
        self.queue = EncodeQueue(self.plan, self.requests, each_alone=each_alone)
        self.batch = SearchBatch(self.plan, self.requests, self.queue, slots, all_known=all_known)
        # Whether steps are begun before the results of those before them are read. All that is known from the beginning
        # is encoded before the engine is chosen, while a GPU works.
        self.ahead = not all_known and self.plan.recorded
        self.interrupt = Interrupt()  # ends `advance` after its step; may be set in any thread
        self.microseconds = LOOP_MICROSECONDS  # after which `advance` ends, at the end of a step
        self._next = 0

    @staticmethod
    def of(task: SearchTask, requests: Sequence[GenerationRequest], slots: int) -> "Search":
        """A search for these requests and no others."""
        found = Search(task, BatchLimits.of(requests, slots), slots, all_known=True)
        found.queue.add(found._number(requests))
        return found

    def __len__(self) -> int:
        """The number of requests that wait or run."""
        return len(self.requests)

    @property
    def slots(self) -> int:
        """The most requests at once."""
        return self.batch.slots

    @property
    def step(self) -> int:
        """The number of steps that were taken since the batch was last empty."""
        return self.batch.step

    @property
    def free(self) -> int:
        """The number of requests that may be admitted."""
        return self.slots - len(self.requests)

    def run(self) -> Iterator[tuple[int, list[Hypothesis]]]:
        """The number of each request and its hypotheses, as they are finished."""
        self._encode_first()
        self.ahead = self.plan.recorded
        finished = self._first_steps()
        while True:
            yield from finished
            if not self.requests:
                break
            _, finished = self.advance(())

    def stream(self) -> Iterator[int]:
        """The tokens of the only request."""
        prompt = self.requests[0].given
        self._encode_first()
        self._fill()
        read = self.batch.read.get(0, 0)
        yield from self.batch.buffers.strategy.generated.tokens[0, 0, :read].tolist()
        for number in count(read):
            last, finished = self.advance()
            if number < prompt or not self.task.is_end(last[0]):
                yield last[0]
            if finished:
                break

    @torch.inference_mode()
    def admit(self, requests: Sequence[GenerationRequest]) -> list[int]:
        """Begin requests, no more than are `free`; their numbers."""
        assert 0 < len(requests) <= self.free
        numbers = self._number(requests)
        try:
            self.queue.encode_these(numbers)
        except Exception:  # the model's: the others go on without them
            self.queue.encoded = []
            for number in numbers:
                del self.requests[number]
            raise
        self.batch.enter(len(numbers))
        return numbers

    @torch.inference_mode()
    def advance(self, watched: Container[int] | None = None) -> tuple[dict[int, int], Finished]:
        """One more token of every request: that of each first hypothesis, and the requests that are finished.

        A finished request has left the search; its hypotheses are those of `search`. Tokens are given of the `watched`
        requests, by default of all. Where none are, steps are several at once. A compiled loop takes as many as it can
        until enough of the requests are finished, some milliseconds have passed, or `interrupt` is set. Of recorded
        steps, the requests are given that were finished before them: a GPU computes while the host answers.
        """
        check_interruption()
        self._fill()
        several = watched is not None and not watched
        if self.ahead and several:
            return {}, self._advance_ahead()
        batch = self.batch
        bounds = self._bounds() if several else LoopBounds(1, batch.slots)
        with autocast(self.plan.half):
            batch.step += batch.buffers.steps_until(bounds)
        batch.done = None
        last = {} if several else batch.last_tokens(watched)
        return last, batch.take(batch.buffers.strategy.done.tolist(), batch.step)

    @torch.inference_mode()
    def _first_steps(self) -> Finished:
        """As `advance`, of a search whose requests are all known, from the beginning.

        Where steps are recorded, the weights are compared with the decoder's copy while a GPU works; if they have
        changed, its steps are repeated.
        """
        if not self.ahead:
            return self.advance(())[1]
        self.batch.compares_later = True
        self._fill()
        self._launch()
        known = self.batch.done
        step = self.batch.step
        goes_on = self._launch()  # more steps, for as long as the comparison takes
        self.batch.compares_later = False
        if self.plan.decoder.refresh(self.task.model):
            self.batch.return_buffers()
            self.queue.begin_again([*self.requests])
            self._encode_first()
            self._fill()
            return self.advance(())[1]
        if not goes_on:
            return self._all_left()
        assert known is not None
        return self.batch.take(known(), step)

    def _advance_ahead(self) -> Finished:
        """Begin more steps, and read what those before them have finished."""
        known = self.batch.done
        step = self.batch.step
        if self.all_known:  # a GPU goes on while the host reads
            if not self._launch():
                return self._all_left()
            return [] if known is None else self.batch.take(known(), step)
        # Others wait for the results: a copy behind more steps would wait for them.
        finished: Finished = []
        if known is not None:
            finished = self.batch.take(known(), step)
        self.batch.done = None
        if self.requests:
            self._launch()
        return finished

    def _launch(self) -> bool:
        """Begin more steps; False: every output has its maximum length."""
        batch = self.batch
        steps = min(STEPS_AHEAD, batch.remaining)
        if steps == 0:
            return False
        with autocast(self.plan.half):
            batch.buffers.steps(steps)
        batch.step += steps
        batch.done = HostFuture(batch.buffers.strategy.done)
        return True

    def _bounds(self) -> LoopBounds:
        """Of steps that nobody waits for one by one."""
        running = self.batch.running
        if not self.all_known:
            stop = max(1, running // FINISHED_FRACTION)
            return LoopBounds(self.plan.limits.max_length, stop, self.microseconds, self.interrupt)
        stop = running
        if len(self.queue):  # as many as are to be admitted together
            stop = min(stop, max(1, self.slots // IDLE_FRACTION - (self.slots - stop)))
        microseconds = LOOP_MICROSECONDS if is_interruptible() else 0
        return LoopBounds(self.batch.remaining, stop, microseconds)

    def _all_left(self) -> Finished:
        return self.batch.take([True] * len(self.batch.occupants), self.batch.step)

    @torch.inference_mode()
    def cancel(self, number: int) -> None:
        """End a request without a result; nothing happens where it has left the search."""
        slot = self.batch.slot_of(number)
        if slot is not None:
            self.batch.cancel(slot)

    @torch.inference_mode()
    def finish(self, number: int) -> list[Hypothesis]:
        """End a request as it is, by greedy search or sampling; its hypotheses so far."""
        slot = self.batch.slot_of(number)
        assert slot is not None
        rows = torch.tensor([slot], device=self.plan.device)
        (hypotheses,) = self.batch.buffers.strategy.hypotheses(rows)
        self.batch.cancel(slot)
        return hypotheses

    def _number(self, requests: Sequence[GenerationRequest]) -> list[int]:
        """The numbers of new requests."""
        numbers = list(range(self._next, self._next + len(requests)))
        self._next += len(requests)
        self.requests.update(zip(numbers, requests, strict=True))
        return numbers

    @torch.inference_mode()
    def _encode_first(self) -> None:
        """Encode the first requests, before all else: a GPU does so while the host chooses engine and buffers."""
        if self.plan.limits.queued:
            self.batch.slots = self.plan.slots
        self.queue.encode(self.slots)

    @torch.inference_mode()
    def _fill(self) -> None:
        """Admit requests of the queue, if enough slots are free."""
        room = self.slots - self.batch.running
        if not len(self.queue) or room < max(1, self.slots // IDLE_FRACTION):
            return
        if not self.queue.encoded:
            self.queue.encode(self.slots)
        self.batch.enter(min(room, len(self.queue.encoded)))
