"""Batches that data produces and models take: sequences of tokens or vectors, padded or packed, and image features."""

from abc import ABC, abstractmethod
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch

from regard.core.errors import InvalidArgument
from regard.core.shapes import Bool, Float, Int, Shaped, Tensor


@runtime_checkable
class FieldBatch(Protocol):
    """A batch of a field, as its input module or its encoder reads it, that moves to a device as a whole.

    Token ids or vectors with lengths, label ids (B,), pixels (B, 3, Y, X), features of a frozen backbone, several of
    these, or what a field of the user's own makes.
    """

    def to(self, device: Any, /) -> Any:
        """The batch on another device."""


@dataclass(frozen=True)
class Tokens:
    """A batch of token sequences, padded on the right. The ids of the padding are never used.

    ids         (B, S)
    lengths     (B,), tokens of each sequence
    host_copy   the lengths in host memory, where `lengths` is on a GPU
    """

    ids: Int[Tensor, "B S"]
    lengths: Int[Tensor, " B"]
    host_copy: Int[Tensor, " B"] | None = None

    @staticmethod
    def of(rows: Sequence[Sequence[int]], *, device: torch.device | str = "cpu") -> "Tokens":
        """A batch of lists of token ids, which may differ in length.

        rows     the lists, at least one
        device   of the tensors
        """
        if not rows:
            raise InvalidArgument(
                "rows", wanted="at least one sequence", got="none", remedy="Give a list of lists."
            )
        lengths = [len(row) for row in rows]
        host, count = _tensor([*lengths, *_flat_padded(rows, max(lengths), 0)]), len(rows)
        both = to_device(host, device)  # lengths and ids in one copy
        return Tokens(
            both[count:].view(count, -1), both[:count], None if both is host else host[:count]
        )

    def row(self, i: int) -> list[int]:
        """Sequence `i` as a list of ids, without padding."""
        ids: list[int] = self.ids[i, : int(self.lengths[i])].tolist()
        return ids

    def to(self, device: torch.device | str) -> "Tokens":
        """The batch on another `device`."""
        host_copy = self.lengths if self.lengths.device.type == "cpu" else self.host_copy
        return Tokens(
            self.ids.to(device, non_blocking=True),
            self.lengths.to(device, non_blocking=True),
            host_copy,
        )

    @property
    def host_lengths(self) -> Int[Tensor, " B"]:
        """The lengths in host memory; waits for the GPU only where no copy was kept."""
        return (
            self.lengths.cpu()
            if self.host_copy is None or self.lengths.device.type == "cpu"
            else self.host_copy
        )

    @property
    def mask(self) -> Bool[Tensor, "B S"]:
        """True at tokens, False at padding."""
        return torch.arange(self.ids.shape[1], device=self.ids.device) < self.lengths[:, None]


def pad_lists(rows: Sequence[Sequence[int]], length: int, pad: int) -> Int[Tensor, "B length"]:
    """Lists padded to one length."""
    return _tensor(_flat_padded(rows, length, pad)).view(len(rows), length)


def _flat_padded(rows: Sequence[Sequence[int]], length: int, pad: int) -> list[int]:
    flat: list[int] = []
    for row in rows:
        flat += row
        flat += [pad] * (length - len(row))
    return flat


def _tensor(numbers: list[int]) -> Int[Tensor, " N"]:
    """An int64 tensor of a list, in a fifth of the time of `torch.tensor`."""
    return (
        torch.frombuffer(array("q", numbers), dtype=torch.int64)
        if numbers
        else torch.zeros(0, dtype=torch.int64)
    )


def to_device(x: Tensor, device: torch.device | str) -> Tensor:
    """Copy to a device; to a GPU from pinned memory, so that the host does not wait for queued work."""
    x = x.pin_memory() if torch.device(device).type == "cuda" else x
    return x.to(device, non_blocking=True)


def pin_memory(batch: Any) -> Any:
    """A tensor, or a dataclass of tensors, in pinned host memory, from which copies to a GPU are asynchronous."""
    if isinstance(batch, Tensor):
        return batch.pin_memory() if batch.device.type == "cpu" else batch
    if isinstance(batch, tuple):
        return tuple(pin_memory(each) for each in batch)
    if not is_dataclass(batch) or isinstance(batch, type):
        return batch
    return replace(
        batch, **{each.name: pin_memory(getattr(batch, each.name)) for each in fields(batch)}
    )


@dataclass(frozen=True)
class Vectors:
    """A batch of sequences of vectors, padded on the right with zeros.

    values    (B, S, D); NaN where a number is missing
    lengths   (B,), vectors of each sequence
    """

    values: Float[Tensor, "B S D"]
    lengths: Int[Tensor, " B"]

    @staticmethod
    def of(rows: Sequence[Any], *, device: torch.device | str = "cpu") -> "Vectors":
        """A batch of arrays (length, dimension), which may differ in length.

        rows     arrays, tensors or nested lists, at least one
        device   of the tensors
        """
        if not rows:
            raise InvalidArgument(
                "rows", wanted="at least one sequence", got="none", remedy="Give a list of arrays."
            )
        sequences = [torch.as_tensor(row, dtype=torch.float32) for row in rows]
        shapes = {tuple(sequence.shape[1:]) for sequence in sequences}
        if len(shapes) > 1 or len(next(iter(shapes))) != 1:
            got = ", ".join(str(tuple(sequence.shape)) for sequence in sequences[:3])
            raise InvalidArgument(
                "rows",
                wanted="arrays (length, dimension) of one dimension",
                got=got,
                remedy="Give a vector for each position.",
            )
        lengths = torch.tensor([len(sequence) for sequence in sequences])
        values = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True)  # (B, S, D)
        return Vectors(values, lengths).to(device)

    def to(self, device: torch.device | str) -> "Vectors":
        """The batch on another `device`."""
        return Vectors(
            self.values.to(device, non_blocking=True), self.lengths.to(device, non_blocking=True)
        )

    @property
    def mask(self) -> Bool[Tensor, "B S"]:
        """True at vectors, False at padding and at vectors of which a number is missing."""
        return self.places & ~self.values.isnan().any(-1)

    @property
    def places(self) -> Bool[Tensor, "B S"]:
        """True at vectors, also where a number of them is missing, and False at padding."""
        positions = torch.arange(self.values.shape[1], device=self.values.device)
        return positions < self.lengths[:, None]


@dataclass(frozen=True)
class FeatureGrids:
    """Precomputed features of a frozen image backbone; image encoders take them in place of pixels."""

    states: Float[Tensor, "B y x C"]

    def to(self, device: torch.device | str) -> "FeatureGrids":
        return FeatureGrids(self.states.to(device, non_blocking=True))


@dataclass(frozen=True)
class MultiSource:
    """A batch in which each example has several sources: a batch of each, for an encoder of its own."""

    parts: tuple[FieldBatch, ...]

    def to(self, device: torch.device | str) -> "MultiSource":
        return MultiSource(tuple(part.to(device) for part in self.parts))


@dataclass(frozen=True)
class SequenceOffsets:
    """Where each sequence of a packed batch begins and ends."""

    cu_seqlens: Int[
        Tensor, " B1"
    ]  # cumulative lengths: sequence i is cu_seqlens[i]..cu_seqlens[i + 1] - 1
    positions: Int[Tensor, " N"]  # of each token in its own sequence
    max_length: int  # at least the length of the longest sequence

    @staticmethod
    def of(
        lengths: Sequence[int] | Int[Tensor, " B"], max_length: int | None = None
    ) -> "SequenceOffsets":
        lengths = torch.as_tensor(lengths)
        cu_seqlens = torch.zeros(len(lengths) + 1, dtype=torch.int32)
        torch.cumsum(lengths, 0, out=cu_seqlens[1:])
        positions = torch.arange(int(cu_seqlens[-1])) - cu_seqlens[:-1].repeat_interleave(lengths)
        if max_length is None:
            max_length = int(lengths.max()) if len(lengths) else 0
        return SequenceOffsets(cu_seqlens, positions, max_length)

    def to(self, device: torch.device | str) -> "SequenceOffsets":
        cu_seqlens, positions = (
            x.to(device, non_blocking=True) for x in (self.cu_seqlens, self.positions)
        )
        return SequenceOffsets(cu_seqlens, positions, self.max_length)

    def duplicate(self) -> "SequenceOffsets":
        """The batch followed by itself."""
        cu_seqlens = torch.cat((self.cu_seqlens, self.cu_seqlens[1:] + self.cu_seqlens[-1]))
        return SequenceOffsets(
            cu_seqlens, torch.cat((self.positions, self.positions)), self.max_length
        )

    @property
    def mask(self) -> Bool[Tensor, "B S"]:
        """The padding mask of the batch when padded to `max_length`."""
        return (
            torch.arange(self.max_length, device=self.cu_seqlens.device)
            < self.cu_seqlens.diff()[:, None]
        )

    def pad(self, x: Shaped[Tensor, "N *rest"]) -> Shaped[Tensor, "B S *rest"]:
        """Packed to padded. The padding holds values of other positions, not zeros."""
        index = self.cu_seqlens[:-1, None] + torch.arange(self.max_length, device=x.device)
        return x[index.clamp(max=len(x) - 1)]

    @property
    def packing(self) -> "Packing":
        """The packing of the batch when padded to `max_length`."""
        indices = self.sequence_ids * self.max_length + self.positions
        return Packing(indices, len(self.cu_seqlens) - 1, self.max_length)

    @property
    def sequence_ids(self) -> Int[Tensor, " N"]:
        """The index of the sequence that each token belongs to."""
        index = torch.arange(len(self.positions), device=self.cu_seqlens.device, dtype=torch.int32)
        return torch.searchsorted(self.cu_seqlens, index, right=True) - 1

    @property
    def remaining(self) -> Int[Tensor, " N"]:
        """How many tokens follow each one in its own sequence."""
        return self.cu_seqlens.diff()[self.sequence_ids] - self.positions - 1


class PackedSequences(ABC):
    """A batch of sequences without padding, of tokens or of vectors."""

    offsets: SequenceOffsets

    @property
    @abstractmethod
    def items(self) -> Shaped[Tensor, "N *each"]:
        """The tokens or vectors, one sequence after the other."""

    @abstractmethod
    def with_items(self, items: Tensor) -> Any:
        """The same sequences of other tokens or vectors."""

    @abstractmethod
    def padded(self) -> Any:
        """The same sequences padded to one length."""

    @abstractmethod
    def duplicate(self) -> Any:
        """The batch followed by itself."""

    @abstractmethod
    def to(self, device: Any, /) -> Any:
        """The batch on another device."""


@dataclass(frozen=True)
class Packed(PackedSequences):
    """A batch of texts without padding; of targets also the token to predict after each token."""

    ids: Int[Tensor, " N"]
    offsets: SequenceOffsets
    gold: Int[Tensor, " N"] | None = (
        None  # negative: none, the token only fills the batch to its size
    )

    @property
    def items(self) -> Int[Tensor, " N"]:
        return self.ids

    def with_items(self, items: Tensor) -> "Packed":
        return replace(self, ids=items)

    def to(self, device: torch.device | str) -> "Packed":
        gold = None if self.gold is None else self.gold.to(device, non_blocking=True)
        return Packed(self.ids.to(device, non_blocking=True), self.offsets.to(device), gold)

    def row(self, i: int) -> list[int]:
        """One sequence; of targets with the token to predict after its last one."""
        begin, end = self.offsets.cu_seqlens[i : i + 2].tolist()
        return [
            *self.ids[begin:end].tolist(),
            *([] if self.gold is None else self.gold[end - 1 : end].tolist()),
        ]

    def padded(self) -> Tokens:
        """The same sequences padded to one length."""
        lengths = self.offsets.cu_seqlens.diff().long()
        return Tokens(self.offsets.pad(self.ids), lengths)

    def duplicate(self) -> "Packed":
        """The batch followed by itself, without gold tokens."""
        return Packed(torch.cat((self.ids, self.ids)), self.offsets.duplicate())


@dataclass(frozen=True)
class PackedVectors(PackedSequences):
    """A batch of sequences of vectors without padding.

    values   (N, D); of targets NaN where there is nothing to predict, as at what only fills the batch to its size
    """

    values: Float[Tensor, "N D"]
    offsets: SequenceOffsets

    @property
    def items(self) -> Float[Tensor, "N D"]:
        return self.values

    def with_items(self, items: Tensor) -> "PackedVectors":
        return PackedVectors(items, self.offsets)

    def to(self, device: torch.device | str) -> "PackedVectors":
        return PackedVectors(self.values.to(device, non_blocking=True), self.offsets.to(device))

    def padded(self) -> Vectors:
        """The same sequences padded to one length. The padding holds values of other positions, not zeros."""
        lengths = self.offsets.cu_seqlens.diff().long()
        return Vectors(self.offsets.pad(self.values), lengths)

    def duplicate(self) -> "PackedVectors":
        """The batch followed by itself."""
        return PackedVectors(torch.cat((self.values, self.values)), self.offsets.duplicate())


@dataclass(frozen=True)
class Packing:
    """The positions of the tokens of a padded batch, so that position-wise layers can skip the padding."""

    indices: Int[Tensor, " N"]  # into the B · S positions
    batch: int
    length: int

    @staticmethod
    def of(mask: Bool[Tensor, "B S"], count: int | None = None) -> "Packing":
        """The packing of a padding mask. With the number of tokens known, a GPU need not be waited for."""
        flat = mask.flatten()
        if count is None or flat.device.type == "cpu":
            indices = flat.nonzero()[:, 0]
            assert count is None or count == len(indices), (count, len(indices))
            return Packing(indices, *mask.shape)
        return Packing((~flat).to(torch.uint8).argsort(stable=True)[:count], *mask.shape)

    @staticmethod
    def where_useful(mask: Bool[Tensor, "B S"]) -> "Packing | None":
        """None without padding, on a GPU (which would be waited for) and under torch.compile (dynamic shapes)."""
        if mask.device.type != "cpu" or torch.compiler.is_compiling() or bool(mask.all()):
            return None
        return Packing.of(mask)

    def pack(self, x: Float[Tensor, "B S *rest"]) -> Float[Tensor, "N *rest"]:
        packed: Tensor = _Pack.apply(x.flatten(0, 1), self.indices)  # type: ignore[no-untyped-call]
        return packed

    def unpack(self, x: Float[Tensor, "N *rest"]) -> Float[Tensor, "B S *rest"]:
        """Packed to padded, with zeros in the padding."""
        flat: Tensor = _Unpack.apply(x, self.indices, self.batch * self.length)  # type: ignore[no-untyped-call]
        return flat.unflatten(0, (self.batch, self.length))  # type: ignore[no-untyped-call, no-any-return]


class _Pack(torch.autograd.Function):
    """index_select with distinct indices: the backward pass copies where PyTorch's own adds."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, indices: Tensor) -> Tensor:
        ctx.save_for_backward(indices)
        ctx.size = len(x)
        return x.index_select(0, indices)

    @staticmethod
    def backward(ctx: Any, d_packed: Tensor) -> tuple[Tensor, None]:
        return _scatter(d_packed, ctx.saved_tensors[0], ctx.size), None


class _Unpack(torch.autograd.Function):
    """The inverse of `_Pack`, with zeros elsewhere."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, indices: Tensor, size: int) -> Tensor:
        ctx.save_for_backward(indices)
        return _scatter(x, indices, size)

    @staticmethod
    def backward(ctx: Any, d_padded: Tensor) -> tuple[Tensor, None, None]:
        return d_padded.index_select(0, ctx.saved_tensors[0]), None, None


def _scatter(x: Tensor, indices: Tensor, size: int) -> Tensor:
    return x.new_zeros(size, *x.shape[1:]).index_copy_(0, indices, x)
