"""Builds models whose parameters are loaded afterwards, without drawing initial values for them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from regard.core.shapes import Tensor

_DRAWS = (torch.rand, torch.randn)
_FILLS = (
    Tensor.uniform_,
    Tensor.normal_,
    nn.init.uniform_,
    nn.init.normal_,
    nn.init.trunc_normal_,
    nn.init.xavier_uniform_,
    nn.init.xavier_normal_,
    nn.init.kaiming_uniform_,
    nn.init.kaiming_normal_,
)
_SCALINGS = (Tensor.mul, Tensor.div)


class _WithoutRandomValues(TorchFunctionMode):
    """Leaves memory as it is where random values would be drawn from PyTorch's default generator.

    On the meta device it also skips the scaling of such values: PyTorch imports its compiler for
    that.
    """

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("generator") is None:
            if function in _FILLS:
                return args[0] if args else kwargs["tensor"]
            if function in _DRAWS:
                return torch.empty(*args, **kwargs)
        if (
            function in _SCALINGS
            and isinstance(args[0], Tensor)
            and args[0].is_meta
            and isinstance(args[1], float)
        ):
            return args[0]
        return function(*args, **kwargs)


@contextmanager
def uninitialized() -> Iterator[None]:
    """Modules made here have parameters without values where they would be random.

    All of them must be loaded.
    """
    with _WithoutRandomValues():
        yield


def only_parameters(model: nn.Module) -> bool:
    """Whether a model's tensors are its parameters:
    a model on the meta device is then complete once these are loaded.

    Buffers and tensors in attributes of a module have values that its constructor computes, and its
    lists of parameters (as those of `nn.GRU`) would keep the ones that loading replaces.
    """
    return not any(
        module._buffers or any(_holds_tensor(value) for value in vars(module).values())
        for module in model.modules()
    )


def _holds_tensor(value: object) -> bool:
    if isinstance(value, dict):
        return any(
            _holds_tensor(each) for each in value.values() if not isinstance(each, nn.Parameter)
        )
    if isinstance(value, list | tuple):
        return any(_holds_tensor(each) for each in value)
    return isinstance(value, Tensor)
