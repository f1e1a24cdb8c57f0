"""What every launch of a Triton kernel shares: whether one can be launched at all, and how it is told who sees whom.

REGARD_TRITON=1 asks for them, and for searches whose steps are recorded. Nobody gets either unasked before they have
been run on a GPU as they are: so far Triton's interpreter has run the kernels, and its compiler has compiled them.
"""

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from importlib.util import find_spec

import torch

from regard.kernels.visibility import Visibility
from regard.shapes import Tensor

HALF = (torch.float16, torch.bfloat16)
DTYPES = (torch.float32, *HALF)
FAR = 2**30  # sees as far as there are keys


@lru_cache(maxsize=1)
def present() -> bool:
    """Whether Triton is there, and asked for."""
    asked = os.environ.get("REGARD_TRITON") == "1"
    return asked and sys.platform == "linux" and find_spec("triton") is not None


def takes(*tensors: Tensor) -> bool:
    """Whether these can go to a kernel: on a GPU, not empty, not being traced, and Triton is there."""
    first = tensors[0]
    return (
        first.is_cuda
        and all(x.dtype in DTYPES and 0 not in x.shape for x in tensors)
        and not torch.compiler.is_compiling()
        and torch.version.hip is None
        and present()
    )


def on_device_of(tensor: Tensor) -> AbstractContextManager[None]:
    """Triton launches on the current device, whichever the tensors are on."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def sight(visible: Visibility, like: Tensor) -> tuple[list[Tensor | int], dict[str, bool]]:
    """A kernel's arguments `allowed` to `ahead`, and the constants that go with them."""
    allowed = visible.allowed
    if allowed is None:
        mask, steps = like.new_empty(1, dtype=torch.uint8), [0] * 4
    else:
        mask = allowed.view(torch.uint8)
        steps = [0 if size == 1 else step for size, step in zip(allowed.shape, allowed.stride(), strict=True)]
    reach = [FAR if x is None else min(x, FAR) for x in (visible.behind, visible.ahead)]
    return [mask, *steps, *reach], {"MASKED": allowed is not None, "BANDED": visible.banded}


def power(size: int, least: int = 16) -> int:
    """The next power of two, from which Triton makes its tiles."""
    return max(least, 1 << (size - 1).bit_length())
