"""Triton kernel part: the keep mask of dropout, recomputed in the backward pass instead of stored."""

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def keep_mask(seed, index, dropped):
    """True where dropout keeps a number: a hash of seed and index, equal in forward and backward.

    `dropped` of 65536 outcomes drop. The hash is Wellons' lowbias32, with half of the seed mixed in before each
    multiplication.
    """
    seed = tl.load(seed)
    x = index.to(tl.uint32) ^ (seed & 0xFFFFFFFF).to(tl.uint32)
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) + (seed >> 32).to(tl.uint32)
    x = x * 0x846CA68B
    x = x ^ (x >> 16)
    return (x & 0xFFFF).to(tl.int32) >= dropped
