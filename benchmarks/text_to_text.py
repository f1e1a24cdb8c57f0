"""From a file of sentences to a file of outputs: `model.predict` and `regard predict` against the search alone.

    REGARD_DATA=/path/to/data python benchmarks/text_to_text.py --device cuda --precision bfloat16
    python benchmarks/text_to_text.py --device cpu --sentences 2000
    python benchmarks/text_to_text.py --device cuda --profile 25        # where the time of the host goes

A translator of 4 + 4 blocks of 256 with random weights, whose outputs are 1.2 times as long as their sources, and
sentences of Multi30k (from $REGARD_DATA or --data) or of generated words. "search" is the search on token ids with the
best of several batch sizes: no text is read, tokenized, decoded or written. Every contestant runs once to warm up, then
in rounds; figures are of the median round. "share" is the speed as a part of the search's.
"""

import argparse
import cProfile
import gc
import os
import pstats
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

import regard
from regard.api.predict import predict
from regard.core.atomic_io import atomic_file
from regard.generation import search
from regard.inference.predictor import Predictor
from regard.tasks.generate import SequencePipeline
from regard.tasks.pipeline import OutputOptions
from serve import RATIO, random_model, sentences

BATCH_TOKENS = (4_096, 16_384, 65_536)


def search_alone(
    model: Predictor, texts: list[str], options: dict[str, object]
) -> Callable[[], int]:
    """A function that searches outputs of all texts, from ids to ids, and returns the number of generated tokens."""
    config, pipeline = model.decode_config(options), model.pipeline
    assert isinstance(pipeline, SequencePipeline)
    encoded, _ = model.encode_inputs("texts", texts, config)
    requests, task = (
        pipeline.requests(encoded, OutputOptions()),
        pipeline.task(config, OutputOptions()),
    )

    def run() -> int:
        return sum(len(best[0].tokens) for _, best in search.search(task, requests))

    return run


def to_file(
    model: Predictor, lines: Path, out: Path, options: dict[str, object]
) -> Callable[[], int]:
    """A function that does what `regard predict FILE --out FILE` does once the model is loaded."""

    def run() -> int:
        with lines.open(encoding="utf-8") as given, atomic_file(out) as file:
            for _, best in predict(
                model, (line.rstrip("\n") for line in given), tokens=False, **options
            ):
                file.write(f"{best[0].text}\n".encode())
        return 0

    return run


def timed(run: Callable[[], object]) -> float:
    begun = time.perf_counter()
    run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=os.environ.get("REGARD_DATA"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--sentences", type=int, default=29_000)
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--profile", type=int, default=0, help="show so many functions of model.predict"
    )
    options = parser.parse_args()
    texts, more = sentences(None if options.data is None else Path(options.data), options.sentences)
    with tempfile.TemporaryDirectory() as folder:
        random_model(Path(folder) / "model", more)
        model = regard.load(Path(folder) / "model", device=options.device)
        gc.freeze()  # as `regard predict` does
        lines, out = Path(folder) / "lines.txt", Path(folder) / "out.txt"
        lines.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
        print(
            f"{len(texts):,} sentences; {options.device}, {options.precision}, torch {torch.__version__}"
        )
        for beam in options.beams:
            compare(model, texts, lines, out, beam, options)


def compare(
    model: Predictor,
    texts: list[str],
    lines: Path,
    out: Path,
    beam: int,
    options: argparse.Namespace,
) -> None:
    settings: dict[str, object] = {
        "beam_size": beam, "precision": options.precision, "max_length_ratio": RATIO, "no_repeat_ngram_size": 0,
    }  # fmt: skip
    runs = {
        f"search, batch_tokens {size:,}": search_alone(
            model, texts, {**settings, "batch_tokens": size}
        )
        for size in BATCH_TOKENS
    }
    tokens = 0
    for run in runs.values():
        tokens = run()
    runs["model.predict"] = lambda: len(model.predict(texts, **settings))
    runs["regard predict FILE --out FILE"] = to_file(model, lines, out, settings)
    seconds = {name: [] for name in runs}
    for number in range(options.rounds + 1):
        for name, run in runs.items():
            taken = timed(run)
            if number:
                seconds[name].append(taken)
    medians = {name: median(each) for name, each in seconds.items()}
    floor = min(value for name, value in medians.items() if name.startswith("search"))
    print(
        f"\nbeam {beam}, {tokens:,} tokens\n\n| | seconds | tokens/s | share |\n|---|---|---|---|"
    )
    for name, value in medians.items():
        print(f"| {name} | {value:.2f} | {tokens / value:,.0f} | {floor / value:.2f} |")
    if options.profile:
        profile = cProfile.Profile()
        profile.runcall(model.predict, texts, **settings)
        pstats.Stats(profile).sort_stats("tottime").print_stats(options.profile)


if __name__ == "__main__":
    main()
