"""Bulk prediction on several cores: `regard predict` with several workers against one worker with one thread.

    REGARD_DATA=/path/to/data python benchmarks/workers.py --workers 2 --sentences 1000

A translation model of the recipe's sizes with random weights, whose outputs are 1.2 times as long as their sources, and
sentences of Multi30k or of generated words; from texts to texts, with the model loaded. Both run in turn in each round,
and their outputs must be equal. Speed is the median over rounds of the time of one worker through that of several;
"of linear" is that divided by the number of workers.
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


def seconds(model: Predictor, texts: list[str], workers: int, settings: dict[str, object]) -> tuple[float, list[str]]:
    """The time of all outputs by so many workers, and the outputs."""
    torch.set_num_threads(workers)
    begun = time.perf_counter()
    outputs = [best[0].text for _, best in predict(model, texts, workers=workers, **settings)]
    return time.perf_counter() - begun, outputs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
    print("| | one worker, s | speed | spread | of linear |\n|---|---|---|---|---|")
    for beam in (1, 5):
        for quantization in (None, "int8"):
            settings: dict[str, object] = {
                "beam_size": beam, "max_length_ratio": RATIO, "no_repeat_ngram_size": 0, "quantization": quantization,
            }  # fmt: skip
            times: dict[int, list[float]] = {1: [], options.workers: []}
            for number in range(options.rounds + 1):
                results = {workers: seconds(model, texts, workers, settings) for workers in times}
                assert results[1][1] == results[options.workers][1]
                for workers, (taken, _) in results.items():
                    times[workers] += [taken] if number else []
            ratios = [a / b for a, b in zip(times[1], times[options.workers], strict=True)]
            name = f"{'greedy' if beam == 1 else f'beam {beam}'}, {quantization or 'float32'}"
            speed, spread = median(ratios), f"{min(ratios):.2f}–{max(ratios):.2f}"
            print(
                f"| {name} | {median(times[1]):.2f} | {speed:.2f} | {spread} | {speed / options.workers:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
