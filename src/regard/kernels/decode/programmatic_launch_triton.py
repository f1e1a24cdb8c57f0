"""Programmatic dependent launch: kernels that begin while the one before them ends, on Hopper and later.

Such a kernel loads weights, and only then waits for the results of the kernels before it. With few rows, decoding is
bound by launch latency.
"""

from functools import lru_cache
from typing import no_type_check

import torch
import triton
import triton.language as tl


def launch_options() -> dict[str, bool]:
    """Keyword arguments of a launch on the current device."""
    return {"EARLY": True, "launch_pdl": True} if _supported(torch.cuda.current_device()) else {"EARLY": False}


@lru_cache(maxsize=16)
def _supported(device: int) -> bool:
    return torch.cuda.get_device_capability(device) >= (9, 0) and hasattr(tl.extra.cuda, "gdc_wait")


@triton.jit
@no_type_check
def launch_dependents(EARLY: tl.constexpr):
    """Allow the next kernel to begin."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
@no_type_check
def wait(EARLY: tl.constexpr):
    """Wait until the kernels before it have ended and their results are visible."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
