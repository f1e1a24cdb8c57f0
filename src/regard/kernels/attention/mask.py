"""Attention masks: a boolean tensor and a band around the diagonal, combined without materialising (N, M)."""

from dataclasses import dataclass, replace

import torch

from regard.core.shapes import Bool, Tensor

RowRange = slice | Tensor  # consecutive query rows, or row indices


@dataclass(frozen=True)
class AttentionMask:
    """Which keys each query may attend to.

    Query i has key position i + M - N: the last query is aligned with the last key (bottom-right alignment). It attends
    to `behind` keys before that position and `ahead` keys after it (None: all), except where `allowed` is False.
    """

    allowed: Bool[Tensor, "#B #H #N #M"] | None = None
    behind: int | None = None
    ahead: int | None = None

    @property
    def banded(self) -> bool:
        return self.behind is not None or self.ahead is not None

    def span(self, first: int, last: int, n: int, m: int) -> tuple[int, int]:
        """The key range (low, high) outside which the band masks every key of rows first..last-1; may be empty."""
        low = 0
        high = m
        if self.behind is not None:
            low = min(m, max(0, first + m - n - self.behind))
        if self.ahead is not None:
            high = min(m, max(0, last + m - n + self.ahead))
        return low, max(low, high)

    def tile(
        self, rows: RowRange, low: int, high: int, n: int, m: int, device: torch.device
    ) -> Tensor | None:
        """The mask of these rows and keys low..high-1, broadcastable to (B, H, R, C); None: nothing is masked."""
        visible = None
        if self.allowed is not None:
            visible = axis_tile(self.allowed, rows, low, high)
        if self.banded:
            position = (torch.arange(n, device=device)[rows] + (m - n))[:, None]  # (R, 1)
            key = torch.arange(low, high, device=device)  # (C,)
            if self.ahead is not None:
                visible = _and(visible, key <= position + self.ahead)
            if self.behind is not None:
                visible = _and(visible, key >= position - self.behind)
        return visible

    def select(self, axis: int, index: RowRange) -> "AttentionMask":
        """The mask of a selection of the batch (axis 0) or of the heads (axis 1)."""
        if self.allowed is None:
            return self
        return replace(self, allowed=select(self.allowed, axis, index))


def select(tensor: Tensor, axis: int, index: RowRange) -> Tensor:
    """A selection along an axis, unless it has size one."""
    if tensor.shape[axis] == 1:
        return tensor
    return tensor[(slice(None),) * axis + (index,)]


def axis_tile(tensor: Tensor, rows: RowRange, low: int, high: int) -> Tensor:
    """Rows and keys low..high-1 of a (#B, #H, #N, #M) tensor; axes of size one are left alone."""
    last = tensor.dim() - 1
    of_rows = select(tensor, last - 1, rows)
    return select(of_rows, last, slice(low, high))


def _and(first: Tensor | None, second: Tensor) -> Tensor:
    if first is None:
        return second
    return first & second
