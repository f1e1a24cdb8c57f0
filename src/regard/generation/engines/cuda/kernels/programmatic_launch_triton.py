"""Programmatic dependent launch: kernels that begin while the one before them ends, on Hopper and later.

Such a kernel loads weights, and only then waits for the results of the kernels before it. With few rows, decoding is
bound by launch latency.
"""

from functools import lru_cache

import torch
import triton.language as tl

from regard.kernels.jit_triton import jit


def launch_options() -> dict[str, bool]:
    """Keyword arguments of a launch on the current device."""
    early = torch.cuda.is_available() and _supported(
        torch.cuda.current_device()
    )  # not in Triton's interpreter
    return {"EARLY": True, "launch_pdl": True} if early else {"EARLY": False}


@lru_cache(maxsize=16)
def _supported(device: int) -> bool:
    return torch.cuda.get_device_capability(device) >= (9, 0) and hasattr(tl.extra.cuda, "gdc_wait")


@jit
def launch_dependents(EARLY: tl.constexpr):
    """Allow the next kernel to begin."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()


@jit
def wait(EARLY: tl.constexpr):
    """Wait until the kernels before it have ended and their results are visible."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
