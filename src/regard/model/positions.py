"""Positions: what tells attention, which sees a set, that its input is a sequence.

Absolute positions are encoded and joined to the input (`Sinusoidal` or `Learned`, through `Add` or `Concatenate`);
rotary ones turn queries and keys; relative ones are a bias on the scores (`Alibi`, `RelativeBias`).
"""

from math import log

import torch
from torch import nn

from regard.core.errors import InvalidArgument
from regard.core.sequence import SequenceOffsets
from regard.core.shapes import Float, Int, Tensor
from regard.kernels.attention.bias import DistanceBias

# Where a sequence, or each of a batch, begins; or where sequences lie end to end.
Start = int | Int[Tensor, " B"] | SequenceOffsets


class Sinusoidal(nn.Module):
    """Sines and cosines of wavelengths from 2π to 2π · base; no parameters and no longest sequence.

    https://arxiv.org/abs/1706.03762
    """

    limit = None

    def __init__(self, dim: int, base: float = 10_000.0) -> None:
        super().__init__()
        if dim < 2 or dim % 2:
            raise InvalidArgument(
                "width", wanted="an even number", got=str(dim), remedy="Sines and cosines come in pairs."
            )
        self.dim, self.base = dim, base

    def forward(self, positions: Int[Tensor, "*lead S"]) -> Float[Tensor, "*lead S W"]:
        angle = _angles(positions, self.dim, self.base)  # (..., S, W / 2)
        return torch.cat((angle.sin(), angle.cos()), -1)


class Learned(nn.Module):
    """A table of vectors, one a position, as long as the longest sequence it will ever see."""

    def __init__(self, dim: int, limit: int) -> None:
        super().__init__()
        self.dim, self.limit = dim, limit
        self.table = nn.Parameter(torch.randn(limit, dim) * 0.02)

    def forward(self, positions: Int[Tensor, "*lead S"]) -> Float[Tensor, "*lead S W"]:
        return nn.functional.embedding(positions, self.table)


class SinusoidalGrid(nn.Module):
    """Places in an image: half of the width tells the row, half the column, as `Sinusoidal` tells a position."""

    def __init__(self, dim: int, base: float = 10_000.0) -> None:
        super().__init__()
        if dim < 4 or dim % 4:
            raise InvalidArgument(
                "width", wanted="a multiple of 4", got=str(dim), remedy="Rows and columns get sines and cosines each."
            )
        self.dim = dim
        self.axis = Sinusoidal(dim // 2, base)

    def forward(self, rows: int, columns: int, device: torch.device | None = None) -> Float[Tensor, "S W"]:
        down = self.axis(torch.arange(rows, device=device))[:, None].expand(-1, columns, -1)
        across = self.axis(torch.arange(columns, device=device))[None].expand(rows, -1, -1)
        return torch.cat((down, across), -1).flatten(0, 1)  # (rows · columns, W)


class Add(nn.Module):
    """The input plus the encoding of its positions; widths must agree."""

    def __init__(self, positions: Sinusoidal | Learned) -> None:
        super().__init__()
        self.positions = positions

    def out_dim(self, dim: int) -> int:
        return dim

    def forward(self, x: Float[Tensor, "*lead S W"], start: Start = 0) -> Float[Tensor, "*lead S W"]:
        if x.shape[-1] != self.positions.dim:
            raise InvalidArgument(
                "x",
                wanted=f"width {self.positions.dim}, that of the positions added to it",
                got=f"width {x.shape[-1]} in shape {tuple(x.shape)}",
                remedy="Build the positions with the width of the input, or use Concatenate.",
            )
        return x + _encode(self.positions, x, start)


class Concatenate(nn.Module):
    """The input beside the encoding of its positions; widths add up."""

    def __init__(self, positions: Sinusoidal | Learned) -> None:
        super().__init__()
        self.positions = positions

    def out_dim(self, dim: int) -> int:
        return dim + self.positions.dim

    def forward(self, x: Float[Tensor, "*lead S W"], start: Start = 0) -> Float[Tensor, "*lead S V"]:
        encoded = _encode(self.positions, x, start)
        return torch.cat((x, encoded.expand(*x.shape[:-1], -1)), -1)


class Rotary(nn.Module):
    """Turns pairs of a head's dimensions by angles that grow with position, so that dot products see distance alone.

    Dimension i turns with dimension i + width / 2 (https://arxiv.org/abs/2104.09864).
    """

    def __init__(self, dim: int, base: float = 10_000.0) -> None:
        super().__init__()
        if dim < 2 or dim % 2:
            raise InvalidArgument(
                "width", wanted="an even width of a head", got=str(dim), remedy="Dimensions turn in pairs."
            )
        self.dim, self.base = dim, base

    def forward(self, x: Float[Tensor, "*lead S D"], positions: Int[Tensor, "*#lead S"]) -> Float[Tensor, "*lead S D"]:
        if x.shape[-1] != self.dim:
            raise InvalidArgument(
                "x",
                wanted=f"heads of width {self.dim}, for which these positions were built",
                got=f"width {x.shape[-1]} in shape {tuple(x.shape)}",
                remedy=f"Use Rotary({x.shape[-1]}).",
            )
        angle = _angles(positions, self.dim, self.base)  # (..., S, D / 2)
        cos, sin = angle.cos(), angle.sin()
        first, second = x.chunk(2, -1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)


class Alibi(nn.Module):
    """A penalty that grows with distance, steeper in some heads than in others (https://arxiv.org/abs/2108.12409)."""

    slopes: Tensor

    def __init__(self, heads: int) -> None:
        super().__init__()
        if heads < 1:
            raise InvalidArgument("heads", wanted="at least 1", got=str(heads), remedy="Each head has its slope.")
        power = 2 ** (heads.bit_length() - 1)  # the largest power of two that is at most `heads`
        slopes = [2 ** (-8 * (h + 1) / power) for h in range(power)]
        slopes += [2 ** (-4 * (2 * h + 1) / power) for h in range(heads - power)]  # halfway between the others
        self.register_buffer("slopes", torch.tensor(slopes), persistent=False)

    def forward(self, n: int, m: int) -> DistanceBias:
        distance = DistanceBias.distances(n, m, self.slopes.device).abs()  # (L,)
        return DistanceBias(-self.slopes[:, None] * distance)  # (H, L)


class RelativeBias(nn.Module):
    """A learned number for each head and each bucket of distances, as in T5 (https://arxiv.org/abs/1910.10683).

    Half of the buckets hold one distance each; the rest grow logarithmically up to `furthest`, beyond which all are
    alike. `ahead` says whether keys after the query are told apart too, for which half of the buckets go.
    """

    def __init__(self, heads: int, *, buckets: int = 32, furthest: int = 128, ahead: bool = True) -> None:
        super().__init__()
        exact = buckets // (4 if ahead else 2)
        if exact < 1 or furthest <= exact:
            raise InvalidArgument(
                "buckets, furthest",
                wanted=f"at least {4 if ahead else 2} buckets, and furthest beyond the {max(1, exact)} exact ones",
                got=f"{buckets}, {furthest}",
                remedy="32 buckets up to distance 128 are usual.",
            )
        self.buckets, self.furthest, self.ahead = buckets, furthest, ahead
        self.table = nn.Parameter(torch.zeros(heads, buckets))

    def forward(self, n: int, m: int) -> DistanceBias:
        distance = DistanceBias.distances(n, m, self.table.device)
        return DistanceBias(self.table[:, self.bucket(distance)])  # (H, L)

    def bucket(self, distance: Int[Tensor, " L"]) -> Int[Tensor, " L"]:
        """The bucket of each signed distance, key minus query."""
        buckets, base = self.buckets, torch.zeros_like(distance)
        if self.ahead:
            buckets //= 2
            base = (distance > 0) * buckets
        apart = distance.abs() if self.ahead else (-distance).clamp(min=0)
        exact = buckets // 2
        grown = (apart.clamp(min=1) / exact).log() / log(self.furthest / exact) * (buckets - exact)
        coarse = (exact + grown.long()).clamp(max=buckets - 1)
        return base + torch.where(apart < exact, apart, coarse)


def _angles(positions: Tensor, dim: int, base: float) -> Tensor:
    rate = base ** (-torch.arange(0, dim, 2, dtype=torch.float32, device=positions.device) / dim)  # (width / 2,)
    return positions[..., None] * rate


def _encode(positions: Sinusoidal | Learned, x: Tensor, start: Start) -> Tensor:
    if isinstance(start, SequenceOffsets):
        first, last = 0, start.max_length - x.shape[-2]
    else:
        first, last = (start, start) if isinstance(start, int) else (int(start.min()), int(start.max()))
    if first < 0:
        raise InvalidArgument("start", wanted="a position of at least 0", got=str(first), remedy="Count from 0.")
    if positions.limit is not None and last + x.shape[-2] > positions.limit:
        raise InvalidArgument(
            "x",
            wanted=f"at most {positions.limit} positions, the length of the learned table",
            got=f"{last + x.shape[-2]}",
            remedy="Shorten the input, build the table with a larger limit, or use sinusoidal positions.",
        )
    if isinstance(start, SequenceOffsets):
        places = start.positions
    else:
        steps = torch.arange(x.shape[-2], device=x.device)
        places = steps + (start if isinstance(start, int) else start[:, None])
    encoded: Tensor = positions(places)
    return encoded.to(x.dtype)
