"""Peak memory and time, as the benchmarks and the tests measure them."""

import gc
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch.profiler import ProfilerActivity, profile


def peak_bytes(run: Callable[[], object]) -> int:
    """The most memory that `run` held at once on the CPU, over what was held before: each allocation is counted."""
    run()  # what is allocated once and for all does not count
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]  # type: ignore[union-attr]
    held = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


def seconds(
    runs: dict[str, Callable[[], object]],
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """How long each run took, in rounds that take them in turn, so that a noisy machine is noisy to all alike.

    clock   time.process_time counts the time of processors alone, where others use the machine as well
    """
    for run in runs.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            start = clock()
            run()
            times[name].append(clock() - start)
    return times


def ratio(times: dict[str, list[float]], name: str, base: str) -> float:
    """The median over rounds of one run's time as a multiple of another's in the same round."""
    return median(a / b for a, b in zip(times[name], times[base], strict=True))


def grad_run(
    function: Callable[..., torch.Tensor], inputs: list[torch.Tensor]
) -> Callable[[], None]:
    """Forwards and backwards through `function`, for timing and weighing."""

    def run() -> None:
        out = function(*inputs)
        torch.autograd.grad(out, inputs, torch.ones_like(out))

    return run


def write_section(path: Path, title: str, text: str) -> None:
    """Put a text under a title of a Markdown file, in place of what stands there."""
    old = path.read_text("utf-8") if path.exists() else ""
    before, _, rest = f"\n{old}".partition(f"\n# {title}\n")
    _, next_title, after = rest.partition("\n# ")
    parts = [before.strip("\n"), f"# {title}\n\n{text.strip()}", next_title.strip("\n") + after]
    path.write_text("\n\n".join(part.rstrip() for part in parts if part) + "\n", "utf-8")
