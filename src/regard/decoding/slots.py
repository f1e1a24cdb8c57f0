"""The slots of a search batch, and the queue of requests that are encoded into them."""

from collections.abc import Sequence

import torch

from regard.decoding.batch_plan import BatchPlan
from regard.model.interfaces import DecoderState
from regard.model.memory import Memory
from regard.runtime import engines
from regard.runtime.cuda.cuda_graphs import autocast


class SlotTable:
    """Which request occupies each slot, and at which step it was admitted."""

    def __init__(self, count: int) -> None:
        self.requests: list[int | None] = [None] * count
        self.admitted_at = [0] * count

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def free(self) -> list[int]:
        return [slot for slot, request in enumerate(self.requests) if request is None]

    @property
    def occupied(self) -> list[int]:
        return [slot for slot, request in enumerate(self.requests) if request is not None]

    def assign(self, slot: int, request: int, step: int) -> None:
        self.requests[slot], self.admitted_at[slot] = request, step

    def release(self, slot: int) -> int:
        """Free a slot; the request that occupied it."""
        request, self.requests[slot] = self.requests[slot], None
        assert request is not None
        return request

    def keep(self, slots: Sequence[int]) -> None:
        """Continue with these slots only, in this order."""
        self.requests = [self.requests[slot] for slot in slots]
        self.admitted_at = [self.admitted_at[slot] for slot in slots]


class EncodeQueue:
    """Requests that wait for a slot. As many as the batch has slots are encoded at once."""

    def __init__(self, plan: BatchPlan) -> None:
        self.plan = plan
        self.next = 0  # the first request that is not encoded
        self.encoded: list[int] = []  # requests that are encoded and not admitted
        self.memory: Memory | None = None  # theirs, before the decoder has made a state of it
        self.state: DecoderState | None = None  # that state

    def __len__(self) -> int:
        """The number of requests that are not admitted."""
        return len(self.plan.requests) - self.next + len(self.encoded)

    def encode(self) -> None:
        """Encode the next requests."""
        self.encoded = list(range(self.next, min(self.next + self.plan.slots, len(self.plan.requests))))
        self.next += len(self.encoded)
        sources, task = [self.plan.requests[index].request.source for index in self.encoded], self.plan.task
        if sources[0] is not None:
            self.memory = engines.encode(task.model, task.collate(sources), half=self.plan.half)

    def state_of(self, count: int, capacity: int) -> DecoderState:
        """The decoder's state of the first `count` encoded requests, which leave the queue."""
        total, self.encoded = len(self.encoded), self.encoded[count:]
        state = self._start(total, capacity) if self.state is None else self.state
        self.memory = self.state = None
        if self.encoded:
            first, rest = torch.arange(total, device=self.plan.device).tensor_split([count])
            state, self.state = state.reorder(first), state.reorder(rest)
        return state

    def _start(self, batch: int, capacity: int) -> DecoderState:
        with autocast(self.plan.half):
            return self.plan.decoder.start(self.memory, batch=batch, capacity=capacity, beams=self.plan.beams)
