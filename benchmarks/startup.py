"""Start-up: `regard predict` of one line against `python -c "import torch"` and the reading of the weights.

    python benchmarks/startup.py                     # a translation model of 4 + 4 blocks of 256 with random weights
    python benchmarks/startup.py --model runs/translation --rounds 11
    python benchmarks/startup.py --device cuda       # the first prediction on a GPU, and where its time goes

Each contestant is a process of its own; they run in turn. "floor" imports PyTorch and reads model.safetensors. A ratio
is the median over rounds of the wall-clock times in one round, and beside it of the processor times (user and system),
which a busy machine changes less. The caches of the system and of the compiled engine are warm.

On a GPU the floor also makes a CUDA context and copies the weights to it, and `regard predict` runs with an empty and
with a filled cache of Triton's kernels. A table of phases follows, of processes that do the same step by step in
Python: "kernels" is the time within Triton's compiler, which with a filled cache looks up what was compiled before.
"""

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from regard.checkpoint.format import WEIGHTS, find_checkpoint
from serve import RATIO, random_model, sentences

READ = "import sys, torch; open(sys.argv[1], 'rb').read()"
CONTEXT = "import torch; torch.zeros(1, device='cuda'); torch.cuda.synchronize()"
READ_TO_GPU = """
import sys, torch
torch.frombuffer(bytearray(open(sys.argv[1], 'rb').read()), dtype=torch.uint8).cuda()
torch.cuda.synchronize()
"""
PHASES = """
import sys, time
marks = [float(sys.argv[3])]
def mark(): marks.append(time.time())
mark()
import torch; mark()
torch.zeros(1, device='cuda'); torch.cuda.synchronize(); mark()
import regard; regard.load; regard.predict; mark()
import gc; gc.disable()
model = regard.load(sys.argv[1], device='cuda'); torch.cuda.synchronize(); mark()
import triton
import triton.compiler as compiler
from triton.runtime.jit import JITFunction
spent, plain, calls = [0.0], compiler.compile, []
def compiled(source, *args, **options):
    begun = time.time()
    try:
        return plain(source, *args, **options)
    finally:
        spent[0] += time.time() - begun
        calls.append((time.time() - begun, getattr(source, 'name', '?')))
compiler.compile = compiled
mark()
line = open(sys.argv[2]).read().splitlines()[:1]
for _ in range(3):
    list(model.predict(line, **eval(sys.argv[4]))); torch.cuda.synchronize(); mark()
print(*(b - a for a, b in zip(marks, marks[1:])), spent[0], len(calls))
print(sorted(calls)[::-1][:8], file=sys.stderr)
"""
COLD = "regard predict, no kernels cached"
NAMES = (
    "start of Python", "import torch", "CUDA context", "import regard", "load the model", "import triton",
    "first prediction", "second", "third", "kernels, of the first three", "number of kernels",
)  # fmt: skip


def run(command: list[str], cache: Path | None = None) -> tuple[float, float]:
    """Wall-clock and processor seconds of a process, with this folder as the cache of Triton's kernels."""
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    environment |= {} if cache is None else {"TRITON_CACHE_DIR": str(cache)}
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )
    wall, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=os.environ.get("REGARD_DATA"))
    parser.add_argument("--model", type=Path, help="a run or a checkpoint")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        texts, more = sentences(None if options.data is None else Path(options.data), 100)
        model, line = options.model or Path(temporary) / "model", Path(temporary) / "line.txt"
        if options.model is None:
            random_model(model, more)
        line.write_text(f"{texts[0]}\n", encoding="utf-8")
        ratio = ["--set", f"max_length_ratio={RATIO}"] if options.model is None else []
        weights, predict = (
            str(find_checkpoint(model) / WEIGHTS),
            [sys.executable, "-m", "regard", "predict"],
        )
        predict += [str(model), str(line), *ratio, "--device", options.device]
        contestants = {"import torch": [sys.executable, "-c", "import torch"]}
        if options.device == "cpu":
            contestants |= {
                "floor": [sys.executable, "-c", READ, weights],
                "regard predict": predict,
            }
            compare(contestants, options.rounds)
            return
        contestants |= {
            "with a CUDA context": [sys.executable, "-c", CONTEXT],
            "floor": [sys.executable, "-c", READ_TO_GPU, weights],
            "regard predict": predict,
            COLD: predict,
        }
        cache = Path(temporary) / "kernels"
        compare(contestants, options.rounds, cache)
        decode = {} if options.model else {"max_length_ratio": RATIO}
        phases(
            [sys.executable, "-c", PHASES, str(model), str(line)],
            [repr(decode)],
            options.rounds,
            cache,
        )


def phases(command: list[str], more: list[str], rounds: int, cache: Path) -> None:
    """Print the median seconds of each phase of a first prediction, with a filled and an empty cache of kernels."""
    columns: dict[str, list[list[float]]] = {"filled": [], "empty": []}
    for _ in range(rounds):
        for name, each in columns.items():
            folder = cache if name == "filled" else cache.with_name("empty")
            environment = os.environ | {"TRITON_CACHE_DIR": str(folder)}
            begun = [*command, repr(time.time()), *more]
            out = subprocess.run(begun, check=True, capture_output=True, text=True, env=environment)
            each.append([float(word) for word in out.stdout.split()])
            shutil.rmtree(cache.with_name("empty"), ignore_errors=True)
        print(f"slowest kernels: {out.stderr.splitlines()[-1]}", file=sys.stderr, flush=True)
    print("\n| phase | kernels cached | not cached |\n|---|---|---|")
    for i, name in enumerate(NAMES):
        print(
            f"| {name} | {' | '.join(f'{median(one[i] for one in each):.2f}' for each in columns.values())} |"
        )


def compare(contestants: dict[str, list[str]], rounds: int, cache: Path | None = None) -> None:
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for name, command in contestants.items():
            empty = None if cache is None else cache.with_name("empty")
            seconds = run(command, empty if name == COLD else cache)
            if empty is not None:
                shutil.rmtree(empty, ignore_errors=True)
            if number:
                taken[name].append(seconds)
    print("| | seconds | × floor | processor seconds | × floor |\n|---|---|---|---|---|")
    for name, each in taken.items():
        cells = []
        for kind in (0, 1):
            ratios = [
                one[kind] / floor[kind] for one, floor in zip(each, taken["floor"], strict=True)
            ]
            cells += [f"{median(one[kind] for one in each):.2f}", f"{median(ratios):.2f}"]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
