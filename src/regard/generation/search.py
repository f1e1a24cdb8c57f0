"""Continuous-batching search shared by greedy, sampling and beam search.

A finished request frees its slot; a queued request is encoded into it. The search calls the interfaces of
`model.interfaces` only, and knows nothing of attention, recurrence or images.
"""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import count

import torch

from regard.core.errors import InvalidArgument, UnsatisfiableConstraint
from regard.core.host_future import HostFuture
from regard.core.interruption import check_interruption, is_interruptible
from regard.core.sequence import pad_lists
from regard.core.shapes import Int, Tensor
from regard.generation.batch_plan import BatchLimits, BatchPlan, PlannedRequest, plan_requests
from regard.generation.choose.interfaces import Hypothesis
from regard.generation.choose.strategies import DecodingStrategy
from regard.generation.encode_queue import EncodeQueue, Requests
from regard.generation.engines import selection
from regard.generation.engines.base import LEAST_PROMPT
from regard.generation.engines.buffers import DecodeBuffers
from regard.generation.engines.half_precision import autocast
from regard.generation.engines.loop import LoopBounds
from regard.generation.request import Request, SearchTask
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
STEPS_AHEAD = 4  # recorded steps between two checks for finished slots
# After which a compiled loop that can be interrupted returns, at the end of its step.
LOOP_MICROSECONDS = 40_000
COLUMNS = 6  # of a table of admitted requests, before their prefixes
MIN_HYPOTHESES = 64  # a static batch is not shrunk below: a GPU is no faster with fewer

Finished = list[tuple[int, list[Hypothesis]]]  # slots and their hypotheses


def search(task: SearchTask, requests: Sequence[Request]) -> Iterator[tuple[int, list[Hypothesis]]]:
    """The index of each request and its hypotheses, best first, in the order in which they are finished."""
    config, planned = task.config, plan_requests(task, requests)
    if config.coverage_penalty and task.rerank is None:
        wanted, remedy = (
            "SearchTask(rerank=...)",
            "Pass interpret.output_attention.coverage_reranker.",
        )
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
    task: SearchTask, planned: Sequence[PlannedRequest], group: Sequence[int], slots: int
) -> Iterator[tuple[int, list[Hypothesis]]]:
    for index, hypotheses in SearchBatch(
        task, [planned[i] for i in group], min(slots, len(group))
    ).run():
        yield group[index], hypotheses


def _searched_group(
    task: SearchTask, planned: Sequence[PlannedRequest], group: Sequence[int], slots: int
) -> list[tuple[int, list[Hypothesis]]]:
    return list(_search_group(task, planned, group, slots))


def final(task: SearchTask, request: Request, hypotheses: list[Hypothesis]) -> list[Hypothesis]:
    """The hypotheses of a finished request, ranked again where the task asks for it."""
    if not hypotheses and request.required:
        raise UnsatisfiableConstraint
    if task.rerank is None:
        return hypotheses
    return task.rerank(task.collate([request.source]), hypotheses)[: task.config.num_hypotheses]


def stream(task: SearchTask, request: Request) -> Iterator[int]:
    """The tokens of one output as they are generated, without the end token; by greedy search or sampling."""
    planned = plan_requests(task, [request])
    groups_in_memory(task, planned, [([0], 1)], workers=1)
    return SearchBatch(task, planned, slots=1).stream()


class SearchBatch:
    """Requests of similar length that share the slots of one batch."""

    occupants: list[
        tuple[int, int] | None
    ]  # of each slot: a request, and the step at which it was admitted
    buffers: DecodeBuffers[DecodingStrategy]
    pool_key: Hashable
    done: HostFuture | None  # the finished slots before the last steps

    requests: Requests
    read: dict[int, int]  # tokens of the prompt of each request that were read at once
    streams: bool = False  # whether every token is read as soon as it is generated

    def __init__(self, task: SearchTask, requests: Sequence[PlannedRequest], slots: int) -> None:
        self.task, self.requests = task, requests
        self.plan = BatchPlan(task, BatchLimits.of(requests, slots), slots)

    def run(self) -> Iterator[tuple[int, list[Hypothesis]]]:
        """The index of each request and its hypotheses, as they are finished."""
        self._encode()
        finished = self._first_steps(wait=not self.plan.recorded)
        while True:
            for slot, hypotheses in finished:
                yield self._release(slot), hypotheses
            self._refill()
            if not any(self.occupants):
                break
            finished = self._advance(wait=not self.plan.recorded)
        self._return_buffers()

    def stream(self) -> Iterator[int]:
        """The tokens of the only request."""
        self.streams, prompt = True, self.requests[0].request.given
        self._encode()
        done = bool(self._first_steps(wait=True))
        read = self.read.get(0, 0)
        yield from self.buffers.strategy.generated.tokens[0, 0, :read].tolist()
        for number in count(read):
            token = int(self.buffers.tokens[0, 0])
            if number < prompt or not self.task.is_end(token):
                yield token
            if done:
                break
            done = bool(self._advance(wait=True))
        self._return_buffers()

    @torch.inference_mode()
    def _advance(self, *, wait: bool) -> Finished:
        """Generate more tokens of every hypothesis; the finished slots.

        Without `wait`, several tokens, and the slots that were finished before them: a GPU continues while the host
        reads its results. With it one token, or as many as it takes until slots are finished.
        """
        check_interruption()
        last = max(
            step + self.requests[index].max_length for index, step in filter(None, self.occupants)
        )
        count, done = max(0, last - self.step), self.done
        if wait and count:
            with autocast(self.plan.half):
                microseconds = LOOP_MICROSECONDS if is_interruptible() else 0
                self.step += self.buffers.steps_until(
                    LoopBounds(1 if self.streams else count, self._wanted(), microseconds)
                )
            return self._finished(self.buffers.strategy.done.tolist())
        count = min(STEPS_AHEAD, count)
        if count:
            with autocast(self.plan.half):
                self.buffers.steps(count)
        self.step += count
        if wait or count == 0:
            return self._finished(
                self.buffers.strategy.done.tolist() if wait else [True] * len(self.occupants)
            )
        self.done = HostFuture(self.buffers.strategy.done)
        return [] if done is None else self._finished(done())

    def _wanted(self) -> int:
        """The number of slots that must be finished before anything is to be done: enough of them, or all."""
        occupied = sum(occupant is not None for occupant in self.occupants)
        if not len(self.queue):
            return occupied
        free = len(self.occupants) - occupied
        return min(occupied, max(1, self.plan.slots // IDLE_FRACTION - free))

    @torch.inference_mode()
    def _release(self, slot: int) -> int:
        """Free a slot; the index of its request."""
        if self.buffers.strategy.required is not None:
            self.buffers.strategy.required.release(slot)
        occupant, self.occupants[slot] = self.occupants[slot], None
        assert occupant is not None
        assert self.buffers.state is not None
        self.buffers.state.release([slot])
        return occupant[0]

    @torch.inference_mode()
    def _admit(self, slots: list[int]) -> None:
        """Put encoded requests into these slots, which are free: as many as there are slots."""
        admitted, self.done = self.queue.encoded[: len(slots)], None
        for slot, index in zip(slots, admitted, strict=True):
            self.occupants[slot] = index, self.step
        empty, rows = self.buffers.state is None, self._write(slots, admitted)
        self.buffers.strategy.set_seed(self.task.config.seed)
        self._constrain(slots, admitted)
        if self._begins(slots):
            write = partial(_begin_requests, self.buffers, slice(None), self.buffers.table)
            fill = partial(self._fill, rows, [self.requests[index] for index in admitted])
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

    def _fill(self, rows: Slots, requests: list[PlannedRequest], memory: Memory | None) -> None:
        """Put encoded requests into these slots of static buffers."""
        self.buffers.admit(rows, self.plan.start(memory, len(requests), 0, requests))

    def _read_prompts(self, slots: list[int], admitted: list[int], *, empty: bool) -> None:
        """Read the prompts of admitted requests in forward passes instead of steps.

        All slots at once as far as the shortest, where all begin now and lengths are similar. Else, and where outputs
        do not depend on what runs beside them, one by one, the longest first: it decides the size of the past.
        """
        given = [self._prompt(index) for index in admitted]
        shortest, alike = min(given), max(given) - min(given) < LEAST_PROMPT
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
        request = self.requests[index].request
        return 0 if request.source is not None or request.score_prompt else request.given

    @torch.inference_mode()
    def _encode(self) -> None:
        """Encode the first requests, before all else: a GPU does so while the host chooses engine and buffers."""
        self.queue = EncodeQueue(self.plan, self.requests)
        self.queue.encode()

    def _first_steps(self, *, wait: bool) -> Finished:
        """As `_advance`, from the beginning, after `_encode`.

        Where steps are recorded, the weights are compared with the decoder's copy while a GPU works; if they have
        changed, its steps are repeated.
        """
        decoder, recorded = self.plan.decoder, self.plan.recorded
        if not recorded:
            decoder.refresh(self.task.model)
        self._begin()
        finished = self._advance(wait=wait)
        if not recorded:
            return finished
        done = self.done
        if not finished and not wait:  # more steps, for as long as the comparison takes
            self.done = None
            finished = self._advance(wait=False)
        if decoder.refresh(self.task.model):
            self._return_buffers()
            self._encode()
            self._begin()
            return self._advance(wait=wait)
        return finished if finished or done is None else self._finished(done())

    @torch.inference_mode()
    def _begin(self) -> None:
        plan = self.plan
        self.occupants, self.step = [None] * plan.slots, 0  # steps taken
        self.done, self.read = None, {}
        self.sizes = plan.sizes(self.queue.memory)
        self.pool_key = plan.pool_key(self.sizes)
        self.buffers = self._pooled_buffers() or self._new_buffers()
        self._admit(list(range(len(self.queue.encoded))))

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
        if self.pool_key is not None:
            pool = selection.kept_buffers(self.plan.decoder)
            pool.put((len(self.occupants), self.pool_key), self.buffers)

    def _new_buffers(self) -> DecodeBuffers[DecodingStrategy]:
        plan, sizes, memory, state = self.plan, self.sizes, self.queue.memory, None
        strategy = plan.build_strategy(sizes)
        if plan.static:
            empty = None if memory is None else memory.empty(plan.slots, sizes.source)
            state = plan.start(empty, plan.slots, sizes.steps)
        table = torch.full((plan.slots, COLUMNS + sizes.prefix), -1, device=plan.device)
        return selection.new_buffers(
            plan.decoder, strategy, table, state, fused=plan.fused, recorded=plan.recorded
        )

    def _finished(self, done: list[bool]) -> Finished:
        slots = [
            slot
            for slot, occupant in enumerate(self.occupants)
            if occupant is not None and done[slot]
        ]
        if not slots:
            return []
        leading = slots == list(range(len(slots)))
        rows = slice(len(slots)) if leading else torch.tensor(slots, device=self.plan.device)
        return list(zip(slots, self.buffers.strategy.hypotheses(rows), strict=True))

    @torch.inference_mode()
    def _refill(self) -> None:
        """Admit queued requests into free slots; where none are left and most slots are free, shrink the batch."""
        free = [slot for slot, occupant in enumerate(self.occupants) if occupant is None]
        occupied = [slot for slot, occupant in enumerate(self.occupants) if occupant is not None]
        total, waiting = len(self.occupants), len(self.queue)
        if waiting and len(free) >= max(1, self.plan.slots // IDLE_FRACTION):
            if not self.queue.encoded:
                self.queue.encode()
            self._admit(free[: len(self.queue.encoded)])
        size = self.plan.decoder.batch_size(len(occupied)) if occupied else 0
        small = self.plan.static and total * self.plan.beams <= MIN_HYPOTHESES
        if not waiting and not small and 0 < size <= total // 2:
            self._keep(occupied + free[: size - len(occupied)])

    def _keep(self, slots: list[int]) -> None:
        """Continue with these slots only, in smaller buffers."""
        self.done, rows = None, torch.tensor(slots, device=self.plan.device)
        smaller = self.buffers.keep(rows)
        self._return_buffers()
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
                each.first,
                each.min_length,
                each.max_length,
                each.request.given,
                *each.prefix,
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
        table = pad_lists(rows, COLUMNS + self.sizes.prefix, -1)
        return table.pin_memory() if self.plan.device.type == "cuda" else table

    def _constrain(self, slots: list[int], admitted: list[int]) -> None:
        """Pass admitted requests to per-slot processors, and their required phrases to the strategy."""
        required = self.buffers.strategy.required
        per_slot = [each for each in self.buffers.strategy.processors if each.per_slot]
        if not per_slot and required is None:
            return
        for slot, index in zip(slots, admitted, strict=True):
            planned = self.requests[index]
            for processor in per_slot:
                processor.admit(slot, planned.request)
            if required is not None and planned.constraint is not None:
                prefix, beams = len(planned.prefix), self.plan.beams
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
    strategy, generated = buffers.strategy, buffers.strategy.generated
    generated.tokens[slots], generated.length[slots] = strategy.special_tokens.pad, 0
    generated.min_length[slots], strategy.limit[slots] = table[:, 3], table[:, 4]
    generated.prompt[slots], generated.prefix[slots] = table[:, 5], table[:, COLUMNS:]
    generated.first[slots] = table[:, 2]
    strategy.admit(slots, table[:, 1])
    buffers.tokens[slots] = table[:, 2, None]
