"""The state of a search's slots: a decoder and its state, a search strategy with the tokens, and their steps."""

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Generic, TypeVar

import torch

from regard.core.shapes import Int, Tensor
from regard.generation.choose.interfaces import SearchStrategy
from regard.generation.engines.base import EngineDecoder
from regard.generation.engines.loop import LoopBounds
from regard.model.interfaces import DecoderState
from regard.model.kv_cache import Slots
from regard.model.memory import Memory

StrategyType = TypeVar("StrategyType", bound=SearchStrategy)


class DecodeBuffers(Generic[StrategyType]):
    """A decoder, its state, a search strategy with the generated tokens, and the last tokens.

    fused   whether the decoder carries out all options of the search in steps of its own
    table   the parameters of admitted requests
    """

    state: DecoderState | None
    decoder: EngineDecoder | None

    def __init__(
        self,
        decoder: EngineDecoder,
        strategy: StrategyType,
        table: Int[Tensor, "B columns"],
        state: DecoderState | None = None,
        *,
        fused: bool = False,
    ) -> None:
        self.decoder = decoder
        self.strategy = strategy
        self.state = state
        self.table = table
        self.fused = fused
        self.tokens = torch.zeros_like(strategy.generated.tokens[:, :, 0])

    def begin(
        self,
        write: Callable[[], None],
        fill: Callable[[Memory | None], None],
        count: int,
        memory: Memory | None,
    ) -> None:
        """Reset a static state to before the first step, write requests, and fill `count` slots with this memory."""
        raise NotImplementedError("only static buffers begin anew")

    def copy_from(self, other: "DecodeBuffers[StrategyType]") -> None:
        """Copy the content of other buffers of the same size."""
        raise NotImplementedError("only static buffers are kept")

    def prefill(self, count: int) -> bool:
        """Read the first `count` tokens of every prompt at once; False: nothing has changed, take steps."""
        assert self.decoder is not None
        assert self.state is not None
        prompts = self.strategy.prompts(count)
        if prompts is None:
            return False
        state = self.decoder.prefill(
            torch.cat((self.tokens[:, :1], prompts[:, :-1]), 1), self.state
        )
        if state is None:
            return False
        self.state = state
        self.tokens = prompts[:, -1:].repeat(1, self.tokens.shape[1])
        self.strategy.skip(slice(len(prompts)), prompts)
        return True

    def prefill_slot(self, slot: int, count: int) -> bool:
        """As `prefill`, of one slot, whose sequence was admitted last and has not stepped."""
        assert self.decoder is not None
        prompts = self.strategy.prompts(count) if self.decoder.admits else None
        if prompts is None:
            return False
        slots = torch.tensor([slot], device=self.tokens.device)
        fresh = self.decoder.start(None, batch=1, capacity=count)
        prompt = prompts[slots]
        filled = self.decoder.prefill(torch.cat((self.tokens[slots, :1], prompt[:, :-1]), 1), fresh)
        if filled is None:
            return False
        self.admit(slots, filled)
        self.tokens[slots] = prompt[:, -1:]
        self.strategy.skip(slots, prompt)
        return True

    def steps_until(self, bounds: LoopBounds) -> int:
        """Take steps within these bounds: how many. One, where the decoder does not take them by itself."""
        assert bounds.steps > 0
        assert self.decoder is not None
        assert self.state is not None
        room = self.strategy.reserve()
        if self.fused:
            self.tokens = self.tokens.contiguous()
            bounds = replace(bounds, steps=min(bounds.steps, room))
            searched = self.decoder.search(self.tokens, self.state, self.strategy.loop(), bounds)
            if searched is not None:
                taken, self.state = searched
                return taken
        self.steps(1)
        return 1

    def steps(self, count: int) -> None:
        """Take `count` steps of every hypothesis, without waiting for the device."""
        assert count > 0
        for _ in range(count):
            self.strategy.reserve()
            self.state, self.tokens = self._step()

    def _step(self) -> tuple[DecoderState, Int[Tensor, "B K"]]:
        assert self.decoder is not None
        assert self.state is not None
        logits, state = self.decoder.step(self.tokens.flatten(), self.state)
        tokens, parents = self.strategy.advance(logits.view(*self.tokens.shape, -1))
        return state if parents is None else state.follow(parents), tokens

    def admit(self, slots: Slots, fresh: DecoderState) -> None:
        """Put the states of new sequences into these slots."""
        assert self.state is not None
        self.state = self.state.admit(slots, fresh)

    def keep(self, slots: Int[Tensor, " n"]) -> "DecodeBuffers[StrategyType]":
        """Buffers with these slots only."""
        assert self.state is not None
        strategy = copy(self.strategy)
        strategy.keep(slots)
        kept = self._like(strategy, self.table[slots], self.state.reorder(slots))
        kept.tokens = self.tokens[slots]
        return kept

    def _like(
        self, strategy: StrategyType, table: Int[Tensor, "B columns"], state: DecoderState
    ) -> "DecodeBuffers[StrategyType]":
        """Buffers of the same kind."""
        assert self.decoder is not None
        return DecodeBuffers(self.decoder, strategy, table, state, fused=self.fused)
