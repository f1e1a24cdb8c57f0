"""A decoder that states the position of its queries at each step, for interceptors of attention."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from regard.core.shapes import Float, Int, Tensor
from regard.generation.engines.base import EngineDecoder
from regard.model.capture import at_position
from regard.model.interfaces import DecoderState
from regard.model.kv_cache import Slots
from regard.model.memory import Memory


@dataclass
class PositionedState(DecoderState):
    """The state of the decoder, and the number of tokens that each sequence has read."""

    inner: DecoderState
    position: Int[Tensor, " B"]

    def reorder(self, index: Int[Tensor, " n"]) -> "PositionedState":
        return PositionedState(self.inner.reorder(index), self.position[index])

    def follow(self, parents: Int[Tensor, "B K"]) -> "PositionedState":
        return PositionedState(self.inner.follow(parents), self.position)

    def release(self, slots: Sequence[int]) -> None:
        self.inner.release(slots)

    def admit(self, slots: Slots, fresh: "PositionedState") -> "PositionedState":
        position = self.position.clone()
        position[slots] = fresh.position
        return PositionedState(self.inner.admit(slots, fresh.inner), position)


class PositionedDecoder(EngineDecoder):
    """The decoder, each of whose steps runs within `at_position`."""

    def __init__(self, decoder: EngineDecoder) -> None:
        assert not decoder.static
        self.decoder = decoder

    def start(
        self, memory: Memory | None, *, batch: int, capacity: int, beams: int = 1
    ) -> PositionedState:
        inner = self.decoder.start(memory, batch=batch, capacity=capacity, beams=beams)
        device = None if memory is None else memory.states.device
        return PositionedState(inner, torch.zeros(batch, dtype=torch.int64, device=device))

    def step(
        self, tokens: Int[Tensor, " BK"], state: DecoderState
    ) -> tuple[Float[Tensor, "BK V"], PositionedState]:
        assert isinstance(state, PositionedState)
        position = state.position.to(tokens.device)
        with at_position(position):
            logits, inner = self.decoder.step(tokens, state.inner)
        return logits, PositionedState(inner, position + 1)
