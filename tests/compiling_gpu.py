"""Compiles every kernel of `looking_gpu` and of training for an H200, without one. Prints how many.

A program, not a test: Triton asks once in a process whether it is to interpret.
"""

import sys
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from regard.kernels import (
    additive,
    cells_gpu,
    dots,
    gpu,
    joining,
    looking_gpu,
    packed,
    scanning,
    training_gpu,
    wide_gpu,
    windows,
    windows_gpu,
)
from regard.kernels.energies import DotEnergy
from regard.kernels.lookup import Lookup
from regard.kernels.recurrence import CELLS, Steps
from regard.kernels.visibility import Visibility
from regard.sequence import Ends
from regard.training import loss


class Device:
    """What Triton asks of a GPU before it compiles."""

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


class Compiled:
    """A kernel that is compiled where it would be launched."""

    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        return lambda *given, **constants: made.append(self.kernel.warmup(*given, grid=grid, **constants))


made: list = []


def main() -> None:
    triton.runtime.driver.set_active(Device())
    for name in ("additive_scores", "weigh", "d_weigh", "additive_gradient", "dot_rows", "dot_summary"):
        setattr(looking_gpu, name, Compiled(getattr(looking_gpu, name)))
    for module, names in ((additive, ("ROWS", "KEYS", "OWN", "COLUMNS", "TILE", "WIDTH")), (dots, ("ROWS", "KEYS"))):
        for name in names:  # small tiles compile soonest
            setattr(module, name, 16)
    n, seed = 24, torch.zeros(1, dtype=torch.int64)
    mask = torch.ones(1, 1, 1, n, dtype=torch.bool)
    for dtype, allowed, reach, dropped in ((torch.bfloat16, None, (None, None), 0), (torch.float32, mask, (3, 0), 9)):
        query, key, value = (torch.zeros(1, 2, n, 20, dtype=dtype) for _ in range(3))
        launch = additive._Launch(reach, dropped, seed, allowed, query, key, torch.zeros(1, 20), value)
        launch.pace["FAST"] = dtype == torch.bfloat16
        out, lse, kept = launch.forward()
        launch.backward(out, lse, kept, out)
        lookup = Lookup(DotEnergy(1.0), query, key, Visibility(allowed, *reach))
        dots.weights(lookup, slice(0, n), lse)
        dots.summarise(lookup, 5, torch.ones(n), lse)
    for name in ("join", "d_join", "d_activate", "look", "d_look", "surprise", "paired_surprise"):
        setattr(training_gpu, name, Compiled(getattr(training_gpu, name)))
    for module, name in ((wide_gpu, "wide_look"), (windows_gpu, "gather"), (cells_gpu, "step")):
        for each in (name, f"d_{name}"):
            setattr(module, each, Compiled(getattr(module, each)))
    for dtype, dropout in ((torch.bfloat16, 0.1), (torch.float32, 0.0)):
        training(dtype, dropout)
    convolutions(torch.bfloat16)
    recurrences(torch.bfloat16)
    assert all(kernel.asm["cubin"] for kernel in made)
    assert all(kernel.metadata.shared <= gpu.SHARED for kernel in made)
    print(len(made))


class Context:
    """What autograd hands to a function's forward and backward."""

    needs_input_grad = (True,) * 8

    def save_for_backward(self, *tensors):
        self.saved_tensors = tensors

    def set_materialize_grads(self, _):
        pass


@torch.no_grad()
def training(dtype, dropout) -> None:
    x, low = torch.zeros(8, 40), torch.zeros(8, 40, dtype=dtype)
    seed, weight = torch.zeros(1, dtype=torch.int64), torch.ones(40)
    for added, bias in ((low, weight), (None, None)):
        ctx = Context()
        joining._Join.forward(ctx, x, added, weight, bias, seed, 1e-5, int(dropout * 65536), dtype)
        joining._Join.backward(ctx, None if added is None else x, low)
    ends, ctx = Ends.of([5, 3]), Context()
    packed._Short.forward(ctx, False, packed.Heads(4, 2, 5, 1.0, True, dropout), ends, ends, seed, low, None)
    packed._Short.backward(ctx, low[:, :20])
    for agreement in (0.0, 1.0):
        loss._on_gpu(low, low[:6], low[0, :6], torch.zeros(8, dtype=torch.int64), 0.1, agreement, 4, (True,) * 3)


@torch.no_grad()
def convolutions(dtype) -> None:
    """With the largest tiles."""
    low, ends, ctx = torch.zeros(133, 3 * 512, dtype=dtype), Ends.of([128, 5]), Context()
    seed = torch.zeros(1, dtype=torch.int64)
    packed._Short.forward(ctx, True, packed.Heads(1, 1, 512, 1.0, True, 0.1), ends, ends, seed, low, None)
    packed._Short.backward(ctx, low[:, :512])
    windows._Windows.forward(ctx, low[:, :512].contiguous(), *windows.Sides.of(ends), range(-2, 3, 2))
    windows._Windows.backward(ctx, low)


@torch.no_grad()
def recurrences(dtype) -> None:
    low, steps = torch.zeros(2, 5, 24, dtype=dtype), Steps([3, 2])
    for name, gates in (("elman", 1), ("gru", 3), ("lstm", 4)):
        bias = torch.zeros(2, CELLS[name].count * 20)
        weights = torch.zeros(2, gates * 20, 24), torch.zeros(2, gates * 20, 20), bias
        start = low[:, :3, :20], *((torch.zeros(2, 3, 20),) if name == "lstm" else ())
        ctx = Context()
        states = scanning._Scan.forward(ctx, name, steps, low, *weights, *start)
        scanning._Scan.backward(ctx, *states)


if __name__ == "__main__":
    main()
