"""Decoding with a vocabulary shortlist: each sequence of a batch has candidates, and the other tokens logits of −∞."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from regard.core.shapes import Bool, Float, Int, Tensor
from regard.generation.engines.base import EngineDecoder
from regard.generation.engines.loop import Candidates, LoopBounds, SearchLoop
from regard.model.interfaces import DecoderState
from regard.model.kv_cache import Slots
from regard.model.memory import Memory
from regard.model.seq2seq import Seq2Seq


@dataclass(frozen=True)
class ShortlistState(DecoderState):
    """The state of a decoder, and the candidates of each of its sequences."""

    state: DecoderState
    candidates: Candidates

    @staticmethod
    def of(state: DecoderState, allowed: Bool[Tensor, "B V"]) -> "ShortlistState":
        return ShortlistState(state, Candidates(allowed))

    def reorder(self, index: Int[Tensor, " n"]) -> "ShortlistState":
        return ShortlistState.of(self.state.reorder(index), self.candidates.allowed[index])

    def follow(self, parents: Int[Tensor, "B K"]) -> "ShortlistState":
        return ShortlistState(self.state.follow(parents), self.candidates)

    def release(self, slots: Sequence[int]) -> None:
        self.state.release(slots)

    def admit(self, slots: Slots, fresh: "ShortlistState") -> "ShortlistState":
        allowed = self.candidates.allowed.clone()
        allowed[slots] = fresh.candidates.allowed
        return ShortlistState.of(self.state.admit(slots, fresh.state), allowed)


class ShortlistDecoder(EngineDecoder):
    """The decoder of an engine, whose sequences generate their candidates only.

    A compiled loop computes the logits of the candidates of the whole batch and no others. An output does not depend on
    the batch: the log-probabilities of a sequence are normalized over its own candidates.
    """

    def __init__(self, decoder: EngineDecoder) -> None:
        self.decoder = decoder
        self.compiled = decoder.compiled
        self.fused = decoder.fused
        self.max_beams = decoder.max_beams

    def start(
        self, memory: Memory | None, *, batch: int, capacity: int, beams: int = 1
    ) -> DecoderState:
        """The state of the decoder, to be wrapped with candidates by `ShortlistState.of`."""
        return self.decoder.start(memory, batch=batch, capacity=capacity, beams=beams)

    def step(
        self, tokens: Int[Tensor, " BK"], state: DecoderState
    ) -> tuple[Float[Tensor, "BK V"], ShortlistState]:
        assert isinstance(state, ShortlistState)
        logits, inner = self.decoder.step(tokens, state.state)
        excluded = ~state.candidates.allowed[:, None]
        logits = (
            logits.view(len(excluded), -1, logits.shape[-1])
            .masked_fill(excluded, -torch.inf)
            .flatten(0, 1)
        )
        return logits, ShortlistState(inner, state.candidates)

    def search(
        self,
        tokens: Int[Tensor, "B K"],
        state: DecoderState,
        loop: SearchLoop,
        bounds: LoopBounds,
        candidates: Candidates | None = None,
    ) -> tuple[int, DecoderState] | None:
        assert isinstance(state, ShortlistState)
        assert candidates is None  # they are those of the state
        found = self.decoder.search(tokens, state.state, loop, bounds, state.candidates)
        return None if found is None else (found[0], ShortlistState(found[1], state.candidates))

    def refresh(self, model: Seq2Seq) -> bool:
        return self.decoder.refresh(model)
