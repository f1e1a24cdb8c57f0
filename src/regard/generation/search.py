"""Continuous-batching search shared by greedy, sampling and beam search.

A finished request frees its slot for one of the queue, or for one that comes later: searching many requests in bulk is
a search that no more requests join. The search calls the interfaces of models and of engines only. It knows nothing of
attention, recurrence or images.
"""

from collections.abc import Container, Hashable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import count

import torch

from regard.core.errors import InvalidArgument, UnsatisfiableConstraint
from regard.core.host_future import HostFuture
from regard.core.interruption import check_interruption, is_interruptible
from regard.core.sequence import pad_lists
from regard.core.shapes import Int, Tensor
from regard.generation.batch_plan import BatchLimits, BatchPlan
from regard.generation.choose.interfaces import Hypothesis
from regard.generation.choose.strategies import DecodingStrategy
from regard.generation.encode_queue import EncodeQueue
from regard.generation.engines import selection
from regard.generation.engines.base import LEAST_PROMPT
from regard.generation.engines.buffers import DecodeBuffers
from regard.generation.engines.half_precision import autocast
from regard.generation.engines.loop import Interrupt, LoopBounds
from regard.generation.request import GenerationRequest, SearchTask, plan_requests
from regard.generation.request_groups import (
    groups_in_memory,
    length_groups,
    search_workers,
    worker_parts,
)
from regard.generation.worker_threads import run_in_threads
from regard.model.kv_cache import Slots
from regard.model.memory import Memory

IDLE_FRACTION = 8  # requests are admitted when an eighth of the slots is free
FINISHED_FRACTION = 3  # a compiled loop returns when a third of the running requests is finished
STEPS_AHEAD = 4  # recorded steps between two checks for finished slots
# After which a compiled loop that can be interrupted returns, at the end of its step.
LOOP_MICROSECONDS = 40_000
COLUMNS = 6  # of a table of admitted requests, before their prefixes
MIN_HYPOTHESES = 64  # a static batch is not shrunk below: a GPU is no faster with fewer

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

    An output does not depend on what runs beside it. The batch holds the requests that are running and hardly more: it
    grows when requests are admitted, and shrinks when half of its slots are free. A compiled loop skips free slots, so
    that its batch may hold more: it grows to powers of two, and shrinks when three quarters are free. Each request is
    known by its number, from 0 in the order in which they came.

    Where all requests are known from the beginning (`of`), they wait in a queue, and `run` or `stream` takes the search
    to its end. Else they come by `admit`, and each `advance` gives what has been finished.

    limits      what any request may need
    slots       the most requests at once
    all_known   whether no request comes later than those that wait in the queue
    """

    buffers: DecodeBuffers[DecodingStrategy]
    pool_key: Hashable

    def __init__(
        self, task: SearchTask, limits: BatchLimits, slots: int, *, all_known: bool = False
    ) -> None:
        self.task = task
        self.slots = slots
        self.all_known = all_known
        self.plan = BatchPlan(task, limits if all_known else limits._replace(queued=True), slots)
        self.requests: dict[int, GenerationRequest] = {}  # that wait or run
        self.read: dict[
            int, int
        ] = {}  # tokens of the prompt of each request that were read at once
        # Alone on a CPU, where requests come later: then an output has the bits that it has alone.
        each_alone = not all_known and self.plan.device.type == "cpu"
        self.queue = EncodeQueue(self.plan, self.requests, each_alone=each_alone)
        # Of each slot: a request, and the step at which it was admitted.
        self.occupants: list[tuple[int, int] | None] = []
        self.step = 0
        self.done: HostFuture | None = None  # the finished slots before the last steps
        # Whether steps are begun before the results of those before them are read. All that is known from the beginning
        # is encoded before the engine is chosen, while a GPU works.
        self.ahead = not all_known and self.plan.recorded
        self.compares_later = (
            False  # whether a change of weights is looked for after the first steps
        )
        self.interrupt = Interrupt()  # ends `advance` after its step; may be set in any thread
        self.microseconds = LOOP_MICROSECONDS  # after which `advance` ends, at the end of a step
        self.loops = False  # whether steps are those of a compiled loop
        self.begun = False  # whether there are buffers
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
    def running(self) -> int:
        """The number of requests in slots."""
        return len(self.requests) - len(self.queue)

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
        read = self.read.get(0, 0)
        yield from self.buffers.strategy.generated.tokens[0, 0, :read].tolist()
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
        self._enter(len(numbers))
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
        with autocast(self.plan.half):
            self.step += self.buffers.steps_until(
                self._bounds() if several else LoopBounds(1, self.slots)
            )
        self.done = None
        last = {} if several else self._last_tokens(watched)
        return last, self._left(self.buffers.strategy.done.tolist(), self.step)

    def _last_tokens(self, watched: Container[int] | None) -> dict[int, int]:
        tokens = self.buffers.tokens[:, 0].tolist()
        return {
            occupant[0]: tokens[slot]
            for slot, occupant in enumerate(self.occupants)
            if occupant is not None and (watched is None or occupant[0] in watched)
        }

    @torch.inference_mode()
    def _first_steps(self) -> Finished:
        """As `advance`, of a search whose requests are all known, from the beginning.

        Where steps are recorded, the weights are compared with the decoder's copy while a GPU works; if they have
        changed, its steps are repeated.
        """
        if not self.ahead:
            return self.advance(())[1]
        self.compares_later = True
        self._fill()
        self._launch()
        known = self.done
        step = self.step
        goes_on = self._launch()  # more steps, for as long as the comparison takes
        self.compares_later = False
        if self.plan.decoder.refresh(self.task.model):
            self._return_buffers()
            self.queue.begin_again([*self.requests])
            self._encode_first()
            self._fill()
            return self.advance(())[1]
        if not goes_on:
            return self._all_left()
        assert known is not None
        return self._left(known(), step)

    def _advance_ahead(self) -> Finished:
        """Begin more steps, and read what those before them have finished."""
        known = self.done
        step = self.step
        if self.all_known:  # a GPU goes on while the host reads
            if not self._launch():
                return self._all_left()
            return [] if known is None else self._left(known(), step)
        # Others wait for the results: a copy behind more steps would wait for them.
        finished = [] if known is None else self._left(known(), step)
        self.done = None
        if self.requests:
            self._launch()
        return finished

    def _launch(self) -> bool:
        """Begin more steps; False: every output has its maximum length."""
        steps = min(STEPS_AHEAD, self._remaining())
        if steps == 0:
            return False
        with autocast(self.plan.half):
            self.buffers.steps(steps)
        self.step += steps
        self.done = HostFuture(self.buffers.strategy.done)
        return True

    def _remaining(self) -> int:
        """Steps until every output has its maximum length."""
        last = max(
            step + self.requests[number].max_length for number, step in filter(None, self.occupants)
        )
        return max(0, last - self.step)

    def _bounds(self) -> LoopBounds:
        """Of steps that nobody waits for one by one."""
        if not self.all_known:
            stop = max(1, self.running // FINISHED_FRACTION)
            return LoopBounds(self.plan.limits.max_length, stop, self.microseconds, self.interrupt)
        stop = self.running
        if len(self.queue):  # as many as are to be admitted together
            stop = min(stop, max(1, self.slots // IDLE_FRACTION - (self.slots - stop)))
        microseconds = LOOP_MICROSECONDS if is_interruptible() else 0
        return LoopBounds(self._remaining(), stop, microseconds)

    def _left(self, done: list[bool], step: int) -> Finished:
        """The requests in slots that were done at this step, which leave the search, and their hypotheses."""
        slots = [
            slot
            for slot, occupant in enumerate(self.occupants)
            if occupant is not None and occupant[1] < step and done[slot]
        ]
        results = list[tuple[int, list[Hypothesis]]]()
        if slots:
            leading = slots == list(range(len(slots)))
            rows = slice(len(slots)) if leading else torch.tensor(slots, device=self.plan.device)
            hypotheses = self.buffers.strategy.hypotheses(rows)
            results = [
                (self._leave(slot), found) for slot, found in zip(slots, hypotheses, strict=True)
            ]
        self._shrink()
        return results

    def _all_left(self) -> Finished:
        return self._left([True] * len(self.occupants), self.step)

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
        """Free a slot; the number of its request."""
        if self.buffers.strategy.required is not None:
            self.buffers.strategy.required.release(slot)
        if self.buffers.strategy.stops is not None:
            self.buffers.strategy.stops.release(slot)
        occupant = self.occupants[slot]
        self.occupants[slot] = None
        assert occupant is not None
        assert self.buffers.state is not None
        self.buffers.state.release([slot])
        number, _ = occupant
        del self.requests[number]
        if not self.all_known:
            self.read.pop(number, None)
        if not self.requests:
            self._return_buffers()
        return number

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
            self.slots = self.plan.slots
        self.queue.encode(self.slots)

    @torch.inference_mode()
    def _fill(self) -> None:
        """Admit requests of the queue, if enough slots are free."""
        room = self.slots - self.running
        if not len(self.queue) or room < max(1, self.slots // IDLE_FRACTION):
            return
        if not self.queue.encoded:
            self.queue.encode(self.slots)
        self._enter(min(room, len(self.queue.encoded)))

    def _enter(self, count: int) -> None:
        """Admit the first `count` requests that are encoded."""
        if not self.begun:
            self._restart(count)
        free = [slot for slot, occupant in enumerate(self.occupants) if occupant is None]
        if len(free) < count:
            free += self._grow(count - len(free))
        memory = self.queue.memory
        if self.plan.static and memory is not None and memory.states.shape[1] > self.source:
            self.pool_key = None  # the buffers grow, and are not those of this key any more
        self._admit(free[:count])

    def _restart(self, count: int) -> None:
        """New buffers, as for the first requests: with an empty cache."""
        plan = self.plan
        if not self.compares_later:
            plan.decoder.refresh(self.task.model)
        self.loops = False  # the first state has the rows of these requests
        plan.slots = self._rows(count)
        self.occupants = [None] * plan.slots
        self.step = 0
        self.done = None
        self.read.clear()
        self.source = plan.source_room(self.queue.memory)
        self.pool_key = plan.pool_key(self.source)
        self.buffers = self._pooled_buffers() or self._new_buffers()
        self.begun = True
        self.loops = plan.decoder.compiled and plan.fused

    @torch.inference_mode()
    def _admit(self, slots: list[int]) -> None:
        """Put encoded requests into these slots, which are free: as many as there are slots."""
        admitted = self.queue.encoded[: len(slots)]
        for slot, index in zip(slots, admitted, strict=True):
            self.occupants[slot] = index, self.step
        empty = self.buffers.state is None
        rows = self._write(slots, admitted)
        self.buffers.strategy.set_seed(self.task.config.seed)
        self._constrain(slots, admitted)
        if self._begins(slots):
            write = partial(_begin_requests, self.buffers, slice(None), self.buffers.table)
            fill = partial(self._fill_static, rows, [self.requests[index] for index in admitted])
            self.buffers.begin(write, fill, len(admitted), self.queue.take_memory())
        # The encoder may still be running on a GPU: all that does not need its result has been launched.
        elif empty:  # all slots at once
            self.buffers.state = self.queue.state_of(len(slots), self.plan.capacity)
        else:
            self.buffers.admit(rows, self.queue.state_of(len(slots), 0))
        self._read_prompts(slots, admitted, empty=empty)

    def _begins(self, slots: list[int]) -> bool:
        """Whether static buffers begin: all slots were free."""
        return self.plan.static and self.step == 0 and len(slots) == sum(map(bool, self.occupants))

    def _fill_static(
        self, rows: Slots, requests: list[GenerationRequest], memory: Memory | None
    ) -> None:
        """Put encoded requests into these slots of static buffers."""
        self.buffers.admit(rows, self.plan.start(memory, len(requests), 0, requests))

    def _read_prompts(self, slots: list[int], admitted: list[int], *, empty: bool) -> None:
        """Read the prompts of admitted requests in forward passes instead of steps.

        All slots at once as far as the shortest, where all begin now and lengths are similar. Else, and where outputs
        do not depend on what runs beside them, one by one, the longest first: it decides the size of the past.
        """
        given = [self._prompt(index) for index in admitted]
        shortest = min(given)
        alike = max(given) - shortest < LEAST_PROMPT
        together = alike and not (self.plan.decoder.compiled or self.queue.each_alone)
        with autocast(self.plan.half):
            if empty and (together or len(slots) == 1):
                if shortest >= (2 if together else LEAST_PROMPT) and self.buffers.prefill(shortest):
                    self.read |= dict.fromkeys(admitted, shortest)
                return
            for count, slot, index in sorted(
                zip(given, slots, admitted, strict=True), reverse=True
            ):
                if count >= LEAST_PROMPT and self.buffers.prefill_slot(slot, count):
                    self.read[index] = count

    def _prompt(self, index: int) -> int:
        """Tokens of a request's prompt that may be read at once."""
        request = self.requests[index]
        return 0 if request.source is not None or request.score_prompt else request.given

    def _pooled_buffers(self) -> DecodeBuffers[DecodingStrategy] | None:
        """Buffers of as many slots that an earlier search has returned."""
        if self.pool_key is None:
            return None
        buffers: DecodeBuffers[DecodingStrategy] | None
        pool = selection.kept_buffers(self.plan.decoder)
        buffers = pool.take((len(self.occupants), self.pool_key))
        if buffers is not None:
            buffers.decoder = self.plan.decoder
        return buffers

    def _return_buffers(self) -> None:
        self.begun = False
        self._pool_buffers()

    def _pool_buffers(self) -> None:
        if self.pool_key is not None:
            pool = selection.kept_buffers(self.plan.decoder)
            pool.put((len(self.occupants), self.pool_key), self.buffers)

    def _new_buffers(self) -> DecodeBuffers[DecodingStrategy]:
        plan = self.plan
        memory = self.queue.memory
        state = None
        strategy = plan.build_strategy()
        if plan.static:
            empty = None if memory is None else memory.empty(plan.slots, self.source)
            state = plan.start(empty, plan.slots, plan.steps)
        table = torch.full((plan.slots, COLUMNS + plan.prefix), -1, device=plan.device)
        return selection.new_buffers(
            plan.decoder, strategy, table, state, fused=plan.fused, recorded=plan.recorded
        )

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
        strategy.done[slot] = True
        strategy.generated.length[slot] = 1
        assert self.buffers.state is not None
        self.buffers.state.release([slot])

    def _shrink(self) -> None:
        """Continue with fewer slots, where most are free and no request waits for one."""
        total = len(self.occupants)
        most = total // (4 if self.loops else 2)
        if not self.running or len(self.queue) or self._rows(self.running) > most:
            return
        # A GPU is no faster with fewer; where requests come later, single ones have kernels of their own.
        if self.all_known and self.plan.static and total * self.plan.beams <= MIN_HYPOTHESES:
            return
        occupied = [slot for slot, occupant in enumerate(self.occupants) if occupant is not None]
        free = [slot for slot, occupant in enumerate(self.occupants) if occupant is None]
        self._keep(occupied + free[: self._rows(len(occupied)) - len(occupied)])

    def rows_for(self, count: int) -> int:
        """Slots that its buffers have with so many requests, or have now. May be asked in any thread."""
        return max(self._rows(count), len(self.occupants))

    def _rows(self, count: int) -> int:
        """Slots of a batch of so many requests: where steps are recorded, there are few sizes."""
        if self.loops and count:
            return min(self.slots, 1 << (count - 1).bit_length())
        return self.plan.decoder.batch_size(count) if count else 0

    def _keep(self, slots: list[int]) -> None:
        """Continue with these slots only, in smaller buffers."""
        self.done = None
        rows = torch.tensor(slots, device=self.plan.device)
        smaller = self.buffers.keep(rows)
        self._pool_buffers()
        self.occupants = [self.occupants[slot] for slot in slots]
        pooled = self._pooled_buffers()
        if pooled is not None:
            pooled.copy_from(smaller)
        self.buffers = pooled or smaller

    def _write(self, slots: list[int], admitted: list[int]) -> Slots:
        """Write the limits and prefixes of admitted requests into the buffers; the slots on the device."""
        requests = [self.requests[index] for index in admitted]
        rows = [
            [
                slot,
                each.number,
                each.start,
                each.min_length,
                each.max_length,
                each.given,
                *each.begin,
            ]
            for slot, each in zip(slots, requests, strict=True)
        ]
        if self._begins(slots):  # write all of them
            rows += [[0, 0, 0, 0, 1, 0]] * (
                len(self.occupants) - len(slots)
            )  # finished after one step
            self.buffers.table.copy_(self._on_host(rows), non_blocking=True)
            return slice(len(slots))
        table = self._on_host(rows).to(self.plan.device, non_blocking=True)
        _begin_requests(self.buffers, table[:, 0], table)
        return table[:, 0]

    def _on_host(self, rows: list[list[int]]) -> Int[Tensor, "n columns"]:
        table = pad_lists(rows, COLUMNS + self.plan.prefix, -1)
        return table.pin_memory() if self.plan.device.type == "cuda" else table

    def _constrain(self, slots: list[int], admitted: list[int]) -> None:
        """Pass admitted requests to per-slot processors, and their required phrases to the strategy."""
        required = self.buffers.strategy.required
        stops = self.buffers.strategy.stops
        if stops is not None:
            for slot, index in zip(slots, admitted, strict=True):
                stops.admit(slot, self.requests[index].stops)
        per_slot = [each for each in self.buffers.strategy.processors if each.per_slot]
        if not per_slot and required is None:
            return
        for slot, index in zip(slots, admitted, strict=True):
            planned = self.requests[index]
            for processor in per_slot:
                processor.admit(slot, planned)
            if required is not None and planned.constraint is not None:
                prefix = len(planned.begin)
                beams = self.plan.beams
                required.admit(
                    slot,
                    *planned.constraint,
                    beams=beams,
                    prefix=prefix,
                    budget=planned.max_length - prefix,
                )


def _begin_requests(
    buffers: DecodeBuffers[DecodingStrategy], slots: Slots, table: Int[Tensor, "n columns"]
) -> None:
    """Begin requests: a row of the table for each.

    Its columns: slot, number, the token before the first, minimum and maximum length, length of the prompt, prefix.
    """
    strategy = buffers.strategy
    generated = strategy.generated
    generated.tokens[slots] = strategy.special_tokens.pad
    generated.length[slots] = 0
    generated.min_length[slots] = table[:, 3]
    strategy.limit[slots] = table[:, 4]
    generated.prompt[slots] = table[:, 5]
    generated.prefix[slots] = table[:, COLUMNS:]
    generated.first[slots] = table[:, 2]
    strategy.admit(slots, table[:, 1])
    buffers.tokens[slots] = table[:, 2, None]
