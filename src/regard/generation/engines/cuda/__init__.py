"""The CUDA engine: static decoder, decode buffers, CUDA graphs."""
