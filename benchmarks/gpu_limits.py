"""How implementations are timed on a GPU, and what the GPU allows."""

import time
from collections.abc import Callable
from statistics import median

import torch

TURN = 0.1  # seconds for which an implementation runs again and again in a round

Run = Callable[[], object]


def timed(runs: dict[str, Run], rounds: int) -> dict[str, float]:
    """Seconds of one run of each implementation: the median over rounds."""
    for run in runs.values():
        for _ in range(3):
            run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            torch.cuda.synchronize()
            start, count, elapsed = time.perf_counter(), 0, 0.0
            while elapsed < TURN:
                run()
                torch.cuda.synchronize()
                count, elapsed = count + 1, time.perf_counter() - start
            times[name].append(elapsed / count)
    return {name: median(each) for name, each in times.items()}


class GpuLimits:
    """Bytes per second of copies, and floating-point operations per second of products in bfloat16."""

    def __init__(self) -> None:
        x, y = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        large = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
        found = timed({"copy": lambda: large.clone(), "product": lambda: x @ y}, 10)
        self.bandwidth, self.speed = (
            2 * large.numel() / found["copy"],
            2 * 8192**3 / found["product"],
        )

    def seconds(self, weights: int, rows: int) -> float:
        """The least time of a product of `rows` vectors with so many weights of two bytes."""
        return max(2 * weights / self.bandwidth, 2 * weights * rows / self.speed)
