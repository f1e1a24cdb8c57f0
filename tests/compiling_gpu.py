"""Compiles every kernel of `regard.kernels.looking_gpu` for an H200, which takes Triton and no GPU. Prints how many.

A program, not a test: Triton asks once in a process whether it is to interpret.
"""

import sys
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from regard.kernels import additive, dots, looking_gpu
from regard.kernels.energies import DotEnergy
from regard.kernels.lookup import Lookup
from regard.kernels.visibility import Visibility


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
    assert all(kernel.asm["cubin"] for kernel in made)
    print(len(made))


if __name__ == "__main__":
    main()
