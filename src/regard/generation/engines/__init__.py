"""Engines that accelerate a decoder behind the same interface: compiled C++ on a CPU, CUDA graphs on a GPU."""
