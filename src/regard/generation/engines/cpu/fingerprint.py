"""Whether the weights of a module have changed since they were packed."""

import ctypes

from torch import nn

from regard.core.shapes import Tensor


def fingerprint(library: ctypes.CDLL, module: nn.Module) -> list[int]:
    """Numbers that change when a weight changes.

    PyTorch's version counter misses fused optimizers and writes through `.data`; a hash catches these, because they
    change many weights at once: it reads small tensors, and 64 bytes in each 32 KiB of large ones, before every search.
    """
    weights = _parameters(module)
    flat = [
        weight if weight.is_contiguous() else weight.detach().contiguous() for weight in weights
    ]
    count = len(flat)
    addresses = (ctypes.c_void_p * count)(*[weight.data_ptr() for weight in flat])
    sizes = (ctypes.c_int64 * count)(*[weight.nbytes for weight in flat])
    hashed = library.regard_fingerprint(addresses, sizes, ctypes.c_int64(count))
    return [hashed, *[0 if weight.is_inference() else weight._version for weight in weights]]


def _parameters(module: nn.Module) -> list[Tensor]:
    """Those of `module.parameters()`, shared ones as often as they occur: in a tenth of its time."""
    modules: list[nn.Module | None] = [module]
    weights: list[Tensor | None] = []
    for one in modules:  # which grows on the way
        if one is not None:
            weights += one._parameters.values()
            modules += one._modules.values()
    return [weight for weight in weights if weight is not None]
