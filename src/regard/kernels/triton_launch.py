"""What every launch of a Triton kernel shares: whether one can be launched at all, how it is told who sees whom, and
how a host hears what came of it.

Nothing needs these kernels: where they cannot be launched this says so once, and PyTorch does the same, more slowly.
"""

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import torch

from regard.core.shapes import Tensor
from regard.kernels.attention.mask import AttentionMask

HALF = (torch.float16, torch.bfloat16)
DTYPES = (torch.float32, *HALF)
SHARED = 227 << 10  # bytes that an H200's programs can share
FAR = 2**30  # sees as far as there are keys
OLDEST = (8, 0)  # of NVIDIA's GPUs that Triton is made for: on some others its compiler ends the process


@lru_cache(maxsize=16)
def present(device: torch.device) -> bool:
    """Whether kernels can be launched on this GPU, as one that was tried shows; no where REGARD_TRITON=0.

    Triton compiles with the C compiler of the machine, for the GPU that is there: either may not do.
    """
    there = sys.platform == "linux" and torch.version.hip is None and find_spec("triton") is not None
    if not there or os.environ.get("REGARD_TRITON") == "0":
        return False
    try:
        _try(device)
    except Exception as error:  # of Triton, of what it calls, or of the driver
        _without(str(error).partition("\n")[0].rstrip(".") or type(error).__name__)
        return False
    return True


def _try(device: torch.device) -> None:
    capability = torch.cuda.get_device_capability(device)
    if capability < OLDEST:
        wanted, got = (".".join(map(str, each)) for each in (OLDEST, capability))
        raise RuntimeError(f"wanted a GPU of compute capability {wanted} or more; got {got}")
    from regard.kernels.probe_triton import probe

    with torch.cuda.device(device):
        probe(device)


@lru_cache(maxsize=1)
def _without(why: str) -> None:
    """Say it once."""
    print(f"regard: on this GPU without kernels of its own, which is slower: {why}", file=sys.stderr)


def takes(*tensors: Tensor) -> bool:
    """Whether these can go to a kernel: on a GPU, not empty, not being traced, and Triton works."""
    first = tensors[0]
    return (
        first.is_cuda
        and all(x.dtype in DTYPES and 0 not in x.shape for x in tensors)
        and not torch.compiler.is_compiling()
        and present(first.device)
    )


def cast_to(x: Tensor) -> torch.dtype:
    """What autocast makes of a number in a product, where it is on; else as it is."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def on_device_of(tensor: Tensor) -> AbstractContextManager[None]:
    """Triton launches on the current device, whichever the tensors are on."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


class HostFuture:
    """What a tensor was, for a host that asks later and does not wait now."""

    def __init__(self, x: Tensor) -> None:
        self.x = x.to("cpu", non_blocking=True) if x.is_cuda else x.clone()
        self.there = torch.cuda.Event() if x.is_cuda else None  # type: ignore[no-untyped-call]
        if self.there is not None:
            self.there.record(torch.cuda.current_stream(x.device))

    def __call__(self) -> list[Any]:
        if self.there is not None:
            self.there.synchronize()
        found: list[Any] = self.x.tolist()
        return found


def sight(visible: AttentionMask, like: Tensor) -> tuple[list[Tensor | int], dict[str, bool]]:
    """A kernel's arguments `allowed` to `ahead`, and the constants that go with them."""
    allowed = visible.allowed
    if allowed is None:
        mask, steps = like.new_empty(1, dtype=torch.uint8), [0] * 4
    else:
        mask = allowed.view(torch.uint8)
        steps = [0 if size == 1 else step for size, step in zip(allowed.shape, allowed.stride(), strict=True)]
    reach = [FAR if x is None else min(x, FAR) for x in (visible.behind, visible.ahead)]
    return [mask, *steps, *reach], {"MASKED": allowed is not None, "BANDED": visible.banded}


@lru_cache(maxsize=16)
def shared(device: torch.device) -> int:
    """Bytes of memory that the threads of a program can share."""
    if device.type != "cuda":
        return SHARED
    return getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", SHARED)


def power(size: int, least: int = 16) -> int:
    """The next power of two, from which Triton makes its tiles."""
    return max(least, 1 << (size - 1).bit_length())
