"""Sequences of tokens, as data makes them and models take them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from regard.errors import InvalidArgument
from regard.shapes import Bool, Int, Tensor


@dataclass(frozen=True)
class Tokens:
    """A batch of sequences, padded on the right to one length. What stands in the padding is never looked at."""

    ids: Int[Tensor, "B S"]
    lengths: Int[Tensor, " B"]

    @staticmethod
    def of(rows: Sequence[Sequence[int]], *, device: torch.device | str = "cpu") -> "Tokens":
        """From lists of different lengths."""
        if not rows:
            raise InvalidArgument("rows", wanted="at least one sequence", got="none", remedy="Give a list of lists.")
        longest = max(len(row) for row in rows)
        ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], dtype=torch.long, device=device)
        lengths = torch.tensor([len(row) for row in rows], device=device)
        return Tokens(ids.reshape(len(rows), longest), lengths)

    @property
    def mask(self) -> Bool[Tensor, "B S"]:
        """True where there is a token."""
        return torch.arange(self.ids.shape[1], device=self.ids.device) < self.lengths[:, None]
