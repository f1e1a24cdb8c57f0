"""Positions: how attention, which is invariant to order, learns the order of its input.

Three kinds. A `PositionEncoding` is a vector per position, joined to the input by `Add` or
`Concatenate`; `Rotary` rotates queries and keys; a `PositionBias` is added to the scores.
`POSITIONS` holds the names that recipes use.
"""

from abc import ABC, abstractmethod
from math import log
from typing import Annotated, ClassVar, NamedTuple

import torch
from torch import nn

from regard.core.errors import InvalidArgument
from regard.core.registry import Registry
from regard.core.sequence import SequenceOffsets
from regard.core.shapes import Float, Int, Tensor
from regard.kernels.attention.bias import DistanceBias

# The position of the first token, of all sequences or of each; the positions of all tokens,
# which are not checked; or the offsets of packed sequences.
Start = int | Int[Tensor, " B"] | Int[Tensor, "#B S"] | SequenceOffsets


class PositionOptions(NamedTuple):
    """What a kind of positions is built from; each reads the fields it needs."""

    dim: int  # of the model
    heads: int
    head_dim: int
    bidirectional: bool = True  # whether queries attend to keys after them
    max_positions: int = 512
    position_offset: int = 0
    rotary_base: float = 10_000.0
    relative_buckets: int = 32
    relative_max_distance: int = 128


class Positions(nn.Module):
    """Base of every kind of position information: what it declares to configurations.

    By itself: no positions.
    """

    packable: ClassVar[bool] = True  # whether packed attention supports it
    limited: ClassVar[bool] = False  # whether there is a last position
    # Whether it is made for longer sequences than those of training.
    extrapolates: ClassVar[bool] = False
    # What the dim (of the model, or of a head for `Rotary`) must be a multiple of.
    multiple_of: ClassVar[int] = 1


class PositionEncoding(Positions, ABC):
    """Absolute position encoding: a vector for each position."""

    dim: int  # of a vector
    limit: int | None = None  # positions are 0..limit-1; None: any

    @classmethod
    def build(cls, options: PositionOptions) -> "PositionEncoding":
        """An encoding of the model's dim, `options.dim`;
        kinds with a last position read `options.max_positions`.
        """
        return cls(options.dim)

    @abstractmethod
    def forward(self, positions: Int[Tensor, "*lead S"]) -> Float[Tensor, "*lead S W"]:
        """The vectors of these positions."""


class PositionBias(Positions, ABC):
    """Relative positions as a bias on the scores, a function of the distance from query to key,
    per head.
    """

    packable = False
    extrapolates = True

    @classmethod
    def build(cls, options: PositionOptions) -> "PositionBias":
        """A bias for each of `options.heads` heads."""
        return cls(options.heads)

    @abstractmethod
    def forward(self, n: int, m: int) -> DistanceBias:
        """The bias (heads, n + m - 1) of n queries and m keys."""


class Sinusoidal(PositionEncoding):
    """Sines and cosines of wavelengths from 2π to 2π · base,
    without parameters (https://arxiv.org/abs/1706.03762).

    dim    of a vector, an even number: the first half are sines
    base   of the wavelengths
    """

    multiple_of = 2

    def __init__(self, dim: int, base: float = 10_000.0) -> None:
        super().__init__()
        _check_multiple(dim, 2, "Sines and cosines come in pairs.")
        self.dim = dim
        self.base = base

    def forward(self, positions: Int[Tensor, "*lead S"]) -> Float[Tensor, "*lead S W"]:
        angle = _angles(positions, self.dim, self.base)  # (..., S, W / 2)
        return torch.cat((angle.sin(), angle.cos()), -1)


class Learned(PositionEncoding):
    """A learned vector for each position.

    dim      of a vector
    limit    number of positions
    offset   unused rows of the table before the first
    """

    limited = True
    limit: int

    def __init__(self, dim: int, limit: int, offset: int = 0) -> None:
        super().__init__()
        self.dim = dim
        self.limit = limit
        self.offset = offset
        self.table = nn.Parameter(torch.randn(offset + limit, dim) * 0.02)

    @classmethod
    def build(cls, options: PositionOptions) -> PositionEncoding:
        """An encoding with the dim, `max_positions` and `position_offset` of `options`."""
        return cls(options.dim, options.max_positions, options.position_offset)

    def forward(self, positions: Int[Tensor, "*lead S"]) -> Float[Tensor, "*lead S W"]:
        if self.offset:
            positions = positions + self.offset
        return nn.functional.embedding(positions, self.table)


class SinusoidalGrid(nn.Module):
    """Positions in an image grid: half of the dim encodes the row, half the column,
    each as `Sinusoidal` does.
    """

    def __init__(self, dim: int, base: float = 10_000.0) -> None:
        super().__init__()
        _check_multiple(dim, 4, "Rows and columns get sines and cosines each.")
        self.dim = dim
        self.axis = Sinusoidal(dim // 2, base)

    def forward(
        self, rows: int, columns: int, device: torch.device | None = None
    ) -> Float[Tensor, "S W"]:
        """The vectors of all regions, row by row."""
        down = self.axis(torch.arange(rows, device=device))[:, None].expand(-1, columns, -1)
        across = self.axis(torch.arange(columns, device=device))[None].expand(rows, -1, -1)
        return torch.cat((down, across), -1).flatten(0, 1)  # (rows · columns, W)


class Add(nn.Module):
    """The input plus the encoding of its positions, of the same dim."""

    def __init__(self, positions: PositionEncoding) -> None:
        super().__init__()
        self.positions = positions

    def forward(
        self, x: Float[Tensor, "*lead S W"], start: Start = 0
    ) -> Float[Tensor, "*lead S W"]:
        """Add the encoding of its positions to x (..., S, dim).

        start   the position of the first token, of all sequences or of each; positions of all
                tokens; or packed offsets
        """
        if x.shape[-1] != self.positions.dim:
            wanted = f"dim {self.positions.dim}, that of the positions added to it"
            remedy = "Build the positions with the dim of the input, or use Concatenate."
            raise InvalidArgument(
                "x",
                wanted=wanted,
                got=f"dim {x.shape[-1]} in shape {tuple(x.shape)}",
                remedy=remedy,
            )
        return x + _encode(self.positions, x, start)


class Concatenate(nn.Module):
    """The input concatenated with the encoding of its positions."""

    def __init__(self, positions: PositionEncoding) -> None:
        super().__init__()
        self.positions = positions

    def forward(
        self, x: Float[Tensor, "*lead S W"], start: Start = 0
    ) -> Float[Tensor, "*lead S V"]:
        """Concatenate x (..., S, dim) and the encoding of its positions.

        start   the position of the first token, of all sequences or of each; positions of all
                tokens; or packed offsets
        """
        encoded = _encode(self.positions, x, start)
        return torch.cat((x, encoded.expand(*x.shape[:-1], -1)), -1)


class Rotary(Positions):
    """Rotary position embedding: rotates pairs
    of a head's dimensions by angles proportional to the position.

    dim    of a head, an even number
    base   of the wavelengths

    Dot products then depend on the distance alone. Dimension i is paired with i + dim / 2
    (https://arxiv.org/abs/2104.09864).
    """

    multiple_of = 2

    def __init__(self, dim: int, base: float = 10_000.0) -> None:
        super().__init__()
        _check_multiple(dim, 2, "Dimensions are rotated in pairs.")
        self.dim = dim
        self.base = base

    @classmethod
    def build(cls, options: PositionOptions) -> "Rotary":
        """A rotation for heads of `options.head_dim`, with `options.rotary_base`."""
        return cls(options.head_dim, options.rotary_base)

    def forward(
        self, x: Float[Tensor, "*lead S D"], positions: Int[Tensor, "*#lead S"]
    ) -> Float[Tensor, "*lead S D"]:
        """Rotate x (..., S, dim) by the angles of the `positions` (..., S)."""
        if x.shape[-1] != self.dim:
            wanted = f"heads of dim {self.dim}, for which these positions were built"
            got = f"dim {x.shape[-1]} in shape {tuple(x.shape)}"
            raise InvalidArgument("x", wanted=wanted, got=got, remedy=f"Use Rotary({x.shape[-1]}).")
        angle = _angles(positions, self.dim, self.base)  # (..., S, D / 2)
        cos = angle.cos()
        sin = angle.sin()
        first, second = x.chunk(2, -1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)


class Alibi(PositionBias):
    """ALiBi: a penalty linear in the distance,
    with a slope per head (https://arxiv.org/abs/2108.12409).

    heads   number of heads
    """

    slopes: Tensor

    def __init__(self, heads: int) -> None:
        super().__init__()
        if heads < 1:
            raise InvalidArgument(
                "heads", wanted="at least 1", got=str(heads), remedy="Each head has a slope."
            )
        power = 2 ** (heads.bit_length() - 1)  # the largest power of two that is at most `heads`
        slopes = [2 ** (-8 * (h + 1) / power) for h in range(power)]
        # The other slopes are halfway between these.
        slopes += [2 ** (-4 * (2 * h + 1) / power) for h in range(heads - power)]
        self.register_buffer("slopes", torch.tensor(slopes), persistent=False)

    def forward(self, n: int, m: int) -> DistanceBias:
        distance = DistanceBias.distances(n, m, self.slopes.device).abs()  # (L,)
        return DistanceBias(-self.slopes[:, None] * distance)  # (H, L)


class RelativeBias(PositionBias):
    """A learned bias for each head and each bucket of distances,
    as in T5 (https://arxiv.org/abs/1910.10683).

    heads           number of heads
    buckets         half of them hold one distance each; the rest grow logarithmically
    max_distance    beyond which all distances share one bucket
    bidirectional   give half of the buckets to keys after the query
    """

    def __init__(
        self, heads: int, *, buckets: int = 32, max_distance: int = 128, bidirectional: bool = True
    ) -> None:
        super().__init__()
        least = 4 if bidirectional else 2
        exact = buckets // least
        if exact < 1 or max_distance <= exact:
            wanted = (
                f"at least {least} buckets, and max_distance beyond the {max(1, exact)} exact ones"
            )
            got = f"{buckets}, {max_distance}"
            remedy = "32 buckets up to distance 128 are usual."
            raise InvalidArgument("buckets, max_distance", wanted=wanted, got=got, remedy=remedy)
        self.buckets = buckets
        self.max_distance = max_distance
        self.bidirectional = bidirectional
        self.table = nn.Parameter(torch.zeros(heads, buckets))

    @classmethod
    def build(cls, options: PositionOptions) -> PositionBias:
        """A bias with the heads, buckets and largest distance of `options`."""
        buckets = options.relative_buckets
        max_distance = options.relative_max_distance
        return cls(
            options.heads,
            buckets=buckets,
            max_distance=max_distance,
            bidirectional=options.bidirectional,
        )

    def forward(self, n: int, m: int) -> DistanceBias:
        distance = DistanceBias.distances(n, m, self.table.device)
        return DistanceBias(self.table[:, self.bucket(distance)])  # (H, L)

    def bucket(self, distance: Int[Tensor, " L"]) -> Int[Tensor, " L"]:
        """The bucket of each signed distance, key minus query."""
        buckets = self.buckets
        base = torch.zeros_like(distance)
        if self.bidirectional:
            buckets //= 2
            base = (distance > 0) * buckets
        if self.bidirectional:
            magnitude = distance.abs()
        else:
            magnitude = (-distance).clamp(min=0)
        exact = buckets // 2
        extra = (
            (magnitude.clamp(min=1) / exact).log()
            / log(self.max_distance / exact)
            * (buckets - exact)
        )
        coarse = (exact + extra.long()).clamp(max=buckets - 1)
        return base + torch.where(magnitude < exact, magnitude, coarse)


POSITIONS: Registry[type[Positions]] = Registry(
    "positions",
    {
        "sinusoidal": Sinusoidal,
        "learned": Learned,
        "rotary": Rotary,
        "alibi": Alibi,
        "relative": RelativeBias,
        "none": Positions,
    },
)
PositionName = Annotated[str, POSITIONS]


def _check_multiple(dim: int, factor: int, why: str) -> None:
    if dim < factor or dim % factor:
        raise InvalidArgument("dim", wanted=f"a multiple of {factor}", got=str(dim), remedy=why)


def _angles(positions: Tensor, dim: int, base: float) -> Tensor:
    dims = torch.arange(0, dim, 2, dtype=torch.float32, device=positions.device)
    rate = base ** (-dims / dim)  # (dim / 2,)
    return positions[..., None] * rate


def _encode(positions: PositionEncoding, x: Tensor, start: Start) -> Tensor:
    """The vectors of the positions of x (..., S, W), in its dtype;
    refuses positions below 0 or beyond the limit.
    """
    if isinstance(start, Tensor) and start.dim() == 2:
        return positions(start).to(x.dtype)  # type: ignore[no-any-return]
    if isinstance(start, SequenceOffsets):
        index = start.positions
        first = 0
        length = start.max_length
    else:
        index = torch.arange(x.shape[-2], device=x.device)
        if isinstance(start, int):
            first = start
            last = start
            index = index + start  # (T,)
        else:
            first = int(start.min())
            last = int(start.max())
            index = index + start[:, None]  # (B, T)
        length = last + x.shape[-2]
    if first < 0:
        raise InvalidArgument(
            "start", wanted="a position of at least 0", got=str(first), remedy="Count from 0."
        )
    if positions.limit is not None and length > positions.limit:
        wanted = f"at most {positions.limit} positions, the length of the learned table"
        remedy = (
            "Shorten the input, build the table with a larger limit, or use sinusoidal positions."
        )
        raise InvalidArgument("x", wanted=wanted, got=f"{length}", remedy=remedy)
    encoded: Tensor = positions(index)
    return encoded.to(x.dtype)
