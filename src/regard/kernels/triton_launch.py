"""What every launch of a Triton kernel shares: availability, the device, mask arguments, tile sizes.

No model needs these kernels. Where they cannot be launched, this is logged once, and PyTorch computes the same slower.
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
# Of the GPUs that Triton supports. On some older ones its compiler ends the process.
MIN_CAPABILITY = (8, 0)


@lru_cache(maxsize=16)
def available(device: torch.device) -> bool:
    """Whether a probe kernel runs on this GPU; False where REGARD_TRITON=0.

    Triton compiles with the machine's C compiler for the GPU it finds: either may be unsuitable.
    """
    is_cuda_on_linux = sys.platform == "linux" and torch.version.hip is None
    installed = is_cuda_on_linux and find_spec("triton") is not None
    if not installed or os.environ.get("REGARD_TRITON") == "0":
        return False
    try:
        with _probing:
            _try(device)
    except Exception as error:
        # Triton, a tool that it runs, or the driver may raise anything.
        first_line = str(error).partition("\n")[0]
        _warn(first_line.rstrip(".") or type(error).__name__)
        return False
    return True


def prepare(name: str) -> None:
    """Call `available` in a thread of its own, while this one does something else, such as reading weights.

    The first call takes most of a second: it imports Triton, which then hashes its own files to know what is cached.
    """
    device = torch.device(name)
    if device.type != "cuda":
        return
    index = device.index
    if index is None:
        is_initialized = torch.cuda.is_initialized()
        index = torch.cuda.current_device() if is_initialized else 0
    indexed = torch.device("cuda", index)
    Thread(target=available, args=(indexed,), name="prepare Triton").start()


def _try(device: torch.device) -> None:
    capability = torch.cuda.get_device_capability(device)
    if capability < MIN_CAPABILITY:
        wanted = ".".join(map(str, MIN_CAPABILITY))
        got = ".".join(map(str, capability))
        raise RuntimeError(f"wanted a GPU of compute capability {wanted} or more; got {got}")
    # Triton loads compiled code from this folder.
    private_folder(cache_folder())
    from regard.kernels.jit_triton import probe

    with torch.cuda.device(device):
        probe(device)


def cache_folder() -> Path:
    """Triton's own cache: $TRITON_CACHE_DIR, or .triton/cache in $TRITON_HOME or the user's home."""
    given = os.environ.get("TRITON_CACHE_DIR", "").strip()
    if given:
        return Path(given)
    return Path(os.environ.get("TRITON_HOME") or Path.home()) / ".triton" / "cache"


@lru_cache(maxsize=1)  # logged once
def _warn(reason: str) -> None:
    log.warning("Triton kernels are unavailable on this GPU, PyTorch's are slower: %s", reason)


def can_launch(*tensors: Tensor) -> bool:
    """Whether a kernel can take these tensors: on a GPU, not empty, not under torch.compile, and Triton works."""
    first = tensors[0]
    if not first.is_cuda:
        return False
    if not all(x.dtype in DTYPES and 0 not in x.shape for x in tensors):
        return False
    return not torch.compiler.is_compiling() and available(first.device)


def autocast_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which autocast would multiply this tensor; its own where autocast is off."""
    device = x.device.type
    if torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return x.dtype


def on_device_of(tensor: Tensor) -> AbstractContextManager[None]:
    """Make the tensor's device current: Triton launches on the current device."""
    if tensor.is_cuda:
        return torch.cuda.device(tensor.device)
    return nullcontext()


def mask_arguments(
    visible: AttentionMask, like: Tensor
) -> tuple[list[Tensor | int], dict[str, bool]]:
    """A kernel's arguments `allowed` to `ahead` for a mask, and the constants MASKED and BANDED."""
    allowed = visible.allowed
    if allowed is None:
        mask = like.new_empty(1, dtype=torch.uint8)
        strides = [0] * 4
    else:
        mask = allowed.view(torch.uint8)
        # An axis of size one is read again for every index.
        axes = zip(allowed.shape, allowed.stride(), strict=True)
        strides = [0 if size == 1 else step for size, step in axes]
    limits = (visible.behind, visible.ahead)
    window = [UNBOUNDED if x is None else min(x, UNBOUNDED) for x in limits]
    constants = {"MASKED": allowed is not None, "BANDED": visible.banded}
    return [mask, *strides, *window], constants


@lru_cache(maxsize=16)
def shared_memory_bytes(device: torch.device) -> int:
    """Bytes of shared memory of a thread block."""
    if device.type != "cuda":
        return SHARED
    properties = torch.cuda.get_device_properties(device)
    return getattr(properties, "shared_memory_per_block_optin", SHARED)


def next_power_of_2(size: int, least: int = 16) -> int:
    """The smallest power of two that is at least `size` and `least`, as Triton requires of tiles."""
    return max(least, 1 << (size - 1).bit_length())
