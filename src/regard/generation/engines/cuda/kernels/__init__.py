"""Decode-step kernels: one position per sequence, sampling, top-k."""
