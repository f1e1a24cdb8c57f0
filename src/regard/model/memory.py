"""Memory: what an encoder passes to a decoder or a pool, the same for text and images."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from regard.core.sequence import SequenceOffsets
from regard.core.shapes import Bool, Float, Int, Tensor


@dataclass(frozen=True)
class SourceSpan:
    """The states of one source in a memory of several: `lengths` states of each sequence,
    after those before it.
    """

    lengths: Int[Tensor, " B"]
    grid: tuple[int, int] | None
    cls_tokens: int


@dataclass(frozen=True)
class Memory:
    """What an encoder hands to a decoder or a pool: states to attend to, whatever the source was.

    states       (B, S, W), one per token or image region
    mask         (B, S), False at padding
    summary      (B, W), one vector per sequence, from which a decoder without attention starts
    grid         rows and columns of the regions, for images
    cls_tokens   how many of the first states are learned tokens, not positions of the source
    spans        which states belong to which source, where there are several; not kept for the
                 slots of a search
    last         (B, W), the last state of each direction, of an encoder that reads in both: the
                 forward direction ends at the last token and the backward one at the first; for
                 pools, and not kept for the slots of a search
    """

    states: Float[Tensor, "B S W"]
    mask: Bool[Tensor, "B S"]
    summary: Float[Tensor, "B W"]
    grid: tuple[int, int] | None = None
    cls_tokens: int = 0
    spans: tuple[SourceSpan, ...] = ()
    last: Float[Tensor, "B W"] | None = None

    def reorder(self, index: Int[Tensor, " beams"]) -> "Memory":
        """The memory whose sequence i is sequence index[i] of this one."""
        return Memory(
            self.states[index], self.mask[index], self.summary[index], self.grid, self.cls_tokens
        )

    def first(self, count: int) -> "Memory":
        """A copy of the first `count` sequences."""
        states, mask, summary = (x[:count].clone() for x in (self.states, self.mask, self.summary))
        return Memory(states, mask, summary, self.grid, self.cls_tokens)

    @staticmethod
    def joined(parts: "Sequence[Memory]") -> "Memory":
        """The memories of several batches, `parts`, as that of one, padded to the longest."""
        length = max(part.states.shape[1] for part in parts)
        first = parts[0]
        padding = [length - part.states.shape[1] for part in parts]
        states = torch.cat(
            [F.pad(part.states, (0, 0, 0, more)) for part, more in zip(parts, padding, strict=True)]
        )
        mask = torch.cat(
            [F.pad(part.mask, (0, more)) for part, more in zip(parts, padding, strict=True)]
        )
        return Memory(
            states, mask, torch.cat([part.summary for part in parts]), first.grid, first.cls_tokens
        )

    def empty(self, batch: int, length: int) -> "Memory":
        """A memory (batch, length) of this dtype and device in which everything is masked."""
        new = self.states.new_zeros
        mask = new(batch, length, dtype=torch.bool)
        summary = self.summary.new_zeros(batch, self.summary.shape[1])
        return Memory(
            new(batch, length, self.states.shape[2]), mask, summary, self.grid, self.cls_tokens
        )


@dataclass(frozen=True)
class PackedMemory:
    """The memory of a packed batch."""

    states: Float[Tensor, "N W"]
    offsets: SequenceOffsets


def masked_mean(states: Float[Tensor, "B S W"], mask: Bool[Tensor, "B S"]) -> Float[Tensor, "B W"]:
    """The mean of each sequence's states; zeros for an empty sequence."""
    kept = states.masked_fill(~mask[..., None], 0.0)
    return kept.sum(1) / mask.sum(1, keepdim=True).clamp(min=1)


def last_state(states: Float[Tensor, "B S W"], mask: Bool[Tensor, "B S"]) -> Float[Tensor, "B W"]:
    """The last state of each sequence; zeros for an empty sequence."""
    positions = torch.arange(1, mask.shape[1] + 1, device=mask.device)
    # The place of the last True, from 1: a mask may have gaps, where vectors are missing.
    if mask.shape[1]:
        last = (mask * positions).amax(1)
    else:
        last = mask.sum(1)
    index = (last - 1).clamp(min=0)[:, None, None].expand(-1, 1, states.shape[2])
    return states.gather(1, index)[:, 0].masked_fill((last == 0)[:, None], 0.0)
