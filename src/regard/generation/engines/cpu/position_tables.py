"""What a compiled step reads at each position: vectors that are added, rotations, and biases of distances."""

from abc import ABC, abstractmethod
from weakref import ref

import torch

from regard.core.shapes import Float, Tensor
from regard.model.positions import Add, PositionBias, PositionEncoding, Rotary

KEPT_ROWS = 4096  # of a table that stays when no search uses it


class GrownTable(ABC):
    """A row of numbers for each position, grown as needed. A long one lives as long as a search refers to it."""

    def __init__(self) -> None:
        self.table: Tensor | None = None
        self.long: ref[Tensor] | None = None

    def of(self, count: int) -> Float[Tensor, "positions W"]:
        """At least `count` rows. Other threads may replace them: keep a reference."""
        table = self.table
        if table is not None and len(table) >= count:
            return table
        table = None if self.long is None else self.long()
        if table is not None and len(table) >= count:
            return table
        size = 1 << (count - 1).bit_length()
        table = self.rows(count, size).detach().contiguous()
        if size <= KEPT_ROWS:
            self.table = table
        else:
            self.long = ref(table)
        return table

    @abstractmethod
    def rows(self, needed: int, count: int) -> Float[Tensor, "count W"]:
        """The first `count` rows, of which `needed` are read."""


class PositionTable(GrownTable):
    """Vectors that are added to the embeddings."""

    def __init__(self, encoding: Add, *, clamp: bool = False) -> None:
        super().__init__()
        self.encoding = encoding
        self.clamp = clamp  # whether positions beyond a learned table repeat its last instead of being refused

    def rows(self, needed: int, count: int) -> Float[Tensor, "count W"]:
        encoding: PositionEncoding = self.encoding.positions
        if not self.clamp:
            self.encoding(torch.zeros(1, encoding.dim), needed - 1)  # raises beyond a learned table
            if encoding.limit is not None:
                # No row beyond it, so that a longer input comes here again and is refused.
                count = min(count, encoding.limit)
        positions = torch.arange(count)
        found: Tensor = encoding(
            positions if encoding.limit is None else positions.clamp(max=encoding.limit - 1)
        )
        return found


class RotationTable(GrownTable):
    """Cosines and sines by which rotary positions rotate the halves of a head."""

    def __init__(self, rotary: Rotary) -> None:
        super().__init__()
        self.rotary = rotary

    def rows(self, needed: int, count: int) -> Float[Tensor, "count W"]:
        half = self.rotary.dim // 2
        one = torch.cat((torch.ones(half), torch.zeros(half))).expand(count, -1)
        return self.rotary(one, torch.arange(count))  # type: ignore[no-any-return]


class DistanceTable(GrownTable):
    """Of each distance from a query back to a key, what is added to the score of each head."""

    def __init__(self, bias: PositionBias) -> None:
        super().__init__()
        self.bias = bias

    def rows(self, needed: int, count: int) -> Float[Tensor, "count W"]:
        values: Tensor = self.bias(1, count).values  # (H, count): of the farthest key first
        return values.flip(-1).T
