"""Requests of a search that wait for a slot, and what is encoded of them."""

from collections import deque
from collections.abc import Iterable, Mapping

import torch

from regard.generation.batch_plan import BatchPlan
from regard.generation.engines import selection
from regard.generation.request import GenerationRequest
from regard.model.interfaces import DecoderState
from regard.model.memory import Memory


class EncodeQueue:
    """Requests that wait for a slot. As many as the batch has slots are encoded at once.

    each_alone   whether states must not depend on what is encoded beside them, bit for bit
    """

    def __init__(
        self,
        plan: BatchPlan,
        requests: Mapping[int, GenerationRequest],
        *,
        each_alone: bool = False,
    ) -> None:
        self.plan = plan
        self.requests = requests  # by number
        self.each_alone = each_alone
        self.waiting = deque[int]()  # requests that are not encoded
        self.encoded: list[int] = []  # requests that are encoded and not admitted
        self.memory: Memory | None = None  # theirs, before the decoder has made a state of it
        self.state: DecoderState | None = None  # that state

    def __len__(self) -> int:
        """The number of requests that are not admitted."""
        return len(self.waiting) + len(self.encoded)

    def add(self, numbers: Iterable[int]) -> None:
        """Requests that are encoded later."""
        self.waiting.extend(numbers)

    def begin_again(self, numbers: Iterable[int]) -> None:
        """Encode these requests anew, which are all that have not ended."""
        self.encoded = []
        self.memory = None
        self.state = None
        self.waiting = deque(numbers)

    def encode(self, most: int) -> None:
        """Encode the next requests, `most` at most."""
        self.encode_these([self.waiting.popleft() for _ in range(min(most, len(self.waiting)))])

    def encode_these(self, numbers: list[int]) -> None:
        """Encode these requests, which are next in the queue."""
        self.encoded = numbers
        sources = [self.requests[number].source for number in numbers]
        task = self.plan.task
        if sources[0] is None:
            return
        int8 = task.config.quantization == "int8"
        constant = task.constant_weights
        if self.each_alone:
            self.memory = selection.encode_each(
                task.model, sources, task.collate, int8=int8, constant_weights=constant
            )
        else:
            self.memory = selection.encode(
                task.model,
                task.collate(sources),
                half=self.plan.half,
                int8=int8,
                constant_weights=constant,
            )

    def take_memory(self) -> Memory | None:
        """The memory of all encoded requests, which leave the queue."""
        assert self.state is None
        memory = self.memory
        self.memory = None
        self.encoded = []
        return memory

    def state_of(self, count: int, capacity: int) -> DecoderState:
        """The decoder's state of the first `count` encoded requests, which leave the queue."""
        total = len(self.encoded)
        waiting = self.encoded
        self.encoded = self.encoded[count:]
        state = self.state
        if state is None:
            state = self.plan.start(
                self.memory, total, capacity, [self.requests[index] for index in waiting]
            )
        self.memory = self.state = None
        if self.encoded:
            first, rest = torch.arange(total, device=self.plan.device).tensor_split([count])
            admitted = state.reorder(first)
            self.state = state.reorder(rest)
            return admitted
        return state
