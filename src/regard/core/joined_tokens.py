"""Batches of several texts as one sequence, with a separator between them: pairs of texts."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from regard.core.sequence import Tokens
from regard.core.shapes import Int, Tensor


@dataclass(frozen=True)
class JoinedTokens(Tokens):
    """A batch of sequences, each of which is the texts of several sources, one after the other.

    Each text ends with its end token, or with the last token of its tokenizer's template, which separates them.

    types   (B, S), the number of the source of each token, from 0; 0 at padding
    """

    types: Int[Tensor, "B S"] = None  # type: ignore[assignment]

    @staticmethod
    def join(parts: Sequence[Tokens]) -> "JoinedTokens":
        """The sequences of all sources, one after the other."""
        lengths = torch.stack([part.lengths for part in parts]).sum(0)  # (B,)
        host = torch.stack([part.host_lengths for part in parts]).sum(0)
        ids = parts[0].ids.new_zeros(len(lengths), int(host.max()))
        types = torch.zeros_like(ids)
        before = torch.zeros_like(lengths)
        for number, part in enumerate(parts):
            rows, columns = part.mask.nonzero(as_tuple=True)
            places = before[rows] + columns
            ids[rows, places] = part.ids[rows, columns]
            types[rows, places] = number
            before = before + part.lengths
        host_copy = None if lengths.device.type == "cpu" else host
        return JoinedTokens(ids, lengths, host_copy, types)

    def parts(self, count: int) -> tuple[Tokens, ...]:
        """The texts of each source, for this number of sources."""
        rows = range(len(self.ids))
        ids = [self.row(row) for row in rows]
        types = [self.types[row, : len(ids[row])].tolist() for row in rows]
        found = []
        for number in range(count):
            texts = []
            for row in rows:
                pairs = zip(ids[row], types[row], strict=True)
                texts.append([token for token, kind in pairs if kind == number])
            found.append(Tokens.of(texts, device=self.ids.device))
        return tuple(found)

    def to(self, device: torch.device | str) -> "JoinedTokens":
        """The batch on another `device`."""
        moved = super().to(device)
        types = self.types.to(device, non_blocking=True)
        return JoinedTokens(moved.ids, moved.lengths, moved.host_copy, types)
