"""Who may see whom: a boolean mask and a band around the diagonal, combined without ever being laid out whole."""

from dataclasses import dataclass, replace

import torch

from regard.core.shapes import Bool, Tensor

RowRange = slice | Tensor  # a run of query rows, or their indices


@dataclass(frozen=True)
class AttentionMask:
    """Which keys each query may attend to.

    Query i stands at key position i + M - N, so the last query stands at the last key (bottom-right alignment).
    It sees `behind` keys before that position and `ahead` keys after it (None: all of them),
    where `allowed` does not forbid it.
    """

    allowed: Bool[Tensor, "#B #H #N #M"] | None = None
    behind: int | None = None
    ahead: int | None = None

    @property
    def banded(self) -> bool:
        return self.behind is not None or self.ahead is not None

    def span(self, first: int, last: int, n: int, m: int) -> tuple[int, int]:
        """The run of keys outside which rows first..last-1 see nothing; empty runs come back as (low, low)."""
        low, high = 0, m
        if self.behind is not None:
            low = min(m, max(0, first + m - n - self.behind))
        if self.ahead is not None:
            high = min(m, max(0, last + m - n + self.ahead))
        return low, max(low, high)

    def tile(self, rows: RowRange, low: int, high: int, n: int, m: int, device: torch.device) -> Tensor | None:
        """The mask of these rows and keys low..high-1, broadcastable to (B, H, R, C); None: all are visible."""
        seen = None
        if self.allowed is not None:
            seen = axis_tile(self.allowed, rows, low, high)
        if self.banded:
            position = (torch.arange(n, device=device)[rows] + (m - n))[:, None]  # (R, 1)
            key = torch.arange(low, high, device=device)  # (C,)
            if self.ahead is not None:
                seen = _both(seen, key <= position + self.ahead)
            if self.behind is not None:
                seen = _both(seen, key >= position - self.behind)
        return seen

    def for_heads(self, heads: Tensor) -> "AttentionMask":
        if self.allowed is None or self.allowed.shape[1] == 1:
            return self
        return replace(self, allowed=self.allowed[:, heads])


def axis_tile(tensor: Tensor, rows: RowRange, low: int, high: int) -> Tensor:
    """Rows and keys of a (#B, #H, #N, #M) tensor, leaving axes of size one as they are."""
    if tensor.shape[-2] > 1:
        tensor = tensor[..., rows, :]
    if tensor.shape[-1] > 1:
        tensor = tensor[..., low:high]
    return tensor


def _both(first: Tensor | None, second: Tensor) -> Tensor:
    return second if first is None else first & second
