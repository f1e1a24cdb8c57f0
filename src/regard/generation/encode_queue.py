"""Requests of a search that wait for a slot, and what is encoded of them."""

from collections.abc import Sequence

import torch

from regard.generation.batch_plan import BatchPlan, PlannedRequest
from regard.generation.engines import selection
from regard.model.interfaces import DecoderState
from regard.model.memory import Memory

Requests = Sequence[PlannedRequest] | dict[int, PlannedRequest]  # by index


class EncodeQueue:
    """Requests that wait for a slot. As many as the batch has slots are encoded at once.

    each_alone   whether states must not depend on what is encoded beside them, bit for bit
    """

    def __init__(self, plan: BatchPlan, requests: Requests, *, each_alone: bool = False) -> None:
        self.plan, self.requests, self.each_alone = plan, requests, each_alone
        self.next = 0  # the first request that is not encoded
        self.encoded: list[int] = []  # requests that are encoded and not admitted
        self.memory: Memory | None = None  # theirs, before the decoder has made a state of it
        self.state: DecoderState | None = None  # that state

    def __len__(self) -> int:
        """The number of requests that are not admitted."""
        return len(self.requests) - self.next + len(self.encoded)

    def encode(self) -> None:
        """Encode the next requests."""
        most = (
            self.plan.slots if self.plan.limits.queued else len(self.requests)
        )  # the slots depend on the engine
        chosen = list(range(self.next, min(self.next + most, len(self.requests))))
        self.next += len(chosen)
        self.encode_these(chosen)

    def encode_these(self, indices: list[int]) -> None:
        """Encode these requests, which are next in the queue."""
        self.encoded = indices
        sources, task = (
            [self.requests[index].request.source for index in self.encoded],
            self.plan.task,
        )
        if sources[0] is None:
            return
        int8 = task.config.quantization == "int8"
        if self.each_alone:
            self.memory = selection.encode_each(task.model, sources, task.collate, int8=int8)
        else:
            self.memory = selection.encode(
                task.model, task.collate(sources), half=self.plan.half, int8=int8
            )

    def take_memory(self) -> Memory | None:
        """The memory of all encoded requests, which leave the queue."""
        assert self.state is None
        memory, self.memory, self.encoded = self.memory, None, []
        return memory

    def state_of(self, count: int, capacity: int) -> DecoderState:
        """The decoder's state of the first `count` encoded requests, which leave the queue."""
        total, waiting, self.encoded = len(self.encoded), self.encoded, self.encoded[count:]
        state = self.state
        if state is None:
            state = self.plan.start(
                self.memory, total, capacity, [self.requests[index] for index in waiting]
            )
        self.memory = self.state = None
        if self.encoded:
            first, rest = torch.arange(total, device=self.plan.device).tensor_split([count])
            state, self.state = state.reorder(first), state.reorder(rest)
        return state
