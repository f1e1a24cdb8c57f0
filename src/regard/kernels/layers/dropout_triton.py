"""Triton kernel part: the keep mask of dropout, recomputed in the backward pass instead of stored."""

import triton.language as tl

from regard.kernels.jit_triton import jit


@jit
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
