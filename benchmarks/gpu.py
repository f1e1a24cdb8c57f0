"""Speed on one GPU, in tokens per second: Regard against Hugging Face and PyTorch's own modules.

    .venv/bin/python benchmarks/gpu.py --out benchmarks/RESULTS.md
    .venv/bin/python benchmarks/gpu.py --only decoding --rounds 3

All weights are random. gpu_decoding.py, gpu_training.py and gpu_kernels.py describe what each part measures.

The implementations are warmed up and then timed in rounds, one after another; a figure is the median round. In each
round an implementation runs again and again for a tenth of a second, so that a search of a few milliseconds is timed
as in a server that is busy with it. The floor is what the GPU allows at the memory bandwidth and the speed of matrix
products that are measured first.

A further part is a function from the limits of the GPU, the rounds and the vocabulary size to lines of text, and an
entry in PARTS.
"""

import argparse
import platform
from collections.abc import Callable
from datetime import date
from functools import partial
from pathlib import Path

import torch
import transformers

import gpu_decoding
import gpu_kernels
import gpu_training
import regard
from gpu_limits import GpuLimits
from measure import write_section


def kernels(limits: GpuLimits, rounds: int, vocabulary: int) -> list[str]:
    lines = []
    for line in gpu_kernels.table(4 * rounds):
        print(line, flush=True)
        lines.append(line)
    return lines


PARTS: dict[str, Callable[[GpuLimits, int, int], list[str]]] = {
    "decoding": gpu_decoding.table,
    "training": gpu_training.table,
    "kernels": kernels,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--vocabulary", type=int, default=12_000, help="vocabulary size of the encoder-decoders"
    )
    parser.add_argument("--out", type=Path, help="a Markdown file in which the tables are kept")
    parser.add_argument(
        "--profile", action="store_true", help="also print the time of each kernel in our training"
    )
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this benchmark needs a GPU, and there is none.")
    limits = GpuLimits()
    lines = [
        f"`python benchmarks/gpu.py`, {date.today()}: {torch.cuda.get_device_name()}, "
        f"Python {platform.python_version()}, torch {torch.__version__}, transformers {transformers.__version__}, "
        f"Regard {regard.__version__}; copies {limits.bandwidth / 1e12:.1f} TB/s, "
        f"products {limits.speed / 1e12:.0f} TFLOP/s.\n",
    ]
    print("\n".join(lines), flush=True)
    for name in options.only:
        part = (
            partial(gpu_training.table, profiled=options.profile)
            if name == "training"
            else PARTS[name]
        )
        lines += [*part(limits, options.rounds, options.vocabulary), ""]
        if options.out:
            write_section(options.out, "Speed on one GPU", "\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
