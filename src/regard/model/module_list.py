"""A list of layers whose type is known."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

from torch import nn

ModuleType = TypeVar("ModuleType", bound=nn.Module)


class TypedModuleList(nn.ModuleList, Generic[ModuleType]):
    """`nn.ModuleList`, telling type checkers what is in it."""

    if TYPE_CHECKING:

        def __iter__(self) -> Iterator[ModuleType]: ...
        def __getitem__(self, index: int) -> ModuleType: ...  # type: ignore[override]
