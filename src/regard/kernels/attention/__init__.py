"""Attention kernels: reference, SDPA, blockwise, variable-length, additive; exact weights and summaries."""
