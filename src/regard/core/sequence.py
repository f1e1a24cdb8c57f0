"""What data make and models take: sequences of tokens, padded to one length or packed end to end; grids of features."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch

from regard.core.errors import InvalidArgument
from regard.core.shapes import Bool, Float, Int, Shaped, Tensor


@dataclass(frozen=True)
class Tokens:
    """A batch of sequences, padded on the right to one length. What stands in the padding is never looked at."""

    ids: Int[Tensor, "B S"]
    lengths: Int[Tensor, " B"]
    counted: Int[Tensor, " B"] | None = None  # of what is on a GPU, the lengths where the host need not ask for them

    @staticmethod
    def of(rows: Sequence[Sequence[int]], *, device: torch.device | str = "cpu") -> "Tokens":
        """From lists of different lengths."""
        if not rows:
            raise InvalidArgument("rows", wanted="at least one sequence", got="none", remedy="Give a list of lists.")
        lengths = [len(row) for row in rows]
        here, count = _tensor([*lengths, *_filled(rows, max(lengths), 0)]), len(rows)
        both = sent(here, device)  # in one copy
        return Tokens(both[count:].view(count, -1), both[:count], None if both is here else here[:count])

    def row(self, i: int) -> list[int]:
        """One sequence, without padding."""
        ids: list[int] = self.ids[i, : int(self.lengths[i])].tolist()
        return ids

    def to(self, device: torch.device | str) -> "Tokens":
        counted = self.lengths if self.lengths.device.type == "cpu" else self.counted
        return Tokens(self.ids.to(device, non_blocking=True), self.lengths.to(device, non_blocking=True), counted)

    @property
    def counts(self) -> Int[Tensor, " B"]:
        """The lengths, for the host."""
        return self.lengths.cpu() if self.counted is None or self.lengths.device.type == "cpu" else self.counted

    @property
    def mask(self) -> Bool[Tensor, "B S"]:
        """True where there is a token."""
        return torch.arange(self.ids.shape[1], device=self.ids.device) < self.lengths[:, None]


def side_by_side(rows: Sequence[Sequence[int]], width: int, filler: int) -> Int[Tensor, "B width"]:
    """Lists made up to one width."""
    return _tensor(_filled(rows, width, filler)).view(len(rows), width)


def _filled(rows: Sequence[Sequence[int]], width: int, filler: int) -> list[int]:
    flat: list[int] = []
    for row in rows:
        flat += row
        flat += [filler] * (width - len(row))
    return flat


def _tensor(numbers: list[int]) -> Int[Tensor, " N"]:
    """In a fifth of the time that `torch.tensor` takes."""
    return torch.frombuffer(array("q", numbers), dtype=torch.int64) if numbers else torch.zeros(0, dtype=torch.int64)


def sent(x: Tensor, device: torch.device | str) -> Tensor:
    """To a device; to a GPU from memory that it reads by itself, or else the host would wait for all before it."""
    x = x.pin_memory() if torch.device(device).type == "cuda" else x
    return x.to(device, non_blocking=True)


def pinned(held: Any) -> Any:
    """A batch, or whatever holds tensors, in memory that a GPU reads by itself: its copies wait for nobody."""
    if isinstance(held, Tensor):
        return held.pin_memory() if held.device.type == "cpu" else held
    if not is_dataclass(held) or isinstance(held, type):
        return held
    return replace(held, **{each.name: pinned(getattr(held, each.name)) for each in fields(held)})


@dataclass(frozen=True)
class FeatureGrids:
    """Pictures as a backbone has seen them already: an encoder takes these in their place."""

    states: Float[Tensor, "B y x C"]

    def to(self, device: torch.device | str) -> "FeatureGrids":
        return FeatureGrids(self.states.to(device, non_blocking=True))


@dataclass(frozen=True)
class SequenceOffsets:
    """Where sequences lie that are laid end to end, none of them longer than `longest`."""

    offsets: Int[Tensor, " B1"]  # where each begins; and where the last one ends, and so they all
    places: Int[Tensor, " N"]  # of each position in its own sequence
    longest: int

    @staticmethod
    def of(lengths: Sequence[int] | Int[Tensor, " B"], longest: int | None = None) -> "SequenceOffsets":
        lengths = torch.as_tensor(lengths)
        offsets = torch.zeros(len(lengths) + 1, dtype=torch.int32)
        torch.cumsum(lengths, 0, out=offsets[1:])
        places = torch.arange(int(offsets[-1])) - offsets[:-1].repeat_interleave(lengths)
        return SequenceOffsets(
            offsets, places, longest if longest is not None else int(lengths.max()) if len(lengths) else 0
        )

    def to(self, device: torch.device | str) -> "SequenceOffsets":
        return SequenceOffsets(
            self.offsets.to(device, non_blocking=True), self.places.to(device, non_blocking=True), self.longest
        )

    def twice(self) -> "SequenceOffsets":
        """The same sequences, and the same again."""
        offsets = torch.cat((self.offsets, self.offsets[1:] + self.offsets[-1]))
        return SequenceOffsets(offsets, torch.cat((self.places, self.places)), self.longest)

    @property
    def mask(self) -> Bool[Tensor, "B S"]:
        """True where there is a position, were all padded to the longest."""
        return torch.arange(self.longest, device=self.offsets.device) < self.offsets.diff()[:, None]

    def padded(self, x: Shaped[Tensor, "N *rest"]) -> Shaped[Tensor, "B S *rest"]:
        """What stands in the padding is anything that stood elsewhere."""
        at = self.offsets[:-1, None] + torch.arange(self.longest, device=x.device)
        return x[at.clamp(max=len(x) - 1)]

    def laid(self, x: Float[Tensor, "B S *rest"]) -> Float[Tensor, "N *rest"]:
        """Without the padding."""
        return self.packing.pack(x)

    @property
    def packing(self) -> "Packing":
        """Where the positions would stand, were all padded to the longest."""
        return Packing(self.rows * self.longest + self.places, len(self.offsets) - 1, self.longest)

    @property
    def rows(self) -> Int[Tensor, " N"]:
        """The number of the sequence that each position lies in."""
        positions = torch.arange(len(self.places), device=self.offsets.device, dtype=torch.int32)
        return torch.searchsorted(self.offsets, positions, right=True) - 1

    @property
    def to_come(self) -> Int[Tensor, " N"]:
        """How many positions follow each in its own sequence."""
        return self.offsets.diff()[self.rows] - self.places - 1


@dataclass(frozen=True)
class Packed:
    """A batch of sequences without padding, and, of targets, what should be said after each token."""

    ids: Int[Tensor, " N"]
    ends: SequenceOffsets
    gold: Int[Tensor, " N"] | None = None  # below 0: nothing, as that token only fills the batch up

    def to(self, device: torch.device | str) -> "Packed":
        gold = None if self.gold is None else self.gold.to(device, non_blocking=True)
        return Packed(self.ids.to(device, non_blocking=True), self.ends.to(device), gold)

    def row(self, i: int) -> list[int]:
        """One sequence, to its last token, which is only said."""
        begin, end = self.ends.offsets[i : i + 2].tolist()
        return [*self.ids[begin:end].tolist(), *([] if self.gold is None else self.gold[end - 1 : end].tolist())]

    def twice(self) -> "Packed":
        """The same sequences, and the same again, to be read."""
        return Packed(torch.cat((self.ids, self.ids)), self.ends.twice())


@dataclass(frozen=True)
class Packing:
    """Where the tokens of a padded batch stand, for work at each position that leaves out the padding."""

    real: Int[Tensor, " N"]  # of all B · S positions
    rows: int
    length: int

    @staticmethod
    def of(mask: Bool[Tensor, "B S"], count: int | None = None) -> "Packing":
        """Who knows how many tokens there are need not wait until a GPU has counted them."""
        flat = mask.flatten()
        if count is None or flat.device.type == "cpu":
            real = flat.nonzero()[:, 0]
            assert count is None or count == len(real), (count, len(real))
            return Packing(real, *mask.shape)
        return Packing((~flat).to(torch.uint8).argsort(stable=True)[:count], *mask.shape)

    @staticmethod
    def where_it_pays(mask: Bool[Tensor, "B S"]) -> "Packing | None":
        """None where there is no padding, and where a packing's size, which only the data know, would be in the way."""
        if mask.device.type != "cpu" or torch.compiler.is_compiling() or bool(mask.all()):
            return None
        return Packing.of(mask)

    def pack(self, x: Float[Tensor, "B S *rest"]) -> Float[Tensor, "N *rest"]:
        packed: Tensor = _Pack.apply(x.flatten(0, 1), self.real)  # type: ignore[no-untyped-call]
        return packed

    def unpack(self, x: Float[Tensor, "N *rest"]) -> Float[Tensor, "B S *rest"]:
        """With zeros in the padding."""
        flat: Tensor = _Unpack.apply(x, self.real, self.rows * self.length)  # type: ignore[no-untyped-call]
        return flat.unflatten(0, (self.rows, self.length))  # type: ignore[no-untyped-call, no-any-return]


class _Pack(torch.autograd.Function):
    """Each row goes to one place, so the backward copies where PyTorch's own would add."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, real: Tensor) -> Tensor:
        ctx.save_for_backward(real)
        ctx.positions = len(x)
        return x.index_select(0, real)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _spread(gradient, ctx.saved_tensors[0], ctx.positions), None


class _Unpack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, real: Tensor, positions: int) -> Tensor:
        ctx.save_for_backward(real)
        return _spread(x, real, positions)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient.index_select(0, ctx.saved_tensors[0]), None, None


def _spread(x: Tensor, real: Tensor, positions: int) -> Tensor:
    return x.new_zeros(positions, *x.shape[1:]).index_copy_(0, real, x)
