"""How fast several processes train beside one: weak scaling, as many tokens for each process in every update.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/scale.py --processes 1 2 --rounds 3

Each run is `torchrun … -m regard train` of its own, on drawn dates; the figure is the tokens a second of its log, the
first lines left out. Runs take turns, and the table shows medians, and each as a part of what so many single
processes would do.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

LINES = 10  # of the log, in each run
LEFT_OUT = 3  # until everything is warm


def recipe(dim: int, layers: int, tokens: int, updates: int, shard: bool) -> str:
    part = (
        f'{{kind = "transformer", dim = {dim}, layers = {layers}, heads = 4, ffn_dim = {4 * dim}}}'
    )
    return (
        '[data]\ngenerate = "dates"\nsource = {tokenizer = "bytes"}\ntarget = {tokenizer = "bytes"}\n'
        f"[model]\nencoder = {part}\ndecoder = {part}\n"
        f"[train]\nsteps = {LINES * updates}\nwarmup = 10\nbatch_tokens = {tokens}\nlog_every = {updates}\n"
        f"validate_every = {LINES * updates}\nsamples = 0\nshard = {str(shard).lower()}\n"
    )


def speed(world: int, text: str, folder: Path, cache: Path) -> float:
    """Tokens a second of all processes together."""
    folder.mkdir()
    (folder / "recipe.toml").write_text(text)
    command = [
        "-m",
        "regard",
        "train",
        folder / "recipe.toml",
        "--out",
        folder / "run",
        "--cache",
        cache,
    ]
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
    subprocess.run([sys.executable, *launcher, *command], check=True, capture_output=True)
    lines = [json.loads(line) for line in (folder / "run" / "log.jsonl").read_text().splitlines()]
    return median(
        [line["tokens_per_second"] for line in lines if line["event"] == "train"][LEFT_OUT:]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--tokens", type=int, default=2048, help="batch_tokens for each process")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--updates", type=int, default=5, help="updates a line of the log")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--shard", action="store_true", help="divide the model where there are several"
    )
    given = parser.parse_args()
    found: dict[int, list[float]] = {world: [] for world in given.processes}
    with tempfile.TemporaryDirectory() as place:
        for turn in range(given.rounds):
            for world in given.processes:
                text = recipe(
                    given.dim, given.layers, given.tokens * world, given.updates, given.shard
                )
                folder = Path(place) / f"{world}-{turn}"
                found[world].append(speed(world, text, folder, Path(place) / "cache"))
    threads = os.environ.get("OMP_NUM_THREADS", "all")
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, {threads} threads a process, load {os.getloadavg()[0]:.1f}"
    )
    first = given.processes[0]
    each = [figures / first for figures in found[first]]
    for world, figures in found.items():
        share = median(a / world / b for a, b in zip(figures, each, strict=True))
        print(
            f"{world:>4} processes: {median(figures):>10,.0f} tokens/s   {share:.2f} of {world} single ones"
        )


if __name__ == "__main__":
    main()
