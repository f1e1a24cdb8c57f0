"""A decoder that sees a window of the text only: generation beyond the length of the training sequences."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from regard.core.shapes import Float, Int, Tensor
from regard.generation.engines.base import EngineDecoder
from regard.model.interfaces import DecoderState
from regard.model.kv_cache import Slots
from regard.model.memory import Memory
from regard.model.seq2seq import Seq2Seq


@dataclass
class SlidingWindowState(DecoderState):
    """The state of the decoder, and the tokens that it has read since the window began."""

    inner: DecoderState
    tokens: Int[Tensor, "B K T"]

    def reorder(self, index: Int[Tensor, " n"]) -> "SlidingWindowState":
        return SlidingWindowState(self.inner.reorder(index), self.tokens[index])

    def follow(self, parents: Int[Tensor, "B K"]) -> "SlidingWindowState":
        tokens = self.tokens.gather(1, parents[..., None].expand_as(self.tokens))
        return SlidingWindowState(self.inner.follow(parents), tokens)

    def release(self, slots: Sequence[int]) -> None:
        self.inner.release(slots)

    def admit(self, slots: Slots, fresh: "SlidingWindowState") -> "SlidingWindowState":
        raise NotImplementedError(
            "the windows of a batch slide together: all of its requests begin at once"
        )


class SlidingWindowDecoder(EngineDecoder):
    """The decoder of a language model. When its window is full, it reads the second half of it again, as a new text.

    So it reads at most `window` tokens at positions that it has learned, and its logits equal those of a forward pass
    over the tokens since the window began. A token is read twice at most.
    """

    admits = False

    def __init__(self, decoder: EngineDecoder, window: int) -> None:
        assert not decoder.static
        self.decoder = decoder
        self.window = window

    def start(
        self, memory: Memory | None, *, batch: int, capacity: int, beams: int = 1
    ) -> SlidingWindowState:
        inner = self.decoder.start(
            memory, batch=batch, capacity=min(capacity, self.window), beams=beams
        )
        return SlidingWindowState(inner, torch.empty(batch, beams, 0, dtype=torch.int64))

    def step(
        self, tokens: Int[Tensor, " BK"], state: DecoderState
    ) -> tuple[Float[Tensor, "BK V"], SlidingWindowState]:
        assert isinstance(state, SlidingWindowState)
        inner = state.inner
        read = state.tokens.to(tokens.device)
        batch, beams, length = read.shape
        if length == self.window:
            read = read[:, :, length - length // 2 :]
            inner = self._read(
                read, self.decoder.start(None, batch=batch, capacity=self.window, beams=beams)
            )
        logits, inner = self.decoder.step(tokens, inner)
        return logits, SlidingWindowState(inner, torch.cat((read, tokens.view(batch, beams, 1)), 2))

    def _read(self, tokens: Int[Tensor, "B K T"], state: DecoderState) -> DecoderState:
        """The state after these tokens."""
        filled = self.decoder.prefill(tokens[:, 0], state) if tokens.shape[1] == 1 else None
        if filled is not None:
            return filled
        for column in tokens.unbind(2):
            _, state = self.decoder.step(column.flatten(), state)
        return state

    def prefill(self, tokens: Int[Tensor, "B T"], state: DecoderState) -> SlidingWindowState | None:
        assert isinstance(state, SlidingWindowState)
        length = tokens.shape[1]
        half = self.window // 2
        if state.tokens.shape[2]:
            return None
        if length > self.window:  # since the last time that the window was full
            length = half + 1 + (length - self.window - 1) % (self.window - half)
        read = tokens[:, -length:]
        inner = self.decoder.prefill(read, state.inner)
        return (
            None
            if inner is None
            else SlidingWindowState(inner, read[:, None].repeat(1, state.tokens.shape[1], 1))
        )

    def refresh(self, model: Seq2Seq) -> bool:
        return self.decoder.refresh(model)
