"""A GPU's work, recorded once and replayed: its kernels start at once, on the memory that they were recorded with."""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache

import torch
from torch import nn

from regard.kernels.triton_launch import present
from regard.model.capture import quiet

LAUNCHED = 2  # times that work is launched before it is recorded: libraries choose their kernels in the first


def alone(module: nn.Module) -> bool:
    """Whether a module is on a GPU whose work may be recorded, and nobody would change or hear what it does."""
    weight = next(module.parameters())
    undisturbed = not module.training and quiet()
    return weight.is_cuda and undisturbed and not torch.is_autocast_enabled("cuda") and present(weight.device)


def rounded(count: int, *, up: bool) -> int:
    """The nearest of 1, 2, 3, 4, 6, 8, 12, …, so that there are few sizes to record."""
    power = 1 << (count.bit_length() - 1)
    sizes = (power, power + power // 2, 2 * power)
    return min(size for size in sizes if size >= count) if up else max(size for size in sizes if size <= count)


def precision(half: bool) -> AbstractContextManager[object]:
    """Products in bfloat16, or as they are. Nothing converted is remembered: a recording would point to it."""
    return torch.autocast("cuda", torch.bfloat16, cache_enabled=False) if half else nullcontext()


def record(work: Callable[[], None]) -> Callable[[], None] | None:
    """The same work to be replayed; nothing is computed yet. Where it cannot be recorded, it says so once."""
    graph, here, aside = torch.cuda.CUDAGraph(), torch.cuda.current_stream(), _aside(torch.cuda.current_device())
    aside.wait_stream(here)
    try:
        with torch.cuda.stream(aside):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                work()
            finally:
                graph.capture_end()
    except RuntimeError as error:
        first = error.__context__ if isinstance(error.__context__, RuntimeError) else error
        _without(str(first).partition("\n")[0].rstrip("."))
        return None
    here.wait_stream(aside)
    return graph.replay


@lru_cache(maxsize=16)
def _aside(device: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@lru_cache(maxsize=1)
def _without(why: str) -> None:
    """Say it once."""
    print(f"regard: decoding without recorded steps, which is slower: {why}", file=sys.stderr)
