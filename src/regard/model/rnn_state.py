"""The state of a recurrent decoder, and the memory as its attention reads it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from regard.core.shapes import Bool, Float, Int, Tensor
from regard.kernels.attention.spec import widened
from regard.model.interfaces import CarriedState
from regard.model.kv_cache import Slots, beam_rows, sequence_rows, write_masks, write_rows

Hidden = tuple[Float[Tensor, "layers rows W"], ...]  # one tensor, or two for an LSTM


class RnnMemory(NamedTuple):
    """A memory as the attention reads it."""

    keys: Float[Tensor, "B S D"]  # projected once
    values: Float[Tensor, "B S C"]
    mask: Bool[Tensor, "B 1 S"]


@dataclass(frozen=True)
class RnnState(CarriedState):
    """The state of a recurrent decoder, of K hypotheses for each of B sequences."""

    hidden: Hidden  # (layers, B · K, W) each
    # The input beside the token: the summary, or the last output; of width 0 if there is none.
    context: Float[Tensor, "rows feed"]
    memory: RnnMemory | None
    beams: int = 1

    def reorder(self, index: Int[Tensor, " sentences"]) -> "RnnState":
        rows = sequence_rows(index, self.beams, index.device)
        hidden = tuple(h[:, rows] for h in self.hidden)
        memory = None
        if self.memory is not None:
            memory = RnnMemory(*(x[index] for x in self.memory))
        return replace(self, hidden=hidden, context=self.context[rows], memory=memory)

    def follow(self, parents: Int[Tensor, "B K"]) -> "RnnState":
        if self.beams == 1:
            return self
        rows = beam_rows(parents)
        return replace(
            self, hidden=tuple(h[:, rows] for h in self.hidden), context=self.context[rows]
        )

    def admit(self, slots: Slots, fresh: "RnnState") -> "RnnState":
        rows = sequence_rows(slots, self.beams, self.context.device)
        memory = self.memory
        if memory is not None and fresh.memory is not None:
            keys, values = (
                write_rows(x, slots, new)
                for x, new in zip(memory[:2], fresh.memory[:2], strict=True)
            )
            memory = RnnMemory(keys, values, write_masks(memory.mask, slots, fresh.memory.mask))
        copies = self.beams // fresh.beams  # of the only hypothesis, after a prompt
        new_hidden = (new.repeat_interleave(copies, 1) for new in fresh.hidden)
        hidden = tuple(
            h.index_copy(1, rows, new) for h, new in zip(self.hidden, new_hidden, strict=True)
        )
        context = self.context.index_copy(0, rows, fresh.context.repeat_interleave(copies, 0))
        return replace(self, hidden=hidden, context=context, memory=memory)

    def first_hypotheses(self) -> "RnnState":
        """The state of the first hypothesis of each sequence alone."""
        hidden = tuple(h[:, :: self.beams].contiguous() for h in self.hidden)
        return replace(self, hidden=hidden, context=self.context[:: self.beams], beams=1)

    def widened(self) -> "RnnState":
        """The same state, half-precision tensors in float32."""
        memory = self.memory
        hidden = tuple(widened(h) for h in self.hidden)
        if memory is not None:
            memory = RnnMemory(widened(memory.keys), widened(memory.values), memory.mask)
        return replace(self, hidden=hidden, context=widened(self.context), memory=memory)

    def detached(self) -> "RnnState":
        return replace(
            self, hidden=tuple(h.detach() for h in self.hidden), context=self.context.detach()
        )

    def tensors(self) -> dict[str, Tensor]:
        hidden = {f"hidden.{i}": h.transpose(0, 1) for i, h in enumerate(self.hidden)}
        return {**hidden, "context": self.context}

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> "RnnState":
        hidden = tuple(
            tensors[f"hidden.{i}"].transpose(0, 1).contiguous() for i in range(len(self.hidden))
        )
        return replace(self, hidden=hidden, context=tensors["context"])
