"""Bulk prediction on several cores: `regard predict` with several workers against one worker with one thread.

    REGARD_DATA=/path/to/data python benchmarks/workers.py --workers 2 --sentences 1000

A translator of 4 + 4 blocks of 256 with random weights, whose outputs are 1.2 times as long as their sources, and
sentences of Multi30k or of generated words; from texts to texts, with the model loaded. Both run in turn in each round,
and their outputs must be equal. Speed is the median over rounds of the time of one worker through that of several;
"of linear" is that divided by the number of workers. "By busy time" is for a machine that others use too: the busy time
of one worker through the least time that several need on as many free cores, which is the busy time of the busiest
thread, or that of all threads divided by the number of cores. Waiting for Python's lock is not in it.
"""

import argparse
import gc
import os
import tempfile
import time
from pathlib import Path
from statistics import median

import torch

import regard
from regard.api.predict import predict
from regard.inference.predictor import Predictor
from serve import RATIO, random_model, sentences


def busy() -> dict[str, float]:
    """Seconds that processors have worked for each thread of this process."""
    threads = {}
    for folder in Path("/proc/self/task").iterdir():
        user, system = (folder / "stat").read_text().rpartition(")")[2].split()[11:13]
        threads[folder.name] = (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    return threads


def seconds(
    model: Predictor, texts: list[str], workers: int, settings: dict[str, object]
) -> tuple[float, float, list[str]]:
    """The time of all outputs by so many workers, the least time on as many free cores, and the outputs."""
    torch.set_num_threads(workers)
    before, begun = busy(), time.perf_counter()
    outputs = [best[0].text for _, best in predict(model, texts, workers=workers, **settings)]
    taken = time.perf_counter() - begun
    worked = [after - before.get(thread, 0.0) for thread, after in busy().items()]
    return taken, max(max(worked), sum(worked) / workers), outputs


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=os.environ.get("REGARD_DATA"))
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    texts, more = sentences(None if options.data is None else Path(options.data), options.sentences)
    with tempfile.TemporaryDirectory() as folder:
        random_model(Path(folder) / "model", more)
        model = regard.load(Path(folder) / "model", device="cpu")
    gc.freeze()  # as `regard predict` does
    print(f"{len(texts):,} sentences, {options.workers} workers, torch {torch.__version__}\n")
    heads = "one worker, s", "speed", "spread", "of linear", "by busy time", "of linear"
    print(f"| | {' | '.join(heads)} |\n{'|---' * (len(heads) + 1)}|")
    for beam in (1, 5):
        for quantization in (None, "int8"):
            settings: dict[str, object] = {
                "beam_size": beam, "max_length_ratio": RATIO, "no_repeat_ngram_size": 0, "quantization": quantization,
            }  # fmt: skip
            ratios, least, alone = [], [], []
            for number in range(options.rounds + 1):
                one, several = (
                    seconds(model, texts, workers, settings) for workers in (1, options.workers)
                )
                assert one[2] == several[2]
                if number:
                    ratios.append(one[0] / several[0])
                    least.append(one[1] / several[1])
                    alone.append(one[0])
            name = f"{'greedy' if beam == 1 else f'beam {beam}'}, {quantization or 'float32'}"
            speed, spread, by_busy_time = (
                median(ratios),
                f"{min(ratios):.2f}–{max(ratios):.2f}",
                median(least),
            )
            figures = f"{speed:.2f} | {spread} | {speed / options.workers:.2f} | {by_busy_time:.2f}"
            print(
                f"| {name} | {median(alone):.2f} | {figures} | {by_busy_time / options.workers:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
