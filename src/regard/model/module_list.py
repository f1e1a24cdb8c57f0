"""A module list with a typed element."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

from torch import nn

ModuleType = TypeVar("ModuleType", bound=nn.Module)


class TypedModuleList(nn.ModuleList, Generic[ModuleType]):
    """`nn.ModuleList` whose element type is known to type checkers."""

    if TYPE_CHECKING:

        def __iter__(self) -> Iterator[ModuleType]: ...
        def __getitem__(self, index: int) -> ModuleType: ...  # type: ignore[override]
