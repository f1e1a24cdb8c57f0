"""A GPU's work, recorded once and replayed: its kernels start at once, on the memory that they were recorded with."""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from regard.kernels.gpu import present
from regard.model.listening import anyone, anyone_changes
from regard.shapes import Tensor

LAUNCHED = 2  # times that work is launched before it is recorded: libraries choose their kernels in the first


def alone(module: nn.Module) -> bool:
    """Whether a module is on a GPU whose work may be recorded, and nobody would change or hear what it does."""
    weight = next(module.parameters())
    quiet = not module.training and not anyone() and not anyone_changes()
    return weight.is_cuda and quiet and not torch.is_autocast_enabled("cuda") and present(weight.device)


def rounded(count: int, *, up: bool) -> int:
    """The nearest of 1, 2, 3, 4, 6, 8, 12, …, so that there are few sizes to record."""
    power = 1 << (count.bit_length() - 1)
    sizes = (power, power + power // 2, 2 * power)
    return min(size for size in sizes if size >= count) if up else max(size for size in sizes if size <= count)


class Told:
    """What a tensor was, for a host that asks later and does not wait now."""

    def __init__(self, x: Tensor) -> None:
        self.x = x.to("cpu", non_blocking=True) if x.is_cuda else x.clone()
        self.there = torch.cuda.Event() if x.is_cuda else None  # type: ignore[no-untyped-call]
        if self.there is not None:
            self.there.record(torch.cuda.current_stream(x.device))

    def __call__(self) -> list[Any]:
        if self.there is not None:
            self.there.synchronize()
        found: list[Any] = self.x.tolist()
        return found


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
