"""What every launch of a Triton kernel shares: availability, the device, mask arguments, tile sizes.

No model needs these kernels: where they cannot be launched this is logged once, and PyTorch computes the same, slower.
"""

import logging
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from threading import Lock, Thread

import torch

from regard.core.atomic_io import private_folder
from regard.core.shapes import Tensor
from regard.kernels.attention.mask import AttentionMask

log = logging.getLogger(__name__)

HALF = (torch.float16, torch.bfloat16)
DTYPES = (torch.float32, *HALF)
SHARED = 227 << 10  # bytes of shared memory of an H200's thread block
UNBOUNDED = 2**30  # a window that reaches every key
_probing = Lock()  # a second call waits for the first, and is then short
MIN_CAPABILITY = (
    8,
    0,
)  # of the GPUs Triton supports; on some older ones its compiler ends the process


@lru_cache(maxsize=16)
def available(device: torch.device) -> bool:
    """Whether a probe kernel runs on this GPU; False where REGARD_TRITON=0.

    Triton compiles with the machine's C compiler for the GPU it finds: either may be unsuitable.
    """
    installed = (
        sys.platform == "linux" and torch.version.hip is None and find_spec("triton") is not None
    )
    if not installed or os.environ.get("REGARD_TRITON") == "0":
        return False
    try:
        with _probing:
            _try(device)
    except Exception as error:  # of Triton, of a tool it runs, or of the driver
        _warn(str(error).partition("\n")[0].rstrip(".") or type(error).__name__)
        return False
    return True


def prepare(name: str) -> None:
    """Call `available` in a thread of its own, while this one does something else, such as reading weights.

    The first call takes most of a second: it imports Triton, which then hashes its own files to know what is cached.
    """
    device = torch.device(name)
    if device.type == "cuda":
        current = torch.cuda.current_device() if torch.cuda.is_initialized() else 0  # type: ignore[no-untyped-call]
        indexed = torch.device("cuda", current if device.index is None else device.index)
        Thread(target=available, args=(indexed,), name="prepare Triton").start()


def _try(device: torch.device) -> None:
    capability = torch.cuda.get_device_capability(device)
    if capability < MIN_CAPABILITY:
        wanted, got = (".".join(map(str, each)) for each in (MIN_CAPABILITY, capability))
        raise RuntimeError(f"wanted a GPU of compute capability {wanted} or more; got {got}")
    private_folder(cache_folder())  # Triton loads compiled code from there
    from regard.kernels.jit_triton import probe

    with torch.cuda.device(device):
        probe(device)


def cache_folder() -> Path:
    """Triton's own: $TRITON_CACHE_DIR, or .triton/cache in $TRITON_HOME or the user's home."""
    given = os.environ.get("TRITON_CACHE_DIR", "").strip()
    return (
        Path(given)
        if given
        else Path(os.environ.get("TRITON_HOME") or Path.home()) / ".triton" / "cache"
    )


@lru_cache(maxsize=1)  # logged once
def _warn(reason: str) -> None:
    log.warning("Triton kernels are unavailable on this GPU, PyTorch's are slower: %s", reason)


def can_launch(*tensors: Tensor) -> bool:
    """Whether a kernel can take these tensors: on a GPU, not empty, not under torch.compile, and Triton works."""
    first = tensors[0]
    return (
        first.is_cuda
        and all(x.dtype in DTYPES and 0 not in x.shape for x in tensors)
        and not torch.compiler.is_compiling()
        and available(first.device)
    )


def autocast_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which autocast would multiply this tensor; its own where autocast is off."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def on_device_of(tensor: Tensor) -> AbstractContextManager[None]:
    """Make the tensor's device current: Triton launches on the current device."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def mask_arguments(
    visible: AttentionMask, like: Tensor
) -> tuple[list[Tensor | int], dict[str, bool]]:
    """A kernel's arguments `allowed` to `ahead` for a mask, and the constants MASKED and BANDED."""
    allowed = visible.allowed
    if allowed is None:
        mask, strides = like.new_empty(1, dtype=torch.uint8), [0] * 4
    else:
        mask = allowed.view(torch.uint8)
        strides = [
            0 if size == 1 else step
            for size, step in zip(allowed.shape, allowed.stride(), strict=True)
        ]
    window = [
        UNBOUNDED if x is None else min(x, UNBOUNDED) for x in (visible.behind, visible.ahead)
    ]
    return [mask, *strides, *window], {"MASKED": allowed is not None, "BANDED": visible.banded}


@lru_cache(maxsize=16)
def shared_memory_bytes(device: torch.device) -> int:
    """Bytes of shared memory of a thread block."""
    if device.type != "cuda":
        return SHARED
    return getattr(
        torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", SHARED
    )


def next_power_of_2(size: int, least: int = 16) -> int:
    """The smallest power of two that is at least `size` and `least`, as Triton requires of tiles."""
    return max(least, 1 << (size - 1).bit_length())
