"""The decorator of all Triton kernels, and a probe that shows whether Triton can compile and launch on a device."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl

COUNT = 16


def jit(kernel: Callable[..., Any] | None = None, **options: Any) -> Any:
    """`triton.jit` of the function itself, which the tests may have wrapped to check shapes."""
    if kernel is None:
        return partial(jit, **options)
    return triton.jit(inspect.unwrap(kernel), **options)


def probe(device: torch.device) -> None:
    """Launch a kernel and check its result. Any error is raised."""
    x = torch.arange(COUNT, dtype=torch.float32, device=device)
    out = torch.empty_like(x)
    _double[(1,)](x, out, COUNT=COUNT)
    # Reading a result is not permitted while a CUDA graph is captured.
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return
    if not torch.equal(out, 2 * x):
        raise RuntimeError(f"a kernel computed {out.tolist()}")


@jit
def _double(x, out, COUNT: tl.constexpr):
    at = tl.arange(0, COUNT)
    tl.store(out + at, 2 * tl.load(x + at))
