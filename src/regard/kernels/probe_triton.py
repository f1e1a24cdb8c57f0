"""The smallest Triton kernel: shows whether Triton can compile, launch and compute on a device."""

from typing import no_type_check

import torch
import triton
import triton.language as tl

COUNT = 16


def probe(device: torch.device) -> None:
    """Launch the kernel and check its result; raises whatever goes wrong."""
    x = torch.arange(COUNT, dtype=torch.float32, device=device)
    out = torch.empty_like(x)
    _double[(1,)](x, out, COUNT=COUNT)
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return  # reading a result is not permitted while a CUDA graph is captured
    if not torch.equal(out, 2 * x):
        raise RuntimeError(f"a kernel computed {out.tolist()}")


@triton.jit
@no_type_check
def _double(x, out, COUNT: tl.constexpr):
    at = tl.arange(0, COUNT)
    tl.store(out + at, 2 * tl.load(x + at))
