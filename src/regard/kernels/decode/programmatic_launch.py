"""Kernels that begin while the one before them ends, from Hopper on.

Such a kernel fetches what nobody changes, as weights are, and only then waits for what it is given. With few rows a
search waits for kernels to begin more than for their work.
"""

from functools import lru_cache
from typing import no_type_check

import torch
import triton
import triton.language as tl


def early() -> dict[str, bool]:
    """How a kernel is launched on the device at hand."""
    return {"EARLY": True, "launch_pdl": True} if _can(torch.cuda.current_device()) else {"EARLY": False}


@lru_cache(maxsize=16)
def _can(device: int) -> bool:
    return torch.cuda.get_device_capability(device) >= (9, 0) and hasattr(tl.extra.cuda, "gdc_wait")


@triton.jit
@no_type_check
def release(EARLY: tl.constexpr):
    """Let the next kernel begin."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
@no_type_check
def wait(EARLY: tl.constexpr):
    """Until all before it have ended: from here on, what they wrote is there."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
