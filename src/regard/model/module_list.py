"""A list of layers whose type is known."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

from torch import nn

Layer = TypeVar("Layer", bound=nn.Module)


class Layers(nn.ModuleList, Generic[Layer]):
    """`nn.ModuleList`, telling type checkers what is in it."""

    if TYPE_CHECKING:

        def __iter__(self) -> Iterator[Layer]: ...
        def __getitem__(self, index: int) -> Layer: ...  # type: ignore[override]
