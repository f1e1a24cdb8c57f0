"""Start-up: `regard predict` of one line against `python -c "import torch"` and the reading of the weights.

    python benchmarks/startup.py                     # a translation model of 4 + 4 blocks of 256 with random weights
    python benchmarks/startup.py --model runs/translation --rounds 11

Each contestant is a process of its own; they run in turn. "floor" imports PyTorch and reads model.safetensors. A ratio
is the median over rounds of the wall-clock times in one round, and beside it of the processor times (user and system),
which a busy machine changes less. The caches of the system and of the compiled engine are warm.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from regard.checkpoint.format import WEIGHTS, find_checkpoint
from serve import RATIO, random_model, sentences

READ = "import sys, torch; open(sys.argv[1], 'rb').read()"


def run(command: list[str]) -> tuple[float, float]:
    """Wall-clock and processor seconds of a process."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    wall, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("REGARD_DATA"))
    parser.add_argument("--model", type=Path, help="a run or a checkpoint")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        texts, more = sentences(None if options.data is None else Path(options.data), 100)
        model, line = options.model or Path(temporary) / "model", Path(temporary) / "line.txt"
        if options.model is None:
            random_model(model, more)
        line.write_text(f"{texts[0]}\n", encoding="utf-8")
        ratio = ["--set", f"max_length_ratio={RATIO}"] if options.model is None else []
        contestants = {
            "import torch": [sys.executable, "-c", "import torch"],
            "floor": [sys.executable, "-c", READ, str(find_checkpoint(model) / WEIGHTS)],
            "regard predict": [sys.executable, "-m", "regard", "predict", str(model), str(line), *ratio],
        }
        compare(contestants, options.rounds)


def compare(contestants: dict[str, list[str]], rounds: int) -> None:
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for name, command in contestants.items():
            seconds = run(command)
            if number:
                taken[name].append(seconds)
    print("| | seconds | × floor | processor seconds | × floor |\n|---|---|---|---|---|")
    for name, each in taken.items():
        cells = []
        for kind in (0, 1):
            ratios = [one[kind] / floor[kind] for one, floor in zip(each, taken["floor"], strict=True)]
            cells += [f"{median(one[kind] for one in each):.2f}", f"{median(ratios):.2f}"]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
