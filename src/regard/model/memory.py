"""What an encoder hands to a decoder or a pool. Text and images meet here: nobody after this knows which it was."""

from dataclasses import dataclass

import torch

from regard.core.sequence import SequenceOffsets
from regard.core.shapes import Bool, Float, Int, Tensor


@dataclass(frozen=True)
class Memory:
    states: Float[Tensor, "B S W"]  # one a token, or a region of an image
    mask: Bool[Tensor, "B S"]  # True where there is one
    summary: Float[Tensor, "B W"]  # all of it in one vector: what a decoder without attention starts from
    grid: tuple[int, int] | None = None  # rows and columns of the regions, for images
    units: int = 0  # how many of the first states stand for no place of the source: learned ones that saw it all

    def reorder(self, index: Int[Tensor, " beams"]) -> "Memory":
        return Memory(self.states[index], self.mask[index], self.summary[index], self.grid, self.units)

    def first(self, count: int) -> "Memory":
        """A copy of so many rows."""
        states, mask, summary = (x[:count].clone() for x in (self.states, self.mask, self.summary))
        return Memory(states, mask, summary, self.grid, self.units)

    def blank(self, batch: int, length: int) -> "Memory":
        """Of other sizes, with nothing there."""
        new = self.states.new_zeros
        mask = new(batch, length, dtype=torch.bool)
        summary = self.summary.new_zeros(batch, self.summary.shape[1])
        return Memory(new(batch, length, self.states.shape[2]), mask, summary, self.grid, self.units)


@dataclass(frozen=True)
class PackedMemory:
    """The memory of sequences laid end to end."""

    states: Float[Tensor, "N W"]
    ends: SequenceOffsets


def masked_mean(states: Float[Tensor, "B S W"], mask: Bool[Tensor, "B S"]) -> Float[Tensor, "B W"]:
    """The mean of the states that are there; zeros where none is."""
    kept = states.masked_fill(~mask[..., None], 0.0)
    return kept.sum(1) / mask.sum(1, keepdim=True).clamp(min=1)


def at_last(states: Float[Tensor, "B S W"], mask: Bool[Tensor, "B S"]) -> Float[Tensor, "B W"]:
    """The state at each sequence's own end; zeros where there is none."""
    lengths = mask.sum(1)
    index = (lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, states.shape[2])
    return states.gather(1, index)[:, 0].masked_fill((lengths == 0)[:, None], 0.0)
