"""Key/value caches and the row operations of decoder states: reorder, follow hypotheses,
write new sequences.
"""

from dataclasses import dataclass

import torch
from torch.nn import functional as F

from regard.core.errors import InvalidArgument
from regard.core.shapes import Bool, Float, Int, Tensor

# A cache has room for this many positions at first.
FIRST_POSITIONS = 64
# Indices, or consecutive slots, which need no index tensor on a GPU.
Slots = Int[Tensor, " n"] | slice


@dataclass(frozen=True)
class KeyValue:
    """Projected keys and values of a source, computed once and attended to any number of times.

    key     (B, kv_heads, M, D)
    value   (B, kv_heads, M, E)
    """

    key: Float[Tensor, "B G M D"]
    value: Float[Tensor, "B G M E"]

    def reorder(self, index: Tensor) -> "KeyValue":
        """Keys and values whose row i is row index[i] of these.

        A boolean mask would select rows 0 and 1.
        """
        if index.dim() != 1 or index.dtype not in (torch.int64, torch.int32):
            wanted = "row numbers, one-dimensional"
            got = f"{index.dtype} of shape {tuple(index.shape)}"
            remedy = "Use mask.nonzero()[:, 0] for a boolean mask."
            raise InvalidArgument("index", wanted=wanted, got=got, remedy=remedy)
        return KeyValue(self.key.index_select(0, index), self.value.index_select(0, index))

    def last(self, count: int) -> "KeyValue":
        """Views of the last `count` positions."""
        first = self.key.shape[2] - count
        return KeyValue(self.key[:, :, first:], self.value[:, :, first:])

    def write(self, rows: Slots, other: "KeyValue") -> "KeyValue":
        """Replace these rows by those of `other`, in place unless `other` is longer."""
        longer = other.key.shape[2] - self.key.shape[2]
        key, value = (
            F.pad(x, (0, 0, 0, longer)) if longer > 0 else x for x in (self.key, self.value)
        )
        key[rows, :, : other.key.shape[2]] = other.key
        value[rows, :, : other.value.shape[2]] = other.value
        return KeyValue(key, value)


@dataclass(frozen=True)
class LayerMemories:
    """A memory as the cross-attentions of a decoder read it: the keys and values of each layer,
    and the mask.
    """

    layers: list[KeyValue]
    mask: Bool[Tensor, "B 1 M"]

    def reorder(self, index: Tensor) -> "LayerMemories":
        return LayerMemories([each.reorder(index) for each in self.layers], self.mask[index])

    def write(self, slots: Slots, new: "LayerMemories") -> "LayerMemories":
        """Replace these sequences by those of `new`."""
        layers = [
            mine.write(slots, other) for mine, other in zip(self.layers, new.layers, strict=True)
        ]
        return LayerMemories(layers, write_masks(self.mask, slots, new.mask))


class KeyValueCache:
    """Keys and values of the positions so far, in tensors that grow by doubling.

    like       keys and values whose batch size, heads, dims, dtype and device the cache takes over
    capacity   positions that fit at most
    """

    def __init__(self, like: KeyValue, capacity: int) -> None:
        """An empty cache for keys and values of this batch, heads, dims, dtype and device."""
        if capacity < 0:
            raise InvalidArgument(
                "capacity",
                wanted="a count",
                got=str(capacity),
                remedy="Give the number of positions.",
            )
        self.length = 0
        self.capacity = capacity
        room = min(capacity, FIRST_POSITIONS)
        self._key = like.key.new_zeros(*like.key.shape[:2], room, like.key.shape[3])
        self._value = like.value.new_zeros(*like.value.shape[:2], room, like.value.shape[3])

    def __len__(self) -> int:
        """The number of sequences."""
        return len(self._key)

    @property
    def filled(self) -> KeyValue:
        """Views of the positions written so far."""
        return KeyValue(self._key[:, :, : self.length], self._value[:, :, : self.length])

    def append(self, new: KeyValue) -> None:
        """Write the `new` keys and values after those of the positions so far."""
        end = self.length + new.key.shape[2]
        rows = [(*x.shape[:2], x.shape[3]) for x in (new.key, self._key, new.value, self._value)]
        if rows[0] != rows[1] or rows[2] != rows[3]:
            wanted = f"keys and values of (batch, heads, dim) {rows[1]} and {rows[3]}, as allocated"
            got = f"{rows[0]} and {rows[2]}"
            raise InvalidArgument(
                "cache",
                wanted=wanted,
                got=got,
                remedy="Make a cache for this batch and this layer.",
            )
        if end > self.capacity:
            wanted = f"at most {self.capacity} positions, its capacity"
            raise InvalidArgument(
                "cache",
                wanted=wanted,
                got=f"{end}",
                remedy="Make the cache with a larger capacity.",
            )
        if torch.is_grad_enabled() and (new.key.requires_grad or new.value.requires_grad):
            wanted = "keys and values without gradient: the cache overwrites its memory"
            remedy = "Step under torch.no_grad(); train with the whole sequence at once."
            raise InvalidArgument(
                "cache", wanted=wanted, got="keys or values that require gradient", remedy=remedy
            )
        self._grow(end)
        self._key[:, :, self.length : end] = new.key
        self._value[:, :, self.length : end] = new.value
        self.length = end

    def _grow(self, needed: int) -> None:
        """Have room for so many positions."""
        room = self._key.shape[2]
        if needed <= room:
            return
        room = min(self.capacity, max(needed, 2 * room))
        self._key = _with_room(self._key, room, self.length)
        self._value = _with_room(self._value, room, self.length)

    def write(self, rows: Slots, new: KeyValue, stride: int) -> None:
        """Overwrite the last positions of these rows by `new`, one in `stride`;
        others between them stay.
        """
        start = self.length - new.key.shape[2] * stride
        self._key[rows, :, start : self.length : stride] = new.key
        self._value[rows, :, start : self.length : stride] = new.value

    def insert_empty(self, count: int) -> None:
        """Insert `count` positions before the first, with any content."""
        self._grow(count + self.length)
        for tensor in (self._key, self._value):
            tensor[:, :, count : count + self.length] = tensor[:, :, : self.length].clone()
        self.length += count

    def drop_oldest(self, count: int) -> None:
        """Discard the first `count` positions."""
        left = self.length - count
        for tensor in (self._key, self._value):
            tensor[:, :, :left] = tensor[:, :, count : self.length].clone()
        self.length = left

    def reorder(self, index: Tensor) -> "KeyValueCache":
        """A new cache whose row i is row index[i] of this one."""
        filled = self.filled.reorder(index)
        moved = KeyValueCache(filled, self.capacity)
        moved.append(filled)
        return moved


def _with_room(x: Float[Tensor, "B G M D"], room: int, used: int) -> Float[Tensor, "B G room D"]:
    """With room for more positions, of which the first `used` are kept."""
    larger = x.new_zeros(*x.shape[:2], room, x.shape[3])
    larger[:, :, :used] = x[:, :, :used]
    return larger


def write_rows(x: Tensor, rows: Slots, new: Tensor) -> Tensor:
    """Write sequences `new` (n, S', …) into rows of x (B, S, …), in place if they fit;
    the shorter is zero-padded.
    """
    longer = new.shape[1] - x.shape[1]
    if longer > 0:
        x = torch.cat((x, x.new_zeros(x.shape[0], longer, *x.shape[2:])), 1)
    x[rows, : new.shape[1]] = new
    if longer < 0:
        x[rows, new.shape[1] :] = 0
    return x


def write_masks(mask: Tensor, rows: Slots, new: Tensor) -> Bool[Tensor, "B 1 S"]:
    return write_rows(mask.mT, rows, new.mT).mT


def beam_rows(parents: Int[Tensor, "B K"]) -> Int[Tensor, " BK"]:
    """Row indices of these parents, among all rows, K per sequence."""
    batch, beams = parents.shape
    return (parents + torch.arange(batch, device=parents.device)[:, None] * beams).flatten()


def sequence_rows(slots: Slots, beams: int, device: torch.device) -> Int[Tensor, " nK"]:
    """The rows of these sequences, of K rows each."""
    if isinstance(slots, slice):
        slots = torch.arange(slots.start or 0, slots.stop, device=device)
    return (slots[:, None] * beams + torch.arange(beams, device=device)).flatten()
