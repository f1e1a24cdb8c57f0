"""The batch of a search: slots with their requests, and the buffers that the steps read and write."""

from collections.abc import Container, Hashable
from functools import partial

import torch

from regard.core.host_future import HostFuture
from regard.core.sequence import pad_lists
from regard.core.shapes import Int, Tensor
from regard.generation.batch_plan import BatchPlan
from regard.generation.choose.interfaces import Hypothesis
from regard.generation.choose.strategies import DecodingStrategy
from regard.generation.encode_queue import EncodeQueue
from regard.generation.engines import selection
from regard.generation.engines.base import LEAST_PROMPT
from regard.generation.engines.buffers import DecodeBuffers
from regard.generation.engines.half_precision import autocast
from regard.generation.request import GenerationRequest
from regard.model.kv_cache import Slots
from regard.model.memory import Memory

COLUMNS = 6  # of a table of admitted requests, before their prefixes
MIN_HYPOTHESES = 64  # a static batch is not shrunk below: a GPU is no faster with fewer


class SearchBatch:
    """The slots of a search, each with a request or free, and the buffers of their steps.

    It holds the requests that are running and hardly more: it grows when requests are admitted, and shrinks when half
    of its slots are free. A compiled loop skips free slots, so that its batch may hold more: it grows to powers of two,
    and shrinks when three quarters are free.

    requests    by number, those that wait or run
    queue       those that wait
    slots       the most requests at once
    all_known   whether no request comes later than those that wait in the queue
    """

    buffers: DecodeBuffers[DecodingStrategy]
    pool_key: Hashable

    def __init__(
        self,
        plan: BatchPlan,
        requests: dict[int, GenerationRequest],
        queue: EncodeQueue,
        slots: int,
        *,
        all_known: bool,
    ) -> None:
        self.plan = plan
        self.requests = requests
        self.queue = queue
        self.slots = slots
        self.all_known = all_known
        # Of each slot: a request, and the step at which it was admitted.
        self.occupants: list[tuple[int, int] | None] = []
        self.step = 0
        # Tokens of the prompt of each request that were read at once.
        self.read: dict[int, int] = {}
        self.done: HostFuture | None = None  # the finished slots before the last steps
        # Whether a change of weights is looked for after the first steps.
        self.compares_later = False
        self.loops = False  # whether steps are those of a compiled loop
        self.begun = False  # whether there are buffers

    @property
    def running(self) -> int:
        """The number of requests in slots."""
        return len(self.requests) - len(self.queue)

    @property
    def remaining(self) -> int:
        """Steps until every output has its maximum length."""
        last = max(
            step + self.requests[number].max_length for number, step in filter(None, self.occupants)
        )
        return max(0, last - self.step)

    def last_tokens(self, watched: Container[int] | None) -> dict[int, int]:
        """The last token of the first hypothesis of the `watched` requests, by default of all."""
        tokens = self.buffers.tokens[:, 0].tolist()
        return {
            occupant[0]: tokens[slot]
            for slot, occupant in enumerate(self.occupants)
            if occupant is not None and (watched is None or occupant[0] in watched)
        }

    def slot_of(self, number: int) -> int | None:
        """The slot of a request; None where it has left the search."""
        for slot, occupant in enumerate(self.occupants):
            if occupant is not None and occupant[0] == number:
                return slot
        return None

    def take(self, done: list[bool], step: int) -> list[tuple[int, list[Hypothesis]]]:
        """Free the slots that were done at this step: the numbers of their requests, and their hypotheses."""
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

    def cancel(self, slot: int) -> None:
        """Free a slot whose request is not wanted any more."""
        self._idle(slot)
        self._leave(slot)
        self._shrink()

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
            self.return_buffers()
        return number

    def enter(self, count: int) -> None:
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
            plan.decoder.refresh(plan.task.model)
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
        self.buffers.strategy.set_seed(self.plan.task.config.seed)
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

    def return_buffers(self) -> None:
        """End the batch; another search may use its buffers."""
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
