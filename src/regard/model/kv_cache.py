"""What a decoder carries from step to step: objects that can be reordered, never tensors hidden on a module."""

from dataclasses import dataclass

import torch
from torch.nn import functional as F

from regard.core.errors import InvalidArgument
from regard.core.shapes import Bool, Float, Int, Tensor

Slots = Int[Tensor, " n"] | slice  # by number, or one after another, which a GPU writes faster and is not told of


@dataclass(frozen=True)
class KeyValue:
    """What a source offers to attention, projected once and read as often as wanted."""

    key: Float[Tensor, "B G M D"]
    value: Float[Tensor, "B G M E"]

    def reorder(self, index: Tensor) -> "KeyValue":
        """What row index[i] offers, as row i."""
        check_index(index)
        return KeyValue(self.key.index_select(0, index), self.value.index_select(0, index))

    def put(self, rows: Slots, other: "KeyValue") -> "KeyValue":
        """Others in the place of these rows, in the memory of this one where there is room."""
        longer = other.key.shape[2] - self.key.shape[2]
        key, value = (F.pad(x, (0, 0, 0, longer)) if longer > 0 else x for x in (self.key, self.value))
        key[rows, :, : other.key.shape[2]] = other.key
        value[rows, :, : other.value.shape[2]] = other.value
        return KeyValue(key, value)


class KeyValueCache:
    """Keys and values of the positions seen so far, in memory laid out once for `capacity` positions."""

    def __init__(self, like: KeyValue, capacity: int) -> None:
        """An empty cache for keys and values shaped, typed and placed like these."""
        if capacity < 0:
            raise InvalidArgument("capacity", wanted="a count", got=str(capacity), remedy="Say how many positions.")
        self.length = 0
        self._key, self._value = (
            tensor.new_zeros(*tensor.shape[:2], capacity, tensor.shape[3]) for tensor in (like.key, like.value)
        )

    def __len__(self) -> int:
        """How many sequences."""
        return len(self._key)

    @property
    def capacity(self) -> int:
        return self._key.shape[2]

    @property
    def filled(self) -> KeyValue:
        return KeyValue(self._key[:, :, : self.length], self._value[:, :, : self.length])

    def append(self, new: KeyValue) -> None:
        end = self.length + new.key.shape[2]
        rows = [(*x.shape[:2], x.shape[3]) for x in (new.key, self._key, new.value, self._value)]
        if rows[0] != rows[1] or rows[2] != rows[3]:
            raise InvalidArgument(
                "cache",
                wanted=f"(batch, heads, width) of {rows[1]} and {rows[3]}, as it was laid out",
                got=f"{rows[0]} and {rows[2]}",
                remedy="Start a cache for this batch and this layer.",
            )
        if end > self.capacity:
            raise InvalidArgument(
                "cache",
                wanted=f"at most {self.capacity} positions, for which it was laid out",
                got=f"{end}",
                remedy="Make the cache with a larger capacity.",
            )
        if torch.is_grad_enabled() and (new.key.requires_grad or new.value.requires_grad):
            raise InvalidArgument(
                "cache",
                wanted="keys and values without gradient: the cache overwrites its memory",
                got="keys or values that require gradient",
                remedy="Step under torch.no_grad(); train with the whole sequence at once.",
            )
        self._key[:, :, self.length : end] = new.key
        self._value[:, :, self.length : end] = new.value
        self.length = end

    def forget(self, count: int) -> None:
        """Drop the oldest positions, to make room."""
        left = self.length - count
        for tensor in (self._key, self._value):
            tensor[:, :, :left] = tensor[:, :, count : self.length].clone()
        self.length = left

    def reorder(self, index: Tensor) -> "KeyValueCache":
        """A cache whose row i is row index[i] of this one; this one stays as it is."""
        filled = self.filled.reorder(index)
        moved = KeyValueCache(filled, self.capacity)
        moved.append(filled)
        return moved


def put_rows(x: Tensor | None, rows: Slots, new: Tensor | None) -> Tensor | None:
    """The sequences `new` (n, S', …) in the place of these rows of x (B, S, …); what is shorter ends in zeros."""
    if x is None or new is None:
        return None
    longer = new.shape[1] - x.shape[1]
    if longer > 0:
        x = torch.cat((x, x.new_zeros(x.shape[0], longer, *x.shape[2:])), 1)
    x[rows, : new.shape[1]] = new
    if longer < 0:
        x[rows, new.shape[1] :] = 0
    return x


def put_masks(mask: Tensor | None, rows: Slots, new: Tensor | None) -> Bool[Tensor, "B 1 S"] | None:
    turned = put_rows(None if mask is None else mask.mT, rows, None if new is None else new.mT)
    return None if turned is None else turned.mT


def beam_rows(parents: Int[Tensor, "B K"]) -> Int[Tensor, " BK"]:
    """Among all rows, K a sentence, those that these parents within their sentences are."""
    batch, beams = parents.shape
    return (parents + torch.arange(batch, device=parents.device)[:, None] * beams).flatten()


def sentence_rows(slots: Slots, beams: int, device: torch.device) -> Int[Tensor, " nK"]:
    """The rows of these sequences, of K rows each."""
    if isinstance(slots, slice):
        slots = torch.arange(slots.start or 0, slots.stop, device=device)
    return (slots[:, None] * beams + torch.arange(beams, device=device)).flatten()


def check_index(index: Tensor) -> None:
    """Refuse what does not name rows by number: a boolean mask would silently repeat one of them."""
    if index.dim() != 1 or index.dtype not in (torch.int64, torch.int32):
        raise InvalidArgument(
            "index",
            wanted="the numbers of rows, one-dimensional",
            got=f"{index.dtype} of shape {tuple(index.shape)}",
            remedy="Use mask.nonzero()[:, 0] to turn a boolean mask into numbers.",
        )
