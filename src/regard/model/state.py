"""What a decoder carries from step to step: objects that can be reordered, never tensors hidden on a module."""

from dataclasses import dataclass

import torch

from regard.errors import InvalidArgument
from regard.shapes import Float, Int, Tensor


@dataclass(frozen=True)
class KeyValue:
    """What a source offers to attention, projected once and read as often as wanted."""

    key: Float[Tensor, "B G M D"]
    value: Float[Tensor, "B G M E"]

    def reorder(self, index: Int[Tensor, " beams"]) -> "KeyValue":
        return KeyValue(self.key[index], self.value[index])


class KeyValueCache:
    """Keys and values of the positions seen so far, in memory laid out once for `capacity` positions."""

    def __init__(self, like: KeyValue, capacity: int) -> None:
        """An empty cache for keys and values shaped, typed and placed like these."""
        self.length = 0
        self._key, self._value = (
            tensor.new_zeros(*tensor.shape[:2], capacity, tensor.shape[3]) for tensor in (like.key, like.value)
        )

    @property
    def capacity(self) -> int:
        return self._key.shape[2]

    @property
    def filled(self) -> KeyValue:
        return KeyValue(self._key[:, :, : self.length], self._value[:, :, : self.length])

    def append(self, new: KeyValue) -> None:
        end = self.length + new.key.shape[2]
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

    def reorder(self, index: Int[Tensor, " beams"]) -> "KeyValueCache":
        """The cache whose row i is row index[i] of this one. Uses up this one where the number of rows stays."""
        filled = self.filled.reorder(index)
        moved = self if len(index) == self._key.shape[0] else KeyValueCache(filled, self.capacity)
        moved.length = 0
        moved.append(filled)
        return moved
