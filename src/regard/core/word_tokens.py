"""Batches of sentences: tokens of which each belongs to a word, for models with an output for each word."""

from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from regard.core.sequence import Tokens
from regard.core.shapes import Bool, Float, Int, Tensor

# Characters are read by their code point. Beyond this many they share ids, which only scripts of thousands of
# characters do: the letters of any alphabet lie closer together.
CHARACTER_IDS = 4096
UNKNOWN = 3  # the unknown token of the tokenizers that Regard trains


@dataclass(frozen=True)
class WordTokens(Tokens):
    """A batch of token sequences in which words have one token or several: their pieces.

    Tokens around a sentence, such as its end token, belong to no word.

    starts         (B, W), the position of the first piece of each word; 0 at padding
    ends           (B, W), the position after the last piece; 0 at padding
    word_lengths   (B,), words of each sequence
    characters     (B, W, C), the characters of each word, 0 at padding; None where they are not read
    """

    starts: Int[Tensor, "B W"] = None  # type: ignore[assignment]
    ends: Int[Tensor, "B W"] = None  # type: ignore[assignment]
    word_lengths: Int[Tensor, " B"] = None  # type: ignore[assignment]
    characters: Int[Tensor, "B W C"] | None = None

    def to(self, device: torch.device | str) -> "WordTokens":
        """The batch on another `device`."""
        moved: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, Tensor):
                moved[each.name] = value.to(device, non_blocking=True)
        # Lengths are read on the host again and again: a copy stays there.
        moved["host_copy"] = self.host_copy
        if self.lengths.device.type == "cpu":
            moved["host_copy"] = self.lengths
        return replace(self, **moved)

    @property
    def word_mask(self) -> Bool[Tensor, "B W"]:
        """True at words, False at padding."""
        positions = torch.arange(self.starts.shape[1], device=self.starts.device)
        return positions < self.word_lengths[:, None]

    def first_pieces(
        self, states: Float[Tensor, "B S D"], *, before: int = 0
    ) -> Float[Tensor, "B W D"]:
        """The state at the first piece of each word; `before` states precede that of the first token."""
        batch, longest = states.shape[:2]
        sentence = torch.arange(batch, device=states.device)[:, None]
        rows = sentence * longest + self.starts + before  # (B, W)
        # Whole rows are copied faster than the single numbers that `gather` would be asked for.
        chosen = states.flatten(0, 1).index_select(0, rows.flatten())
        return chosen.view(*rows.shape, states.shape[2])

    def mean_of_pieces(
        self, states: Float[Tensor, "B S D"], *, before: int = 0
    ) -> Float[Tensor, "B W D"]:
        """The mean of the states at the pieces of each word."""
        counts = self.ends - self.starts  # (B, W)
        longest = 0
        if counts.numel():
            longest = int(counts.max())
        summed = states.new_zeros(*counts.shape, states.shape[2])
        # Piece after piece, in one order: sums that a GPU scatters differ from run to run.
        for piece in range(longest):
            inside = (piece < counts)[..., None]  # (B, W, 1)
            index = (self.starts + piece + before).clamp(max=states.shape[1] - 1)  # (B, W)
            pieces = states.gather(1, index[..., None].expand_as(summed))  # (B, W, D)
            summed = summed + pieces.masked_fill(~inside, 0.0)
        divisors = counts.clamp(min=1)[..., None]  # (B, W, 1)
        return summed / divisors.to(states.dtype)
