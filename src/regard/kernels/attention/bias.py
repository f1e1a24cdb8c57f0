"""Attention biases, added to the scores before the softmax: a tensor, or a function of the distance alone."""

from dataclasses import dataclass

import torch
from torch.nn import functional as F

from regard.core.shapes import Float, Tensor
from regard.kernels.attention.mask import RowRange, axis_tile, select


@dataclass(frozen=True)
class DistanceBias:
    """A bias that depends only on the distance from query to key: N + M - 1 numbers per head instead of N × M.

    `values[..., t]` is added where the key is t - (M - 1) positions after the query; the last query is aligned with the
    last key. ALiBi and T5's relative position bias are of this kind.
    """

    values: Float[Tensor, "*lead L"]

    @staticmethod
    def distances(n: int, m: int, device: torch.device | None = None) -> Tensor:
        """The signed distances, key minus query, of n queries and m keys, (n + m − 1,), on a device."""
        return torch.arange(1 - m, max(n, 1 - m), device=device)  # (L,)


Bias = Tensor | DistanceBias


def bias_values(bias: Bias) -> Tensor:
    return bias.values if isinstance(bias, DistanceBias) else bias


def with_values(bias: Bias, values: Tensor) -> Bias:
    if isinstance(bias, DistanceBias):
        return DistanceBias(values)
    return values


def selected(bias: Bias | None, axis: int, index: RowRange) -> Bias | None:
    """The bias of a selection of the batch (axis 0) or of the heads (axis 1)."""
    if bias is None:
        return None
    return with_values(bias, select(bias_values(bias), axis, index))


def tile(bias: Bias, rows: RowRange, low: int, high: int, n: int) -> Tensor:
    """The bias of these rows and keys low..high-1, broadcastable to (B, H, R, C)."""
    if not isinstance(bias, DistanceBias):
        return axis_tile(bias, rows, low, high)
    if isinstance(rows, slice):
        # Row i is values[n-1-i+low : n-1-i+high]: overlapping windows of one vector, in reverse order of rows.
        first, last, _ = rows.indices(n)
        width = high - low
        if first >= last:
            return bias.values.new_zeros(*bias.values.shape[:-1], 0, width)
        values = bias.values[..., n - last + low : n - 1 - first + high]
        windows = values.unfold(-1, width, 1)  # (*lead, R, C)
        return windows.flip(-2)
    keys = torch.arange(low, high, device=bias.values.device)
    distances = keys - rows[:, None] + (n - 1)  # (R, C)
    return bias.values[..., distances]


def add_gradient(
    gradient: Tensor,
    bias: Bias,
    scores: Float[Tensor, "B H R C"],
    rows: slice,
    low: int,
    high: int,
    n: int,
) -> None:
    """Backward of `tile`: add to `gradient`, shaped like the bias's values, given the gradients of the scores."""
    if not isinstance(bias, DistanceBias):
        part = axis_tile(gradient, rows, low, high)
        part += scores.sum_to_size(part.shape)
        return
    first, last, _ = rows.indices(n)
    r = last - first
    c = high - low
    diagonals = c + r - 1
    # Sum the diagonals: flip the rows, then skew row s to the right by s by reading rows one element shorter.
    padded = F.pad(scores.flip(-2), (0, r))  # (B, H, R, C + R)
    flat = padded.flatten(-2)[..., : r * diagonals]
    skewed = flat.reshape(*padded.shape[:-2], r, diagonals)
    part = gradient[..., n - last + low : n - 1 - first + high]
    part += skewed.sum(-2).sum_to_size(part.shape)
