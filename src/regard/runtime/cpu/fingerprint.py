"""Whether the weights of a module have changed since they were packed."""

import ctypes
from collections.abc import Iterator

from torch import nn

from regard.core.shapes import Tensor


def fingerprint(library: ctypes.CDLL, module: nn.Module) -> list[int]:
    """Numbers that change when a weight changes.

    PyTorch's version counter misses fused optimizers and writes through `.data`; a hash of a small part of each 32 KiB
    catches these, because they change many weights at once. It is computed before every search.
    """
    weights = list(_parameters(module))
    flat = [weight if weight.is_contiguous() else weight.detach().contiguous() for weight in weights]
    count = len(flat)
    addresses = (ctypes.c_void_p * count)(*[weight.data_ptr() for weight in flat])
    sizes = (ctypes.c_int64 * count)(*[weight.nbytes for weight in flat])
    hashed = library.regard_fingerprint(addresses, sizes, ctypes.c_int64(count))
    return [hashed, *[0 if weight.is_inference() else weight._version for weight in weights]]


def _parameters(module: nn.Module) -> Iterator[Tensor]:
    """Those of `module.parameters()`, shared ones as often as they occur: in a tenth of its time."""
    modules = [module]
    while modules:
        one = modules.pop()
        yield from [weight for weight in one._parameters.values() if weight is not None]
        modules += [child for child in one._modules.values() if child is not None]
